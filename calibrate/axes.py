"""Axes of batch membership: which pairs of compositions differ in which one, for which rows.

Nothing is paired by hand. For every row, each composition says how many rows were computed with it,
at what width, padded on which side, in which slot, with whom, and when; two compositions are
evidence about an axis for just those rows that differ in it and agree in all that it holds fixed.
An axis that no row exercises is reported as such, never as invariant.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrate.compositions import REPEATS, Composition
from calibrate.sensitivity import Indices, Scores, axis_finding
from harness.records.batching import (
    Batching,
    FixedWidth,
    InFlight,
    Lanes,
    PaddingSide,
    Solo,
)
from harness.records.document import Record
from harness.records.tolerance import AxisFinding

__all__ = [
    "Axis",
    "AxisRows",
    "AxisRule",
    "Placed",
    "Placement",
    "compare_axes",
    "find_axis",
    "required_axes",
]


class Axis(StrEnum):
    """What can differ between two invocations that differ in batch membership only."""

    NUM_ROWS = "num_rows"
    """How many real rows are computed together, at the same width and slot, and in a lane at the
    same shape; companions change too."""
    PADDED_WIDTH = "padded_width"
    """The width they are padded to."""
    PADDING_SIDE = "padding_side"
    """The side that is padded."""
    ROW_POSITION = "row_position"
    """The slot of the row among the same companions."""
    COMPANIONS = "companions"
    """Who the companions are, at the same shape and slot."""
    ROW_ORDER = "row_order"
    """When the same batch is computed in a run."""
    ARRIVAL_ORDER = "arrival_order"
    """When the same requests come to an engine, one after another or together, in which order."""
    POSITION_IN_STEP = "position_in_step"
    """How many tokens of other requests a step computes before the row's own."""
    PREFILLS_BESIDE = "prefills_beside"
    """How many tokens of other prompts are computed in the row's steps."""
    DECODES_BESIDE = "decodes_beside"
    """How many requests generate in the row's steps."""
    CHUNK_BOUNDARIES = "chunk_boundaries"
    """Where a prompt is cut, when it is computed in several steps."""
    PREFIX_CACHE = "prefix_cache"
    """How many tokens of a prompt come out of the cache."""
    PREEMPTION = "preemption"
    """How often a request loses its cache and is computed again."""
    COMBINED = "combined"
    """Everything at once: any composition against the first."""
    REPEAT_SAME_PROCESS = "repeat_same_process"
    """Nothing: once more in the same process."""
    REPEAT_FRESH_PROCESS = "repeat_fresh_process"
    """Nothing: once more in a fresh process."""


class AxisRule(NamedTuple):
    """What makes two placements of a row evidence about an axis; names of `Placed` attributes."""

    varied: str
    """What must differ."""
    fixed: tuple[str, ...]
    """What must agree."""


class Placed(Protocol):
    """Where one composition puts each row: attributes, named by the rules, are arrays `[rows]`."""

    name: str
    """The composition's."""

    @property
    def rules(self) -> Mapping[Axis, AxisRule]:
        """The axes of its kind of batches."""

    slot: NDArray[np.int64]
    """The row's place among those computed with it."""


PADDED_RULES = {
    Axis.NUM_ROWS: AxisRule("num_rows", ("padded_rows", "width", "side", "slot")),
    Axis.PADDED_WIDTH: AxisRule("width", ("num_rows", "padded_rows", "side", "arrangement")),
    Axis.PADDING_SIDE: AxisRule("padded_side", ("num_rows", "padded_rows", "width", "arrangement")),
    Axis.ROW_POSITION: AxisRule("slot", ("num_rows", "padded_rows", "width", "side", "members")),
    Axis.COMPANIONS: AxisRule("members", ("num_rows", "padded_rows", "width", "side", "slot")),
    Axis.ROW_ORDER: AxisRule("moment", ("num_rows", "padded_rows", "width", "side", "arrangement")),
}
"""The axes of padded forwards."""
GENERAL = (Axis.COMBINED, Axis.REPEAT_SAME_PROCESS, Axis.REPEAT_FRESH_PROCESS)
"""Axes of every kind of batches, which compare whole compositions."""
COUNTED = {
    Axis.PADDED_WIDTH: ("widths", "tokens"),
    Axis.POSITION_IN_STEP: ("places", "tokens"),
    Axis.PREFILLS_BESIDE: ("amounts", "tokens"),
    Axis.DECODES_BESIDE: ("numbers", "requests"),
    Axis.PREFIX_CACHE: ("amounts", "tokens"),
    Axis.PREEMPTION: ("counts", "times"),
}
"""Axis -> what its numbers are, and their unit, in words."""
NUM_NAMED = 3  # pairs of compositions named in a finding; the rest are counted


class Placement:
    """Where one composition of padded forwards puts each row; see `Placed`."""

    rules = PADDED_RULES

    def __init__(self, composition: Composition, num_tokens: NDArray[np.int64]) -> None:
        """Read off `composition`, whose batches hold each of the rows once."""
        self.name = composition.name
        size = len(num_tokens)
        self.num_rows = np.zeros(size, np.int64)
        self.padded_rows = np.zeros(size, np.int64)
        self.width = np.zeros(size, np.int64)
        self.slot = np.zeros(size, np.int64)
        self.moment = np.zeros(size, np.int64)
        self.members = np.zeros(size, np.int64)
        self.arrangement = np.zeros(size, np.int64)
        self.side = np.zeros(size, np.int64)
        for moment, batch in enumerate(composition.batches):
            rows = list(batch.rows)
            self.num_rows[rows] = len(rows)
            self.padded_rows[rows] = batch.num_rows or 0
            self.width[rows] = batch.width
            self.slot[rows] = range(len(rows))
            self.moment[rows] = moment
            self.members[rows] = hash(tuple(sorted(rows)))
            self.arrangement[rows] = hash(batch.rows)
            self.side[rows] = 1 if batch.side is PaddingSide.LEFT else 0
        self.padded: NDArray[np.bool_] = self.width > num_tokens
        self.padded_side = np.where(self.padded, self.side, 0)


class AxisRows(Record, frozen=True, kw_only=True, eq=False):
    """The evidence about one axis: scores that differ in it alone, joined over all pairs."""

    axis: Axis
    """The axis."""
    left: Scores
    """`[comparisons]`."""
    right: Scores
    """`[comparisons]`."""
    decision_of_row: Indices
    """`[comparisons]`."""
    settings: tuple[str, ...]
    """What was varied, in words."""

    def finding(self, confidence: float) -> AxisFinding:
        """Return what the comparisons show."""
        pairs = [(self.left, self.right)] if self.left.size else []
        return axis_finding(self.axis, pairs, self.decision_of_row, self.settings, confidence)


def required_axes(
    batching: Batching, rules: Mapping[Axis, AxisRule] = PADDED_RULES
) -> tuple[str, ...]:
    """Return the axes that must all be exercised before memberships may count as equal.

    `rules` has the axes in which batches of this mode can differ at all.
    """
    if isinstance(batching, InFlight) and batching.max_rows > 1:
        return tuple(axis for axis in rules if axis is not Axis.ROW_ORDER)
    if isinstance(batching, Solo | InFlight) or _is_lone(batching):
        return (Axis.ROW_ORDER,)
    widths = () if isinstance(batching, FixedWidth | Lanes) else (Axis.PADDED_WIDTH,)
    return (Axis.NUM_ROWS, *widths, Axis.ROW_POSITION, Axis.COMPANIONS)


def _is_lone(batching: Batching) -> bool:
    """Return whether no two rows share a forward, which is then filled up with inert rows."""
    if not isinstance(batching, Lanes):
        return False
    return batching.max_rows == 1 or all(lane.rows == 1 for lane in batching.lanes)


def compare_axes(
    placements: Sequence[Placed], scores: Mapping[str, Scores], decision_of_row: Indices
) -> tuple[AxisRows, ...]:
    """Return the evidence about every axis of these batches, in the order of `Axis`."""
    axes = (axis for axis in Axis if axis in GENERAL or axis in placements[0].rules)
    return tuple(find_axis(axis, placements, scores, decision_of_row) for axis in axes)


def find_axis(
    axis: Axis,
    placements: Sequence[Placed],
    scores: Mapping[str, Scores],
    decision_of_row: Indices,
) -> AxisRows:
    """Return the evidence about `axis`; empty when nothing exercises it."""
    left, right, owners = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    varied: dict[int | str, None] = {}
    for one, other in _pairs(axis, placements):
        mask = _mask(axis, one, other)
        if mask.any():
            left.append(scores[one.name][mask])
            right.append(scores[other.name][mask])
            owners.append(decision_of_row[mask])
            varied |= _varied(axis, one, other, mask)
    return AxisRows(
        axis=axis,
        left=np.concatenate(left),
        right=np.concatenate(right),
        decision_of_row=np.concatenate(owners),
        settings=_words(axis, list(varied)),
    )


def _pairs(axis: Axis, placements: Sequence[Placed]) -> list[tuple[Placed, Placed]]:
    begins = {Axis.REPEAT_SAME_PROCESS: REPEATS[0], Axis.REPEAT_FRESH_PROCESS: REPEATS[1]}
    if axis in begins:
        by_name = {placement.name: placement for placement in placements}
        repeats = [p for p in placements if p.name.startswith(begins[axis])]
        return [(by_name[p.name.removeprefix(begins[axis])], p) for p in repeats]
    once = [p for p in placements if not p.name.startswith(REPEATS)]
    if axis is Axis.COMBINED:
        return [(once[0], other) for other in once[1:]]
    return list(combinations(once, 2))


def _mask(axis: Axis, one: Placed, other: Placed) -> NDArray[np.bool_]:
    if axis in GENERAL:
        return np.ones(len(one.slot), np.bool_)
    rule = one.rules[axis]
    mask = getattr(one, rule.varied) != getattr(other, rule.varied)
    for name in rule.fixed:
        mask &= getattr(one, name) == getattr(other, name)
    return np.asarray(mask, np.bool_)


def _varied(
    axis: Axis, one: Placed, other: Placed, mask: NDArray[np.bool_]
) -> dict[int | str, None]:
    """Return what was compared: the numbers that vary, or else the two compositions."""
    if axis not in {Axis.NUM_ROWS, *COUNTED}:
        return {f"{one.name} / {other.name}": None}
    values = (getattr(p, one.rules[axis].varied)[mask] for p in (one, other))
    return dict.fromkeys(np.unique(np.concatenate(list(values))).tolist())


def _words(axis: Axis, varied: Sequence[int | str]) -> tuple[str, ...]:
    """Say in a few words what was compared."""
    if axis is Axis.NUM_ROWS:
        return tuple(f"{part} rows" for part in _ranges(sorted(map(int, varied))))
    if axis in COUNTED and varied:
        noun, unit = COUNTED[axis]
        found = sorted(map(int, varied))
        return (f"{len(found)} {noun} from {found[0]} to {found[-1]} {unit}",)
    named, rest = [str(pair) for pair in varied[:NUM_NAMED]], len(varied) - NUM_NAMED
    return (*named, f"and {rest} more pairs") if rest > 0 else tuple(named)


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Return ``1-4``, ``7``, ``9-12`` for numbers in ascending order."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
