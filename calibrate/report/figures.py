"""What the charts of a report show, as numbers: pure, from the evidence about one arm."""

import re
from collections.abc import Sequence

import numpy as np

from calibrate.axes import AxisRows
from calibrate.evidence import ArmEvidence
from calibrate.sensitivity import Scores, changed_winners, decision_ranges, winner_gaps
from calibrate.statistics import Rate
from harness.records.document import Record

__all__ = [
    "AxisSpread",
    "BatchSizes",
    "WinnerGaps",
    "axis_spreads",
    "batch_sizes",
    "detection_curve",
    "winner_leads",
]

MOST_REPLAYS = 100
"""Replays that a detection curve shows, at most."""

BY_ROWS = re.compile(r"rows-(\d+)")
"""Compositions that differ in the number of rows, by name."""


class AxisSpread(Record, frozen=True, kw_only=True):
    """How far decisions move along one axis."""

    axis: str
    """The axis."""
    median: float
    """Half of the decisions compared moved no further, in the score unit."""
    p99: float
    """Ninety-nine in a hundred moved no further."""
    largest: float
    """None moved further."""


class BatchSizes(Record, frozen=True, kw_only=True):
    """How far decisions move from each row alone, at each batch size."""

    rows: tuple[int, ...]
    """Rows in a batch, ascending."""
    medians: tuple[float, ...]
    """Median movement, `[sizes]`, in the score unit."""
    p99s: tuple[float, ...]
    """99 % quantile, `[sizes]`."""
    largest: tuple[float, ...]
    """Largest movement, `[sizes]`."""


class WinnerGaps(Record, frozen=True, kw_only=True):
    """Each decision's lead, how far it moves, and whether its winner ever changes."""

    leads: tuple[float, ...]
    """Best score less the next, in the first composition, `[decisions]`."""
    movements: tuple[float, ...]
    """Movement over all compositions, `[decisions]`."""
    changed: tuple[bool, ...]
    """Whether some composition has another winner, `[decisions]`."""

    @property
    def num_changed(self) -> int:
        """Decisions whose winner changes."""
        return sum(self.changed)

    @property
    def widest_changed(self) -> float | None:
        """Largest lead that was lost; None when none was."""
        return max((g for g, c in zip(self.leads, self.changed, strict=True) if c), default=None)


def axis_spreads(axes: Sequence[AxisRows]) -> tuple[AxisSpread, ...]:
    """Return the spread along every axis that was exercised."""
    return tuple(_spread(rows) for rows in axes if rows.left.size)


def batch_sizes(arm: ArmEvidence) -> BatchSizes | None:
    """Return the movements against the batch size; None where one size alone was measured."""
    scores, owners = arm.measured.scores, arm.measured.decision_of_row
    sized = sorted((int(m[1]), name) for name in scores if (m := BY_ROWS.fullmatch(name)))
    if "solo" not in scores or not sized:
        return None
    moved = [decision_ranges(np.stack([scores["solo"], scores[name]]), owners) for _, name in sized]
    quantiles = [np.quantile(m, (0.5, 0.99, 1.0), method="inverted_cdf").tolist() for m in moved]
    medians, p99s, largest = zip(*quantiles, strict=True)
    return BatchSizes(
        rows=tuple(size for size, _ in sized), medians=medians, p99s=p99s, largest=largest
    )


def winner_leads(arm: ArmEvidence) -> WinnerGaps | None:
    """Return leads and movements; None where decisions have a single branch."""
    owners = arm.measured.decision_of_row
    first, *rest = arm.measured.scores.values()
    leads = winner_gaps(first, owners)
    several = np.isfinite(leads)
    if not several.any():
        return None
    changed = np.any([changed_winners(first, other, owners) for other in rest], axis=0)
    return WinnerGaps(
        leads=tuple(leads[several].tolist()),
        movements=tuple(arm.measured.movements()[several].tolist()),
        changed=tuple(changed[several].tolist()),
    )


def detection_curve(rate: Rate) -> Scores:
    """Return the chance that one of the first 1, 2, ... replays is an event, `[replays]`.

    The replays are drawn without replacement from those that were made: 1 less the hypergeometric
    probability of no event.
    """
    drawn = np.arange(min(MOST_REPLAYS, rate.num_trials))
    rest = rate.num_trials - drawn
    return np.asarray(1 - np.cumprod(np.maximum(rest - rate.num_events, 0) / rest))


def _spread(rows: AxisRows) -> AxisSpread:
    _, owners = np.unique(rows.decision_of_row, return_inverse=True)
    moved = decision_ranges(np.stack([rows.left, rows.right]), owners)
    median, p99, largest = np.quantile(moved, (0.5, 0.99, 1.0), method="inverted_cdf").tolist()
    return AxisSpread(axis=rows.axis, median=median, p99=p99, largest=largest)
