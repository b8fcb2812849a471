"""Sensitivity: how far scores move from one composition to another, per decision and per axis.

Rules: the decision is the unit of evidence, and its movement is the range of its worst branch;
"moved" means a bit changed, so -0.0 against 0.0 has moved, by a distance of 0; a non-finite score
is refused wherever it stands; nothing compared is never "nothing moved"; a vector compared with
itself is refused.

Scores are float64 `[rows]`, one row a branch, and `decision_of_row` `[rows]` holds the number of
the decision that each row belongs to. Not known here: which settings make compositions differ;
that is the plan's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrate.statistics import rate_upper
from harness.errors import GuardRefusalError, InsufficientEvidenceError, InvalidRecordError
from harness.records import AxisFinding, AxisStatus
from harness.records.document import Record

__all__ = [
    "Indices",
    "MovementQuantiles",
    "Pair",
    "Scores",
    "axis_finding",
    "changed_winners",
    "decision_magnitudes",
    "decision_ranges",
    "moved_bits",
    "movement_quantiles",
    "winner_changes",
    "winner_gaps",
]

Scores = NDArray[np.float64]
"""Scores or movements, float64."""
Indices = NDArray[np.int64]
"""`[rows]`: the decision that each row belongs to."""
Pair = tuple[Scores, Scores]
"""Two score vectors over the same rows."""


class MovementQuantiles(Record, frozen=True, kw_only=True):
    """How movements are distributed over decisions; every quantile is a movement that was seen."""

    num_decisions: int
    """Decisions measured."""
    num_moved: int
    """Decisions that moved by more than 0."""
    mean: float
    """Mean movement, in the score unit."""
    median: float
    """Half of the decisions moved no further."""
    p90: float
    """Nine in ten moved no further."""
    p99: float
    """Ninety-nine in a hundred moved no further."""
    largest: float
    """None moved further."""


def decision_ranges(scores: Scores, decision_of_row: Indices) -> Scores:
    """Return how far each decision moved, `[decisions]`.

    `scores` is `[compositions, rows]`. A row's movement is the range of its scores over the
    compositions, a decision's the largest of its rows'. Raises InsufficientEvidenceError for
    fewer than two compositions or no rows, and InvalidRecordError for a score that is not finite
    or a decision without a row.
    """
    _check_matrix(scores, decision_of_row)
    require_finite(scores, decision_of_row)
    return _worst_row(np.ptp(scores, axis=0), decision_of_row)


def decision_magnitudes(scores: Scores, decision_of_row: Indices) -> Scores:
    """Return the largest absolute score of each decision, `[decisions]`, from `[rows]`."""
    _check_rows(scores, decision_of_row)
    require_finite(scores[np.newaxis], decision_of_row)
    return _worst_row(np.abs(scores), decision_of_row)


def moved_bits(left: Scores, right: Scores) -> NDArray[np.bool_]:
    """Return which scores differ in at least one bit, `[rows]`: -0.0 differs from 0.0."""
    as_bits = (np.ascontiguousarray(side, np.float64).view(np.int64) for side in (left, right))
    return np.not_equal(*as_bits)


def axis_finding(
    axis: str,
    pairs: Sequence[Pair],
    decision_of_row: Indices,
    settings: Sequence[str],
    confidence: float,
) -> AxisFinding:
    """Return what the pairs that differ in `axis` only showed; no pairs: not exercised.

    Every array is `[rows]` over the rows of `decision_of_row`, which need not cover all decisions:
    rows that are comparable in different pairs may be joined into one pair. A decision has moved
    when any of its scores moved a bit in any pair. Raises InsufficientEvidenceError for no rows,
    InvalidRecordError for a score that is not finite, GuardRefusalError for a vector that is
    compared with itself.
    """
    if not pairs:
        return _not_exercised(axis, settings)
    for left, right in pairs:
        _check_pair(axis, left, right, decision_of_row)
    moved = np.stack([moved_bits(left, right) for left, right in pairs])
    num_decisions = np.unique(decision_of_row).size
    num_moved = np.unique(decision_of_row[moved.any(axis=0)]).size
    return AxisFinding(
        axis=axis,
        status=AxisStatus.MOVED if num_moved else AxisStatus.INVARIANT,
        settings=tuple(settings),
        num_decisions=num_decisions,
        num_decisions_moved=num_moved,
        moved_rate_upper=rate_upper(num_moved, num_decisions, confidence),
        num_scores=moved.size,
        num_scores_moved=int(moved.sum()),
        max_movement=max(float(np.abs(left - right).max()) for left, right in pairs),
    )


def winner_changes(left: Scores, right: Scores, decision_of_row: Indices) -> int:
    """Return the number of decisions whose best row differs; of equal rows the first wins."""
    return int(changed_winners(left, right, decision_of_row).sum())


def changed_winners(left: Scores, right: Scores, decision_of_row: Indices) -> NDArray[np.bool_]:
    """Return which decisions have another best row, `[decisions]`; of equal rows the first wins."""
    for side in (left, right):
        _check_rows(side, decision_of_row)
        require_finite(side[np.newaxis], decision_of_row)
    changed = _winners(left, decision_of_row) != _winners(right, decision_of_row)
    return np.asarray(changed, np.bool_)


def winner_gaps(scores: Scores, decision_of_row: Indices) -> Scores:
    """Return how far the best row leads the next, `[decisions]`; infinite for a single row."""
    _check_rows(scores, decision_of_row)
    require_finite(scores[np.newaxis], decision_of_row)
    best = _winners(scores, decision_of_row)
    others = scores.copy()
    others[best] = -np.inf
    runner_up = np.full(best.size, -np.inf)
    np.maximum.at(runner_up, decision_of_row, others)
    return np.asarray(scores[best] - runner_up)


def movement_quantiles(movements: Scores) -> MovementQuantiles:
    """Return the distribution of `movements`, `[decisions]`."""
    if movements.size == 0:
        raise InsufficientEvidenceError("comparison over zero items: no movement was measured")
    require_finite(movements[np.newaxis], np.arange(movements.size))
    median, p90, p99 = np.quantile(movements, (0.5, 0.9, 0.99), method="inverted_cdf")
    return MovementQuantiles(
        num_decisions=movements.size,
        num_moved=int((movements > 0).sum()),
        mean=float(movements.mean()),
        median=float(median),
        p90=float(p90),
        p99=float(p99),
        largest=float(movements.max()),
    )


def require_finite(scores: Scores, decision_of_row: Indices) -> None:
    """Raise InvalidRecordError unless every score of `[compositions, rows]` is finite."""
    wrong = np.argwhere(~np.isfinite(scores))
    if len(wrong):
        composition, row = wrong[0]
        raise InvalidRecordError(
            f"{len(wrong)} of {scores.size} scores are not finite, the first in composition "
            f"{composition}, row {row} (decision {decision_of_row[row]}): "
            f"{scores[composition, row]}; a row without one real token, or an overflow, gives this"
        )


def _not_exercised(axis: str, settings: Sequence[str]) -> AxisFinding:
    return AxisFinding(
        axis=axis,
        status=AxisStatus.NOT_EXERCISED,
        settings=tuple(settings),
        num_decisions=0,
        num_decisions_moved=0,
        moved_rate_upper=1.0,
        num_scores=0,
        num_scores_moved=0,
        max_movement=0.0,
    )


def _winners(scores: Scores, decision_of_row: Indices) -> Indices:
    best_first = np.lexsort((-scores, decision_of_row))  # stable: of equal rows the first
    _, first = np.unique(decision_of_row[best_first], return_index=True)
    return best_first[first]


def _worst_row(values: Scores, decision_of_row: Indices) -> Scores:
    _check_dense(decision_of_row)
    worst = np.zeros(decision_of_row.max() + 1)
    np.maximum.at(worst, decision_of_row, values)
    return worst


def _check_matrix(scores: Scores, decision_of_row: Indices) -> None:
    if scores.ndim != 2:
        raise InvalidRecordError(f"scores are `[compositions, rows]`, found shape {scores.shape}")
    if len(scores) < 2:
        raise InsufficientEvidenceError(
            f"comparison over zero items: {len(scores)} composition(s), and a movement needs two"
        )
    _check_rows(scores[0], decision_of_row)


def _check_dense(decision_of_row: Indices) -> None:
    missing = np.flatnonzero(np.bincount(decision_of_row) == 0)
    if missing.size:
        raise InvalidRecordError(f"{missing.size} decisions have no row, the first: {missing[0]}")


def _check_rows(scores: Scores, decision_of_row: Indices) -> None:
    if decision_of_row.size == 0 or scores.size == 0:
        raise InsufficientEvidenceError("comparison over zero items: no rows were scored")
    if scores.shape != decision_of_row.shape or decision_of_row.ndim != 1:
        raise InvalidRecordError(
            f"scores {scores.shape} and decision_of_row {decision_of_row.shape} must both be "
            f"`[rows]` over the same rows"
        )
    if decision_of_row.min() < 0:
        raise InvalidRecordError("decisions are numbered from 0; found a negative number")


def _check_pair(axis: str, left: Scores, right: Scores, decision_of_row: Indices) -> None:
    if left is right or np.shares_memory(left, right):
        raise GuardRefusalError(
            f"distinct_arms: both arms of a comparison of {axis!r} are the same path: one score "
            f"vector was compared with itself; score each arm on its own"
        )
    for side in (left, right):
        _check_rows(side, decision_of_row)
    require_finite(np.stack((left, right)), decision_of_row)
