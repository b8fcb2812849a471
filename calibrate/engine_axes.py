"""Axes of an engine's batches: read off the steps that ran, never off the plan.

For every row, the steps up to the one in which its score was read say who was computed with it, in
which shapes, how its prompt was cut, how much of it came out of the cache, and how often it was
begun again. What the engine did with it afterwards is no part of its score. The pairing is that of
`calibrate.axes`.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.axes import Axis, AxisRule
from calibrate.compositions import Composition
from calibrate.flight_compositions import FlightTraits
from harness.conditions.flight import EngineStep
from harness.errors import StoreError

__all__ = ["EnginePlacement", "engine_rules"]

_OWN = ("chunks", "cached", "preempted")
"""How a row itself was computed."""
_SAME_FLIGHT = ("flight_members", "arrivals", "decodes", "num_chunks")
"""With whom and when, and in how many parts: where they lie moves with the cache."""


def engine_rules(traits: FlightTraits) -> dict[Axis, AxisRule]:
    """Return the axes of an engine with these traits."""
    rules = {
        Axis.NUM_ROWS: AxisRule("num_rows", ("slot", "decodes", *_OWN)),
        Axis.ROW_POSITION: AxisRule("slot", ("members", "decodes", *_OWN)),
        Axis.COMPANIONS: AxisRule("members", ("shape",)),
        Axis.ROW_ORDER: AxisRule("moment", ("arrangement",)),
        Axis.ARRIVAL_ORDER: AxisRule("arrivals", ("flight_members", "decodes", *_OWN)),
        Axis.POSITION_IN_STEP: AxisRule("offset", ("num_rows", "decodes", *_OWN)),
        Axis.PREFILLS_BESIDE: AxisRule("prefills", ("num_rows", "slot", "decodes", *_OWN)),
    }
    if traits.decodes:
        rules[Axis.DECODES_BESIDE] = AxisRule("decodes", _OWN)
    if traits.chunks:
        rules[Axis.CHUNK_BOUNDARIES] = AxisRule(
            "chunks", ("flight_members", "arrivals", "decodes", "cached", "preempted")
        )
    if traits.caches_prefixes:
        rules[Axis.PREFIX_CACHE] = AxisRule("cached", ("preempted", *_SAME_FLIGHT))
    if traits.chunks or traits.num_reasoning:
        rules[Axis.PREEMPTION] = AxisRule("preempted", ("cached", *_SAME_FLIGHT))
    return rules


class EnginePlacement:
    """How an engine computed each row of one composition; see `calibrate.axes.Placed`."""

    def __init__(
        self,
        composition: Composition,
        steps: Sequence[Sequence[EngineStep]],
        num_tokens: NDArray[np.int64],
        traits: FlightTraits,
    ) -> None:
        """Read off the `steps` of each flight of `composition`; `num_tokens` are the prompts'."""
        self.name, self.rules = composition.name, engine_rules(traits)
        size = len(num_tokens)
        self.num_rows = np.zeros(size, np.int64)
        self.slot = np.zeros(size, np.int64)
        self.offset = np.zeros(size, np.int64)
        self.prefills = np.zeros(size, np.int64)
        self.decodes = np.zeros(size, np.int64)
        self.cached = np.zeros(size, np.int64)
        self.preempted = np.zeros(size, np.int64)
        self.chunks = np.zeros(size, np.int64)
        self.num_chunks = np.zeros(size, np.int64)
        self.members = np.zeros(size, np.int64)
        self.shape = np.zeros(size, np.int64)
        self.arrangement = np.zeros(size, np.int64)
        self.arrivals = np.zeros(size, np.int64)
        self.flight_members = np.zeros(size, np.int64)
        self.moment = np.zeros(size, np.int64)
        for moment, (batch, ran) in enumerate(zip(composition.batches, steps, strict=True)):
            rows = list(batch.rows)
            come = (batch.flight.arrivals if batch.flight else ()) or (0,) * len(rows)
            self.moment[rows] = moment
            self.arrivals[rows] = hash(tuple(zip(rows, come, strict=True)))
            self.flight_members[rows] = hash(frozenset(rows))
            prompts = [int(num_tokens[at]) for at in rows]
            seen = [_SeenStep(step, rows, prompts) for step in ran]
            for request, row in enumerate(rows):
                length = prompts[request]
                own = _scoring_slots(seen, request, length + traits.num_reasoning)
                self._place(row, own, length)

    def _place(self, row: int, own: "Sequence[_OwnSlot]", length: int) -> None:
        """Take down one row, whose prompt has `length` tokens, from its part in its steps."""
        last, last_pass = own[-1], _last_pass(own)
        prefilling = [one for one in own if one.num_computed < length]
        self.num_rows[row] = max(len(one.step.slots) for one in own)
        self.slot[row] = last.at
        self.offset[row] = last.step.offsets[last.at]
        self.prefills[row] = sum(
            one.step.prefill_tokens - (one.num_tokens if one.num_computed < length else 0)
            for one in own
        )
        self.decodes[row] = max(one.step.num_decodes for one in prefilling)
        self.cached[row] = last_pass[0].num_computed
        self.preempted[row] = _num_restarts(own)
        chunks = tuple(one.num_tokens for one in last_pass if one.num_computed < length)
        self.chunks[row], self.num_chunks[row] = hash(chunks), len(chunks)
        self.members[row] = hash(frozenset().union(*(one.step.members for one in own)))
        self.shape[row] = hash(tuple((one.step.shape, one.at) for one in own))
        self.arrangement[row] = hash(tuple(one.step.arrangement for one in own))


class _SeenStep:
    """One step, with what all rows in it ask of it."""

    def __init__(self, step: EngineStep, rows: Sequence[int], prompts: Sequence[int]) -> None:
        slots = self.slots = step.slots
        self.at = {slot.request: at for at, slot in enumerate(slots)}
        prefill = [slot.num_computed_tokens < prompts[slot.request] for slot in slots]
        self.prefill_tokens = sum(
            slot.num_tokens for slot, is_prefill in zip(slots, prefill, strict=True) if is_prefill
        )
        self.num_decodes = len(slots) - sum(prefill)
        self.offsets = [0, *accumulate(slot.num_tokens for slot in slots)]
        self.members = frozenset(rows[slot.request] for slot in slots)
        self.shape = hash(tuple((s.num_tokens, s.num_computed_tokens) for s in slots))
        self.arrangement = hash(
            tuple((rows[s.request], s.num_tokens, s.num_computed_tokens) for s in slots)
        )


class _OwnSlot(NamedTuple):
    """One row's part in one step."""

    step: _SeenStep
    at: int
    num_tokens: int
    num_computed: int


def _scoring_slots(steps: Sequence[_SeenStep], request: int, num_tokens: int) -> list[_OwnSlot]:
    """Return a request's part in its steps, up to the first that reaches `num_tokens`."""
    found = []
    for step in steps:
        if request not in step.at:
            continue
        at = step.at[request]
        slot = step.slots[at]
        found.append(_OwnSlot(step, at, slot.num_tokens, slot.num_computed_tokens))
        if slot.num_computed_tokens + slot.num_tokens >= num_tokens:
            return found
    raise StoreError(
        f"the stored steps of request {request} end before its score was read; the run's folder is "
        "damaged: move it away and run again"
    )


def _is_restart(before: _OwnSlot, after: _OwnSlot) -> bool:
    return after.num_computed < before.num_computed + before.num_tokens


def _num_restarts(own: Sequence[_OwnSlot]) -> int:
    return sum(_is_restart(before, after) for before, after in pairwise(own))


def _last_pass(own: Sequence[_OwnSlot]) -> Sequence[_OwnSlot]:
    """Return the slots since the request last began anew."""
    restarts = [at for at, pair in enumerate(pairwise(own), 1) if _is_restart(*pair)]
    return own[restarts[-1] if restarts else 0 :]
