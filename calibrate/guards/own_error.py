"""Whether the distance from float64 is what rounding gives: a fault of the low precision alone.

The other guards compare a build with itself in other batches, and a fault that is the same in all
of them moves nothing. If it is in the low precision only, it is seen here.

Not known here: a fault that float32 and float64 share; one in fewer than half of the decisions, or
of less than the factor that the evidence states; any fault of float32 itself, from which there is
nothing left to scale; any fault of a build that no batch moves, since there routing that rounding
flips cannot be told from it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of, some_of
from calibrate.sensitivity import Scores, movement_quantiles
from calibrate.statistics import rate_upper
from harness.conditions.precision import unit_roundoff
from harness.errors import InvalidRecordError
from harness.records import GuardFinding, OwnError, PrecisionName
from harness.records.document import Record

__all__ = ["OwnErrorEvidence", "own_error", "own_error_of", "own_error_unmeasured"]

FACTOR = 4.0
"""How far beyond what rounding predicts a decision must be: healthy models lie at 0.1 to 0.5 of it,
since a low precision's sums are kept in float32."""


class OwnErrorEvidence(Record, frozen=True, kw_only=True, eq=False):
    """Distances of the same decisions, each row alone, from a float64 forward."""

    low: PrecisionName
    """The precision that is calibrated."""
    low_errors: Scores
    """`[decisions]`: distance of the low precision, the worst branch's."""
    low_movements: Scores
    """`[decisions]`: movement in the low precision, over all compositions."""
    magnitudes: Scores
    """`[decisions]`: largest absolute score."""
    reference: PrecisionName | None = None
    """A precision between the two; None when there is none."""
    reference_errors: Scores = np.zeros(0)
    """`[decisions]`: its distance; empty when there is none."""
    names: tuple[str, ...] = ()
    """Decision ids for the evidence; empty to number them."""

    def __post_init__(self) -> None:
        """All arrays are over the same decisions."""
        arrays = [self.low_errors, self.low_movements, self.magnitudes]
        if self.reference is not None:
            arrays.append(self.reference_errors)
        shapes = {array.shape for array in arrays}
        if len(shapes) != 1 or self.low_errors.ndim != 1:
            raise InvalidRecordError(f"the arrays are not all `[decisions]`: {sorted(shapes)}")


def own_error_of(evidence: OwnErrorEvidence) -> OwnError:
    """Return how the distances are distributed, and how large batch movement is beside them."""
    errors = movement_quantiles(evidence.low_errors)
    movement = movement_quantiles(evidence.low_movements)
    return OwnError(
        num_decisions=errors.num_decisions,
        median=errors.median,
        p99=errors.p99,
        largest=errors.largest,
        movement_ratio=movement.median / errors.median if errors.median else None,
    )


def own_error(evidence: OwnErrorEvidence, *, confidence: float = 0.95) -> GuardFinding:
    """Return whether the low precision is no further from float64 than rounding puts it.

    Rounding errors are in proportion to the unit roundoff, to first order and with the same
    amplification (Higham 2002, section 3.4), so the float32 distance x u_low / u_32 is what to
    expect at most: the median over decisions, each not below one rounding of its score. A decision
    is beyond when it is further than `FACTOR` x that, and further than `FACTOR` x as far as batches
    move any of the decisions: routing that rounding flips goes far too, but also from one batch to
    another.

    The reference, too, is measured: if rounding, it is nearer to float64 than the low precision by
    the ratio r of the unit roundoffs, if it is secretly the same arithmetic, by 1; the boundary is
    sqrt(r) again.

    Refused only when more than half of the decisions are beyond, with confidence (Clopper and
    Pearson 1934): a median of what rounding gives cannot do that.
    """
    num = evidence.low_errors.size
    if num == 0:
        return finding(GuardName.OWN_ERROR, [NOTHING_COMPARED], "")
    scale = _scale(evidence)
    if evidence.reference is None:
        told = f"nothing lies between {evidence.low} and float64 to scale from: not judged"
        return finding(GuardName.OWN_ERROR, [], f"{scale}; {told}")
    fine = _Side(evidence.reference, evidence.reference_errors, _fine_allowed(evidence))
    sides = [fine]
    summary = f"{scale}; {evidence.reference} is {np.median(fine.errors):.3g} from it"
    if evidence.low_movements.any():
        sides.append(_Side(evidence.low, evidence.low_errors, _low_allowed(evidence)))
        summary += (
            f", from which rounding predicts at most {_expected(evidence):.3g}; a fault of the low "
            f"precision alone that moves scores by less than {_low_allowed(evidence)[0]:.3g}, or "
            f"fewer than half of the decisions, passes unseen"
        )
    else:
        summary += f"; no batch moves {evidence.low}: a fault and flipped routing look alike there"
    problems = [p for side in sides if (p := _problem(side, evidence.names, confidence))]
    return finding(GuardName.OWN_ERROR, problems, summary)


def own_error_unmeasured(why: str) -> GuardFinding:
    """Return that nothing was measured: a finding that refuses nothing, and says so."""
    return finding(GuardName.OWN_ERROR, [], f"not measured: {why}")


class _Side(NamedTuple):
    """One precision's distances, and what is allowed."""

    precision: PrecisionName
    errors: Scores
    allowed: Scores


def _problem(side: _Side, names: Sequence[str], confidence: float) -> str | None:
    """Say so when more than half of the decisions are beyond, with confidence."""
    beyond, num = np.flatnonzero(side.errors > side.allowed), side.errors.size
    lower = 1 - rate_upper(num - beyond.size, num, confidence)
    if lower <= 0.5:
        return None
    named = some_of(f"decision {name_of(i, names)} by {side.errors[i]:.3g}" for i in beyond)
    return (
        f"{beyond.size} of {num} decisions are further from float64 in {side.precision} than "
        f"rounding explains ({named}), where {np.median(side.allowed):.3g} (median) is allowed: at "
        f"{confidence:.0%} confidence that is more than {lower:.0%} of all"
    )


def _fine_allowed(evidence: OwnErrorEvidence) -> Scores:
    """Return how far the reference may be: the midpoint between rounding and the same path."""
    if evidence.reference is None:
        raise InvalidRecordError("there is no reference to judge")
    coarse = unit_roundoff(evidence.low)
    midpoint = math.sqrt(unit_roundoff(evidence.reference) / coarse)
    return np.asarray(midpoint * np.maximum(evidence.low_errors, coarse * evidence.magnitudes))


def _expected(evidence: OwnErrorEvidence) -> float:
    """Return the distance in the low precision that the reference's distance predicts."""
    if evidence.reference is None:
        raise InvalidRecordError("there is no distance to scale from")
    fine = unit_roundoff(evidence.reference)
    errors = np.maximum(evidence.reference_errors, fine * evidence.magnitudes)
    return float(np.median(errors)) * unit_roundoff(evidence.low) / fine


def _low_allowed(evidence: OwnErrorEvidence) -> Scores:
    allowed = FACTOR * max(_expected(evidence), float(evidence.low_movements.max()))
    return np.full(evidence.low_errors.shape, allowed)


def _scale(evidence: OwnErrorEvidence) -> str:
    """Say how large batch movement is beside the build's own error."""
    found = own_error_of(evidence)
    beside = "" if found.movement_ratio is None else f", {found.movement_ratio:.3g} x that"
    return (
        f"{found.num_decisions} decisions alone: {evidence.low} is {found.median:.3g} from float64 "
        f"(median; largest {found.largest:.3g}), batches move them by "
        f"{np.median(evidence.low_movements):.3g}{beside}"
    )
