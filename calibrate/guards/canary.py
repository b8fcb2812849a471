"""Whether the guards would see a fault: some are planted in copies of the scores just measured.

Planted in both precisions, since a fault of logic is in both: two rows' scores exchanged in one
composition, as a stale output buffer would; one decision shifted by a small share of the spread;
and the measured scores themselves as their own reference, since a harness compared with itself
proves nothing. A guard that passes one of them is blind on these scores, and nothing is blessed.

The detection limit says how small a shift is still caught. Not known here: faults that move
nothing.
"""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from calibrate.guards.distinct_arms import Arm, distinct_arms
from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of
from calibrate.guards.movements import RoundingEvidence
from calibrate.guards.rounding import allowed_movements, decisions_beyond
from calibrate.sensitivity import Indices, Scores, decision_ranges
from harness.errors import InvalidRecordError
from harness.records import GuardFinding
from harness.records.document import Record

__all__ = ["CanaryEvidence", "DetectionLimit", "canary", "detection_limit"]

SHIFT = 0.01
"""The planted shift, as a share of the spread: far below what changes a choice between branches."""
HALVINGS = 60
"""Shifts that are tried for the limit, from the spread downwards."""


class CanaryEvidence(Record, frozen=True, kw_only=True, eq=False):
    """The scores in which faults are planted."""

    movements: RoundingEvidence
    """What the rounding guard was given."""
    low_scores: Scores
    """`[compositions, rows]` in the low precision."""
    reference_scores: Scores
    """`[compositions, rows]`, the same rows; its compositions need not be all of the others'."""
    decision_of_row: Indices
    """`[rows]`."""
    measured: Arm
    """The low precision, as `distinct_arms` was given it."""
    reference: Arm
    """The reference, likewise."""

    def __post_init__(self) -> None:
        """All scores are over the same rows."""
        for scores in (self.low_scores, self.reference_scores):
            if scores.ndim != 2 or scores.shape[1:] != self.decision_of_row.shape:
                raise InvalidRecordError(f"scores are `[compositions, rows]`: {scores.shape}")

    @property
    def spread(self) -> float:
        """Interquartile range of the scores in the reference."""
        low, high = np.quantile(self.reference_scores[0], (0.25, 0.75))
        return float(high - low)


class DetectionLimit(Record, frozen=True, kw_only=True):
    """The smallest shift of one decision in one composition that is caught; inf where none is."""

    every: float
    """Caught in whichever decision it is, in the score unit."""
    half: float
    """Caught in half of the decisions."""


def canary(evidence: CanaryEvidence) -> GuardFinding:
    """Return whether the guards refuse every planted fault."""
    if evidence.decision_of_row.size == 0:
        return finding(GuardName.CANARY, [NOTHING_COMPARED], "")
    spread = evidence.spread
    if not spread > 0:
        return finding(GuardName.CANARY, ["scores do not differ: there is nothing to plant"], "")
    problems = [*_rounding_problems(evidence), *_itself(evidence)]
    limit = detection_limit(evidence)
    summary = (
        f"planted and looked for: two rows exchanged in one composition, a shift of one decision "
        f"by {SHIFT * spread:.3g} ({SHIFT:.0%} of the spread, {spread:.3g}), the measured scores "
        f"as their own reference; a shift in one composition is caught from {limit.every:.3g} "
        f"({limit.every / spread:.2g} of the spread) in every decision, from {limit.half:.3g} in "
        f"half of them"
    )
    return finding(GuardName.CANARY, problems, summary)


def detection_limit(evidence: CanaryEvidence) -> DetectionLimit:
    """Return how small a shift is still caught, to a factor of 2.

    Each decision is shifted on its own, in the last composition, in its first row, by the spread
    and by its halves.
    """
    found, movements = evidence.movements, evidence.movements.low_movements
    first = np.unique(evidence.decision_of_row, return_index=True)[1]
    limits = np.full(movements.shape, np.inf)
    caught = np.ones(movements.shape, np.bool_)
    for shift in evidence.spread * 0.5 ** np.arange(HALVINGS):
        low, reference = _moved(evidence, first, np.full(first.shape, shift))
        caught &= reference > allowed_movements(found, low)
        limits[caught] = shift
        if not caught.any():
            break
    return DetectionLimit(every=float(limits.max()), half=float(np.quantile(limits, 0.5)))


def _rounding_problems(evidence: CanaryEvidence) -> Iterator[str]:
    for words, rows, by in _plants(evidence):
        low, reference = _moved(evidence, rows, by)
        planted = replace(evidence.movements, low_movements=low, reference_movements=reference)
        owners = np.unique(evidence.decision_of_row[rows])
        missed = owners[~np.isin(owners, decisions_beyond(planted))]
        if missed.size:
            names = evidence.movements.names
            listed = ", ".join(name_of(at, names) for at in missed)
            yield f"planted and not caught by rounding: {words}, decision {listed}"


def _plants(evidence: CanaryEvidence) -> Iterator[tuple[str, Indices, Scores]]:
    """Yield what is planted in words, in which rows, and by how much each of them moves."""
    last = evidence.reference_scores[-1]
    order = np.argsort(last, kind="stable")
    one, other = order[[order.size // 4, order.size * 3 // 4]]
    apart = last[other] - last[one]
    yield "two rows exchanged", np.array([one, other]), np.array([apart, -apart])
    shifted = evidence.spread * SHIFT
    middle = order[order.size // 2 : order.size // 2 + 1]
    yield f"a shift by {shifted:.3g}", middle, np.array([shifted])


def _moved(evidence: CanaryEvidence, rows: Indices, by: Scores) -> tuple[Scores, Scores]:
    """Return the movements in both precisions when `rows` of the last composition move.

    Decisions that are beyond as it is are judged in float64, where they lie still: they do here.
    """
    low, reference = evidence.low_scores.copy(), evidence.reference_scores.copy()
    still = np.isin(evidence.decision_of_row, decisions_beyond(evidence.movements))
    reference[:, still] = reference[0, still]
    for planted in (low, reference):
        planted[-1, rows] += by
    owners = evidence.decision_of_row
    return decision_ranges(low, owners), decision_ranges(reference, owners)


def _itself(evidence: CanaryEvidence) -> list[str]:
    """Give the measured scores as the reference, under the reference's own claims."""
    impostor = replace(evidence.reference, scores=evidence.measured.scores.copy())
    if not distinct_arms(evidence.measured, impostor).passed:
        return []
    return ["planted and not caught by distinct_arms: the measured scores as their own reference"]
