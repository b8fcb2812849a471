"""Axes of batch membership: which pairs of compositions differ in which one, for which rows.

Nothing is paired by hand. For every row, each composition says how many rows were computed with it,
at what width, padded on which side, in which slot, with whom, and when; two compositions are
evidence about an axis for just those rows that differ in it and agree in all that it holds fixed.
An axis that no row exercises is reported as such, never as invariant.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from calibrate.compositions import REPEATS, Composition
from calibrate.sensitivity import Indices, Scores, axis_finding
from harness.records.batching import Batching, FixedWidth, Lanes, PaddingSide, Solo
from harness.records.document import Record
from harness.records.tolerance import AxisFinding

__all__ = ["Axis", "AxisRows", "Placement", "compare_axes", "find_axis", "required_axes"]


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
    COMBINED = "combined"
    """Everything at once: any composition against the first."""
    REPEAT_SAME_PROCESS = "repeat_same_process"
    """Nothing: once more in the same process."""
    REPEAT_FRESH_PROCESS = "repeat_fresh_process"
    """Nothing: once more in a fresh process."""


FIXED = {
    Axis.NUM_ROWS: ("padded_rows", "width", "side", "slot"),
    Axis.PADDED_WIDTH: ("num_rows", "padded_rows", "side", "arrangement"),
    Axis.PADDING_SIDE: ("num_rows", "padded_rows", "width", "arrangement"),
    Axis.ROW_POSITION: ("num_rows", "padded_rows", "width", "side", "members"),
    Axis.COMPANIONS: ("num_rows", "padded_rows", "width", "side", "slot"),
    Axis.ROW_ORDER: ("num_rows", "padded_rows", "width", "side", "arrangement"),
}
"""Axis -> what must agree for a row to count."""

VARIED = {
    Axis.NUM_ROWS: "num_rows",
    Axis.PADDED_WIDTH: "width",
    Axis.PADDING_SIDE: "side",
    Axis.ROW_POSITION: "slot",
    Axis.COMPANIONS: "members",
    Axis.ROW_ORDER: "moment",
}
"""Axis -> what must differ."""
NUM_NAMED = 3  # pairs of compositions named in a finding; the rest are counted


class Placement:
    """Where one composition puts each row; every attribute is an array `[rows]`."""

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


def required_axes(batching: Batching) -> tuple[str, ...]:
    """Return the axes that must all be exercised before memberships may count as equal."""
    if isinstance(batching, Solo) or _is_lone(batching):
        return (Axis.ROW_ORDER,)
    widths = () if isinstance(batching, FixedWidth | Lanes) else (Axis.PADDED_WIDTH,)
    return (Axis.NUM_ROWS, *widths, Axis.ROW_POSITION, Axis.COMPANIONS)


def _is_lone(batching: Batching) -> bool:
    """Return whether no two rows share a forward, which is then filled up with inert rows."""
    if not isinstance(batching, Lanes):
        return False
    return batching.max_rows == 1 or all(lane.rows == 1 for lane in batching.lanes)


def compare_axes(
    placements: Sequence[Placement], scores: Mapping[str, Scores], decision_of_row: Indices
) -> tuple[AxisRows, ...]:
    """Return the evidence about every axis, in the order of `Axis`."""
    return tuple(find_axis(axis, placements, scores, decision_of_row) for axis in Axis)


def find_axis(
    axis: Axis,
    placements: Sequence[Placement],
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


def _pairs(axis: Axis, placements: Sequence[Placement]) -> list[tuple[Placement, Placement]]:
    begins = {Axis.REPEAT_SAME_PROCESS: REPEATS[0], Axis.REPEAT_FRESH_PROCESS: REPEATS[1]}
    if axis in begins:
        by_name = {placement.name: placement for placement in placements}
        repeats = [p for p in placements if p.name.startswith(begins[axis])]
        return [(by_name[p.name.removeprefix(begins[axis])], p) for p in repeats]
    once = [p for p in placements if not p.name.startswith(REPEATS)]
    if axis is Axis.COMBINED:
        return [(once[0], other) for other in once[1:]]
    return list(combinations(once, 2))


def _mask(axis: Axis, one: Placement, other: Placement) -> NDArray[np.bool_]:
    if axis not in VARIED:
        return np.ones(len(one.slot), np.bool_)
    mask = getattr(one, VARIED[axis]) != getattr(other, VARIED[axis])
    for name in FIXED[axis]:
        mask &= getattr(one, name) == getattr(other, name)
    if axis is Axis.PADDING_SIDE:
        mask &= one.padded & other.padded
    return np.asarray(mask, np.bool_)


def _varied(
    axis: Axis, one: Placement, other: Placement, mask: NDArray[np.bool_]
) -> dict[int | str, None]:
    """Return what was compared: the numbers that vary, or else the two compositions."""
    if axis not in {Axis.NUM_ROWS, Axis.PADDED_WIDTH}:
        return {f"{one.name} / {other.name}": None}
    values = (getattr(p, VARIED[axis])[mask] for p in (one, other))
    return dict.fromkeys(np.unique(np.concatenate(list(values))).tolist())


def _words(axis: Axis, varied: Sequence[int | str]) -> tuple[str, ...]:
    """Say in a few words what was compared."""
    if axis is Axis.NUM_ROWS:
        return tuple(f"{part} rows" for part in _ranges(sorted(map(int, varied))))
    if axis is Axis.PADDED_WIDTH and varied:
        widths = sorted(map(int, varied))
        return (f"{len(widths)} widths from {widths[0]} to {widths[-1]} tokens",)
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
