"""Whether movement is rounding: it must shrink with the unit roundoff.

Not known here: a bug that moves scores in the low precision only, or by less than the share of its
rounding noise that the evidence states.
"""

import math

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of, some_of
from calibrate.sensitivity import Scores
from harness.conditions.precision import unit_roundoff
from harness.errors import ConfigError, InvalidRecordError
from harness.records import GuardFinding, PrecisionName
from harness.records.document import Record

__all__ = ["RoundingEvidence", "ShrinkEstimate", "rounding", "shrink_estimate"]

NUM_RESAMPLES = 1000  # ends of a 95% interval then rest on 25 resamples each


class RoundingEvidence(Record, frozen=True, kw_only=True, eq=False):
    """The same decisions and compositions in two precisions, from the same stored weights."""

    low: PrecisionName
    """The precision that is calibrated."""
    reference: PrecisionName
    """A finer one."""
    low_movements: Scores
    """`[decisions]`: movement in the low precision."""
    reference_movements: Scores
    """`[decisions]`: movement in the reference precision."""
    magnitudes: Scores
    """`[decisions]`: largest absolute score of each decision, in either precision."""
    names: tuple[str, ...] = ()
    """Decision ids for the evidence; empty to number them."""

    def __post_init__(self) -> None:
        """The reference is finer, and all arrays are over the same decisions."""
        if self.roundoff_ratio >= 1:
            raise ConfigError(
                f"{self.reference} is no reference for {self.low}: its unit roundoff must be less"
            )
        shapes = {a.shape for a in (self.low_movements, self.reference_movements, self.magnitudes)}
        if len(shapes) != 1 or self.low_movements.ndim != 1:
            raise InvalidRecordError(f"the arrays are not all `[decisions]`: {sorted(shapes)}")
        if self.names and len(self.names) != len(self.low_movements):
            raise InvalidRecordError("`names` has another length than the movements")

    @property
    def roundoff_ratio(self) -> float:
        """Unit roundoff of the reference over that of the low precision: what rounding predicts."""
        return unit_roundoff(self.reference) / unit_roundoff(self.low)


class ShrinkEstimate(Record, frozen=True, kw_only=True):
    """Mean movement in the reference over mean movement in the low precision."""

    ratio: float
    """The estimate: near 1 under a logic bug, near `predicted` when every operation rounds to the
    low precision, somewhat above it when its sums are kept in float32."""
    lower: float
    """Lower end of the bootstrap interval."""
    upper: float
    """Upper end; infinite when a resample held no movement in the low precision."""
    confidence: float
    """Nominal coverage of the interval; it covers less when few decisions carry the mean."""
    predicted: float
    """Ratio of the unit roundoffs."""

    def __str__(self) -> str:
        """Say it in powers of two."""
        low, mid, high, predicted = map(
            _as_power, (self.lower, self.ratio, self.upper, self.predicted)
        )
        return (
            f"mean movement shrinks by {mid} ({self.confidence:.0%} interval {low} to {high}; "
            f"rounding of every operation predicts {predicted}, logic 2^0)"
        )


def rounding(evidence: RoundingEvidence, *, seed: int, confidence: float = 0.95) -> GuardFinding:
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
    not 0. One decision that moves in the reference by more than sqrt(r) x its noise is enough.

    A float64 model of today's libraries keeps islands of float32 (norms, rotary embeddings). There
    a rounding flips rarely, but by a float32 step: rate, not size, shrinks. Against float64 the
    boundary is therefore never below the noise that float32 would have, u_32 / u_low x noise.

    Blind spot: a bug that moves scores by less than the boundary; the evidence states it.
    """
    num = evidence.low_movements.size
    if num == 0:
        return finding(GuardName.ROUNDING, [NOTHING_COMPARED], "")
    if not _all_movements(evidence):
        return finding(GuardName.ROUNDING, ["a movement or magnitude is not finite and >= 0"], "")
    allowed = _boundary(evidence) * _noise(evidence)
    beyond = _beyond(evidence, allowed)
    problems = [] if beyond is None else [beyond]
    estimate = shrink_estimate(evidence, seed=seed, confidence=confidence)
    return finding(GuardName.ROUNDING, problems, _rounding_summary(evidence, allowed, estimate))


def shrink_estimate(
    evidence: RoundingEvidence, *, seed: int, confidence: float = 0.95
) -> ShrinkEstimate | None:
    """Return by how much the mean movement shrinks, or None when nothing moved in the low one.

    It explains, and refuses nothing: below the noise of `rounding` a ratio near 1 is legitimate,
    since sums of a low precision are often kept in float32. Means, because a lattice keeps them: a
    score crosses a step with a probability in proportion to its unquantised movement. The interval
    is a percentile bootstrap over decisions (B. Efron and R. Tibshirani, "An Introduction to the
    Bootstrap", 1993, chapter 13).
    """
    low, reference = evidence.low_movements, evidence.reference_movements
    if not low.any():
        return None
    rng = np.random.default_rng(seed)
    picks = (rng.integers(low.size, size=low.size) for _ in range(NUM_RESAMPLES))
    ratios = np.array([_ratio(reference[pick].sum(), low[pick].sum()) for pick in picks])
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(ratios, (tail, 1 - tail), method="inverted_cdf")
    return ShrinkEstimate(
        ratio=_ratio(reference.sum(), low.sum()),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        predicted=evidence.roundoff_ratio,
    )


def _all_movements(evidence: RoundingEvidence) -> bool:
    arrays = (evidence.low_movements, evidence.reference_movements, evidence.magnitudes)
    return all(bool((np.isfinite(a) & (a >= 0)).all()) for a in arrays)


def _boundary(evidence: RoundingEvidence) -> float:
    midpoint = math.sqrt(evidence.roundoff_ratio)
    if evidence.reference is not PrecisionName.FLOAT64:
        return midpoint
    return max(midpoint, unit_roundoff(PrecisionName.FLOAT32) / unit_roundoff(evidence.low))


def _noise(evidence: RoundingEvidence) -> Scores:
    """Return the noise of each decision in the low precision, `[decisions]`; see `rounding`."""
    low = evidence.low_movements
    magnitudes = np.maximum(evidence.magnitudes, evidence.magnitudes.mean())
    typical = np.median(low[low > 0]) if low.any() else 0.0
    quantum = np.maximum(unit_roundoff(evidence.low) * magnitudes, typical)
    return np.asarray(np.sqrt(quantum * np.maximum(low, quantum)))


def _beyond(evidence: RoundingEvidence, allowed: Scores) -> str | None:
    wrong = np.flatnonzero(evidence.reference_movements > allowed)
    if not wrong.size:
        return None
    worst_first = wrong[np.argsort(-evidence.reference_movements[wrong], kind="stable")]
    named = some_of(
        f"decision {name_of(i, evidence.names)} by {evidence.low_movements[i]:.3g} in "
        f"{evidence.low} and {evidence.reference_movements[i]:.3g} in {evidence.reference}, "
        f"where rounding allows {allowed[i]:.3g}"
        for i in worst_first
    )
    return (
        f"movement does not shrink with precision, so it is logic and not rounding: "
        f"{wrong.size} of {allowed.size} decisions, {named}"
    )


def _rounding_summary(
    evidence: RoundingEvidence, allowed: Scores, estimate: ShrinkEstimate | None
) -> str:
    low, reference = evidence.low_movements, evidence.reference_movements
    shrinks = estimate or f"nothing moved in {evidence.low}"
    return (
        f"{low.size} decisions, {evidence.low} against {evidence.reference}: "
        f"{np.count_nonzero(low)} and {np.count_nonzero(reference)} moved, by at most "
        f"{low.max():.3g} and {reference.max():.3g}; {shrinks}; a movement in "
        f"{evidence.reference} below {np.median(allowed):.3g} (median) passes unseen"
    )


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else math.inf


def _as_power(value: float) -> str:
    if value == 0:
        return "0"
    return f"2^{math.log2(value):.1f}" if math.isfinite(value) else "unbounded"
