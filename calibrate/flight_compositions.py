"""Plans the compositions of flights: which requests are in a serving engine together, and when.

Pure. Every row is in exactly one flight of a composition, and every request is a row: what decodes
beside another's prefill, or is a long prompt in its step, is measured itself. A plan says when
requests come and how large a step may be; what the steps then were is read back from the scheduler,
and pairs of compositions are compared by that alone (see `calibrate.engine_axes`):

* ``rows-N``: N requests at once, in file order; ``solo``: one;
* ``reversed-N``: the same requests, the last first; ``staggered-N``: one more every step;
* ``neighbours-N-a``, ``-b``: rows of one length, the same slots, other neighbours;
* ``mixed-N``: the shortest beside the longest; ``shuffled-N``: arrival order;
* ``chunks-N-C``: steps of at most C tokens, so that prompts are cut into chunks, at other places
  for another C;
* ``warm-N``: every prompt was computed before, where the engine caches prefixes;
* ``decoding-N``: staggered, and each request goes on to generate beside those that come later;
* ``preempted-N``: as ``chunks-N-C``, and once all that run lose their cache half-way.

Of a foreign server only the first kinds can be asked, those in which all requests of a flight come
together; no steps are read back there, and pairs are compared by what was asked for (see
`calibrate.requested_axes`).
"""

import random
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from calibrate.config import Sweep
from calibrate.lane_compositions import Part, exchanged
from harness.conditions.batching import Batch, RowShape, chunk, plan_batches
from harness.conditions.flight import Flight
from harness.records.batching import InFlight
from harness.records.document import Record
from harness.records.engine import Endpoint, Vllm
from harness.records.verifier import VerifierSpec
from harness.verifiers.heads import model_task

__all__ = ["FlightTraits", "flight_partitions", "flight_traits"]

NUM_DECODED = 8
"""Tokens that a request generates beside those that come later."""


class FlightTraits(Record, frozen=True, kw_only=True):
    """What an engine can do, of that which a plan may ask for."""

    decodes: bool = False
    """Whether it generates tokens."""
    caches_prefixes: bool = False
    """Whether a prompt's first blocks may come out of a cache."""
    chunks: bool = False
    """Whether a prompt may be computed in several steps."""
    num_reasoning: int = 0
    """Tokens generated before the score."""
    is_foreign: bool = False
    """Whether it can only be told who comes together, and tells no steps."""
    gathers: bool = False
    """Of a foreign one: whether it begins with a flight when all of it is there."""


def flight_traits(verifier: VerifierSpec) -> FlightTraits:
    """Return the traits of a verifier's engine, as the config has them."""
    engine = verifier.engine
    if isinstance(engine, Endpoint):
        return FlightTraits(
            is_foreign=True, gathers=engine.gate, num_reasoning=verifier.reasoning_tokens
        )
    if not isinstance(engine, Vllm):
        return FlightTraits()
    return FlightTraits(
        decodes=model_task(verifier.head) == "causal_lm",
        caches_prefixes=engine.prefix_caching,
        chunks=engine.chunked_prefill is not False,
        num_reasoning=verifier.reasoning_tokens,
    )


def flight_partitions(
    rows: Sequence[RowShape],
    batching: InFlight,
    sweep: Sweep,
    seed: int,
    traits: FlightTraits,
) -> dict[str, tuple[Batch, ...]]:
    """Return name -> flights; each holds every row once. Repeats are made of the first."""
    planner = _Planner(rows, batching, sweep, seed, traits)
    if traits.is_foreign:
        return planner.at_once()
    return {**planner.at_once(), **planner.over_time()}


class _Planner:
    def __init__(
        self,
        rows: Sequence[RowShape],
        batching: InFlight,
        sweep: Sweep,
        seed: int,
        traits: FlightTraits,
    ) -> None:
        self._rows, self._traits = rows, traits
        self._size = min(sweep.reference_rows, batching.max_rows)
        self._sizes = sorted(
            {size for size in sweep.rows if size <= batching.max_rows} | {batching.max_rows}
        )
        self._given = list(range(len(rows)))
        self._shuffled = random.Random(seed).sample(self._given, len(rows))  # noqa: S311 - seeded
        self._by_length = sorted(self._given, key=lambda at: (rows[at].num_tokens, at))
        self._reference = plan_batches(rows, replace(batching, max_rows=self._size), seed)

    def at_once(self) -> dict[str, tuple[Batch, ...]]:
        """Return the compositions in which all requests of a flight come together."""
        size, largest = self._size, self._sizes[-1]
        found = {
            f"rows-{size}": self._reference,
            "solo": self._cut(self._given, 1),
            **{f"rows-{n}": self._cut(self._given, n) for n in self._sizes if n != size},
            f"reversed-{size}": tuple(
                replace(batch, rows=batch.rows[::-1]) for batch in self._reference
            ),
            f"neighbours-{size}-a": self._flights(self._alike()),
            f"neighbours-{size}-b": self._flights(map(exchanged, self._alike())),
            f"mixed-{size}": self._cut(self._interleaved(), size),
            f"shuffled-{largest}": self._cut(self._shuffled, largest),
        }
        if largest == 1:
            found["backwards"] = self._reference[::-1]
        return found

    def over_time(self) -> dict[str, tuple[Batch, ...]]:
        """Return the reference's flights under other rules."""
        size, traits = self._size, self._traits
        found = {f"staggered-{size}": self._under(_staggered)}
        budgets = self._budgets() if traits.chunks else ()
        for budget in budgets:
            found[f"chunks-{size}-{budget}"] = self._under(_in_chunks(budget))
        if traits.caches_prefixes:
            found[f"warm-{size}"] = self._under(lambda _: Flight(is_warm=True))
        if traits.decodes:
            found[f"decoding-{size}"] = self._under(_decoding)
        if budgets:
            found[f"preempted-{size}"] = self._under(
                lambda _: Flight(token_budget=budgets[0], preempt_before=1)
            )
        elif traits.num_reasoning:
            found[f"preempted-{size}"] = self._under(lambda _: Flight(preempt_before=1))
        return found

    def _cut(self, order: Sequence[int], size: int) -> tuple[Batch, ...]:
        return self._flights([list(chunk(order, size))])

    def _flights(self, groups: Iterable[Sequence[Part]]) -> tuple[Batch, ...]:
        return tuple(
            Batch(rows=part, width=self._longest(part), side=None, flight=Flight())
            for group in groups
            for part in group
        )

    def _longest(self, part: Sequence[int]) -> int:
        return max(self._rows[at].num_tokens for at in part)

    def _under(self, rule: Callable[[Part], Flight]) -> tuple[Batch, ...]:
        return tuple(replace(batch, flight=rule(batch.rows)) for batch in self._reference)

    def _alike(self) -> list[list[Part]]:
        """Return groups of flights of rows of one length, each group's flights as large as one."""
        lengths: dict[int, list[int]] = {}
        for at in self._given:
            lengths.setdefault(self._rows[at].num_tokens, []).append(at)
        found = []
        for mine in lengths.values():
            size = max(min(self._size, len(mine) // 2), 1)  # two flights, to exchange rows between
            found.append(list(chunk(mine, size)))
        return found

    def _interleaved(self) -> list[int]:
        """Return the rows with each of the longer half behind one of the shorter half."""
        middle = (len(self._by_length) + 1) // 2
        short, long = self._by_length[:middle], self._by_length[middle:]
        mixed = [at for pair in zip(short, long, strict=False) for at in pair]
        return mixed + short[len(long) :]

    def _budgets(self) -> tuple[int, ...]:
        """Return two step sizes that cut most prompts, at places that differ from row to row."""
        median = self._rows[self._by_length[len(self._rows) // 2]].num_tokens
        return tuple(dict.fromkeys(max(n, 2) for n in (median * 2 // 3, median * 3 // 2)))


def _in_chunks(budget: int) -> Callable[[Part], Flight]:
    return lambda _: Flight(token_budget=budget)


def _staggered(part: Part) -> Flight:
    return Flight(arrivals=tuple(range(len(part))))


def _decoding(part: Part) -> Flight:
    return Flight(arrivals=tuple(range(len(part))), extra_tokens=NUM_DECODED)
