"""Whether movement is rounding: it must shrink with the unit roundoff, in size or in rate.

Not known here: a bug that moves scores in the low precision only, or by less than the share of its
rounding noise that the evidence states.
"""

import math

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of, some_of
from calibrate.guards.movements import RoundingEvidence
from calibrate.guards.shrink import shrink_estimate
from calibrate.sensitivity import Indices, Scores
from harness.conditions.precision import unit_roundoff
from harness.errors import InvalidRecordError
from harness.records import GuardFinding, PrecisionName
from harness.records.document import Record

__all__ = ["Appeal", "allowed_movements", "decisions_beyond", "rounding"]

NOT_HEARD = "no appeal was heard"


class Appeal(Record, frozen=True, kw_only=True, eq=False):
    """What decisions beyond the boundary did in float64, over the same compositions."""

    decisions: Indices
    """`[heard]`: their numbers."""
    movements: Scores
    """`[heard]`: movement in float64."""
    distances: Scores
    """`[heard]`: how near the reference comes to float64, in the composition where it is nearest;
    of the decision's rows the furthest."""

    def __post_init__(self) -> None:
        """All arrays are over the decisions that are heard."""
        shapes = {array.shape for array in (self.decisions, self.movements, self.distances)}
        if len(shapes) != 1 or self.movements.ndim != 1:
            raise InvalidRecordError(f"an appeal's arrays are not all `[heard]`: {sorted(shapes)}")


def rounding(
    evidence: RoundingEvidence,
    *,
    seed: int,
    confidence: float = 0.95,
    appeal: Appeal | None = None,
    not_heard: str = NOT_HEARD,
) -> GuardFinding:
    """Return whether the movement in the reference precision is as small as rounding makes it.

    To first order a computed score is off by amplification x unit roundoff x magnitude, and the
    amplification belongs to the computation, not to the precision (N. J. Higham, "Accuracy and
    Stability of Numerical Algorithms", 2nd ed. 2002, sections 1.6, 3.1 and 3.4). So from the low
    to the reference precision movement that is rounding shrinks by about r = u_ref / u_low, and
    movement that is logic by about 1. The boundary is the midpoint of the two in logarithms,
    sqrt(r), the same factor from either.

    What shrinks is a decision's noise in the low precision, and its movement alone is a poor
    measure of that: on a coarse lattice most are exactly 0, over few compositions a range is small
    by luck, and where sums are kept in float32 only the rounding of their results shows. The noise
    is therefore taken as the geometric mean of the movement and of a quantum, and never less than
    the quantum: the larger of one rounding of the score and the median of the movements that are
    not 0. One decision that moves in the reference by more than sqrt(r) x its noise is beyond.

    That holds for a smooth computation. One that branches on a comparison of computed numbers
    (which expert, which step of a quantiser) jumps where the two nearly tie, and a jump is as large
    in every precision: its rate shrinks, not its size. Two numbers computed to within c x u change
    places only when they lie within 2 c x u of each other, and the share of gaps so small is, for
    gaps with a bounded density, in proportion to u. So from float32 to float64 jumps get rarer by
    2^29: a decision that jumped in float32 for a near tie jumps in float64 with a chance of that
    order, and what still moves there is logic. And a reference that jumps for a near tie is, in
    some composition, on float64's side of it, hence near it; one that is near it nowhere is no
    finer arithmetic than the low precision. `appeal` holds what the decisions beyond did in
    float64, and they are judged by these two; without one, beyond is refused.

    A float64 model of today's libraries keeps islands of float32 (norms, rotary embeddings,
    routers' softmax). There a rounding flips rarely, but by a float32 step: rate, not size,
    shrinks. Against float64 the boundary is therefore never below the noise that float32 would
    have, u_32 / u_low x noise.

    Blind spot: a bug that moves scores by less than the boundary; the evidence states it.
    """
    num = evidence.low_movements.size
    if num == 0:
        return finding(GuardName.ROUNDING, [NOTHING_COMPARED], "")
    if not _all_movements(evidence):
        return finding(GuardName.ROUNDING, ["a movement or magnitude is not finite and >= 0"], "")
    estimate = shrink_estimate(evidence, seed=seed, confidence=confidence)
    summary = _summary(evidence, str(estimate or f"nothing moved in {evidence.low}"))
    beyond = decisions_beyond(evidence)
    if not beyond.size:
        return finding(GuardName.ROUNDING, [], summary)
    if appeal is None:
        return finding(GuardName.ROUNDING, [_refusal(evidence, beyond), not_heard], summary)
    stays = beyond[~np.isin(beyond, _acquitted(evidence, appeal))]
    if stays.size:
        problems = [_refusal(evidence, stays), _upheld(evidence, appeal, stays)]
        return finding(GuardName.ROUNDING, problems, summary)
    return finding(GuardName.ROUNDING, [], f"{summary}; {_acquittal(evidence, beyond, appeal)}")


def decisions_beyond(evidence: RoundingEvidence) -> Indices:
    """Return the decisions that move in the reference by more than `rounding` allows, worst first.

    All arrays must hold finite numbers >= 0.
    """
    movements = evidence.reference_movements
    wrong = np.flatnonzero(movements > allowed_movements(evidence))
    return wrong[np.argsort(-movements[wrong], kind="stable")]


def allowed_movements(evidence: RoundingEvidence, low: Scores | None = None) -> Scores:
    """Return how far each decision may move in the reference, `[decisions]`; see `rounding`.

    `low`, if given, stands for the movements in the low precision, one decision at a time: what the
    others did stays as it is in `evidence`.
    """
    own = evidence.low_movements if low is None else low
    return _boundary(evidence, evidence.reference) * _noise(evidence, own)


def _all_movements(evidence: RoundingEvidence) -> bool:
    arrays = (evidence.low_movements, evidence.reference_movements, evidence.magnitudes)
    return all(bool((np.isfinite(a) & (a >= 0)).all()) for a in arrays)


def _boundary(evidence: RoundingEvidence, reference: PrecisionName) -> float:
    low = unit_roundoff(evidence.low)
    midpoint = math.sqrt(unit_roundoff(reference) / low)
    if reference is not PrecisionName.FLOAT64:
        return midpoint
    return max(midpoint, unit_roundoff(PrecisionName.FLOAT32) / low)


def _noise(evidence: RoundingEvidence, low: Scores) -> Scores:
    """Return the noise of each decision in the low precision, `[decisions]`; see `rounding`."""
    moved = evidence.low_movements[evidence.low_movements > 0]
    typical = np.median(moved) if moved.size else 0.0
    magnitudes = np.maximum(evidence.magnitudes, evidence.magnitudes.mean())
    quantum = np.maximum(unit_roundoff(evidence.low) * magnitudes, typical)
    return np.asarray(np.sqrt(quantum * np.maximum(low, quantum)))


def _heard_allowed(evidence: RoundingEvidence, decisions: Indices) -> Scores:
    noise = _noise(evidence, evidence.low_movements)
    return _boundary(evidence, PrecisionName.FLOAT64) * noise[decisions]


def _acquitted(evidence: RoundingEvidence, appeal: Appeal) -> Indices:
    still = appeal.movements <= _heard_allowed(evidence, appeal.decisions)
    near = appeal.distances <= allowed_movements(evidence)[appeal.decisions]
    return appeal.decisions[still & near]


def _refusal(evidence: RoundingEvidence, stays: Indices) -> str:
    allowed = allowed_movements(evidence)
    named = some_of(
        f"decision {name_of(i, evidence.names)} by {evidence.low_movements[i]:.3g} in "
        f"{evidence.low} and {evidence.reference_movements[i]:.3g} in {evidence.reference}, "
        f"where rounding allows {allowed[i]:.3g}"
        for i in stays
    )
    return (
        f"movement does not shrink with precision, so it is logic and not rounding: "
        f"{stays.size} of {allowed.size} decisions, {named}{_coupling(evidence, stays)}"
    )


def _coupling(evidence: RoundingEvidence, stays: Indices) -> str:
    """Say so when neighbours do it: then it is no matter of shapes."""
    if not evidence.companion_movements.size:
        return ""
    coupled = evidence.companion_movements[stays] > allowed_movements(evidence)[stays]
    if not coupled.any():
        return ""
    return (
        f"; {coupled.sum()} of them by up to {evidence.companion_movements[stays].max():.3g} when "
        f"only their neighbours' content changes at a fixed shape: the score depends on who else "
        f"is in the batch (routing with a capacity, a scale or a normalisation shared by the batch)"
    )


def _upheld(evidence: RoundingEvidence, appeal: Appeal, stays: Indices) -> str:
    mine = np.isin(appeal.decisions, stays)
    moves = mine & ~(appeal.movements <= _heard_allowed(evidence, appeal.decisions))
    told = [f"appeal: of {appeal.decisions.size} heard"]
    if moves.any():
        told.append(f"{moves.sum()} still move in float64, by up to {appeal.movements.max():.3g}")
    if (apart := mine & ~moves).any():
        told.append(
            f"{apart.sum()} do not, but {evidence.reference} is nowhere nearer to float64 than "
            f"{appeal.distances[apart].max():.3g}: it computes in a coarser precision, or goes "
            f"another way"
        )
    if unheard := stays.size - mine.sum():
        told.append(f"{unheard} others were not heard")
    return ", ".join(told)


def _acquittal(evidence: RoundingEvidence, beyond: Indices, appeal: Appeal) -> str:
    named = some_of(
        f"{name_of(i, evidence.names)} by {evidence.reference_movements[i]:.3g}" for i in beyond
    )
    allowed = _heard_allowed(evidence, appeal.decisions)
    return (
        f"appeal: {beyond.size} decisions are beyond that in {evidence.reference} ({named}) and "
        f"move in float64 by at most {appeal.movements.max():.3g}, where rounding allows "
        f"{allowed.min():.3g}: near ties (expert routing, a quantiser's steps), which rounding "
        f"flips more rarely in a finer precision, and by as much"
    )


def _summary(evidence: RoundingEvidence, shrinks: str) -> str:
    low, reference = evidence.low_movements, evidence.reference_movements
    return (
        f"{low.size} decisions, {evidence.low} against {evidence.reference}: "
        f"{np.count_nonzero(low)} and {np.count_nonzero(reference)} moved, by at most "
        f"{low.max():.3g} and {reference.max():.3g}; {shrinks}; a movement in "
        f"{evidence.reference} below {np.median(allowed_movements(evidence)):.3g} (median) passes "
        f"unseen"
    )
