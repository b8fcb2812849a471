"""By how much movement shrinks from one precision to a finer one: an estimate with an interval.

It explains, and refuses nothing: below the noise that `rounding` allows, a ratio near 1 is
legitimate, since sums of a low precision are often kept in float32. Not known here: which decisions
shrink; a mean over a hundred of them hides one that does not.
"""

import math
from enum import StrEnum

import numpy as np
from scipy import stats

from calibrate.guards.movements import RoundingEvidence
from harness.records.document import Record

__all__ = ["Reading", "ShrinkEstimate", "shrink_estimate"]

NUM_RESAMPLES = 1000  # ends of a 95% interval then rest on 25 resamples each


class Reading(StrEnum):
    """What an interval says, against the midpoint of the two hypotheses in logarithms."""

    ROUNDING = "rounding"
    """The whole interval is nearer to the ratio of the unit roundoffs."""
    NOT_SHRINKING = "logic, or sums that both precisions keep in float32"
    """The whole interval is nearer to 1."""
    OPEN = "open: too few decisions moved to tell"
    """The interval holds the midpoint."""


class ShrinkEstimate(Record, frozen=True, kw_only=True):
    """Mean movement in the reference over mean movement in the low precision."""

    ratio: float
    """The estimate: near 1 under a logic bug, near `predicted` when every operation rounds to the
    low precision, somewhat above it when its sums are kept in float32."""
    lower: float
    """Lower end of the bootstrap interval."""
    upper: float
    """Upper end; infinite for one decision, or when a resample held no movement in the low
    precision."""
    confidence: float
    """Nominal coverage of the interval; it covers less when few decisions carry the mean."""
    predicted: float
    """Ratio of the unit roundoffs."""

    @property
    def reading(self) -> Reading:
        """Return what the interval says."""
        midpoint = math.sqrt(self.predicted)
        if self.upper < midpoint:
            return Reading.ROUNDING
        return Reading.NOT_SHRINKING if self.lower > midpoint else Reading.OPEN

    def __str__(self) -> str:
        """Say it in powers of two."""
        low, mid, high, predicted = map(
            _as_power, (self.lower, self.ratio, self.upper, self.predicted)
        )
        return (
            f"mean movement shrinks by {mid} ({self.confidence:.0%} interval {low} to {high}; "
            f"rounding of every operation predicts {predicted}, logic 2^0), which reads as "
            f"{self.reading}"
        )


def shrink_estimate(
    evidence: RoundingEvidence, *, seed: int, confidence: float = 0.95
) -> ShrinkEstimate | None:
    """Return by how much the mean movement shrinks, or None when nothing moved in the low one.

    Means, because a lattice keeps them: a score crosses a step with a probability in proportion to
    its unquantised movement, and exact zeros count as what they are. The interval is a percentile
    bootstrap over decisions (B. Efron and R. Tibshirani, "An Introduction to the Bootstrap", 1993,
    chapter 13), expanded for few decisions (T. Hesterberg, "What Teachers Should Know About the
    Bootstrap", The American Statistician 69, 2015, section 4.5.2); one decision has none.
    """
    low, reference = evidence.low_movements, evidence.reference_movements
    if not low.any():
        return None
    lower, upper = 0.0, math.inf
    if low.size > 1:
        rng = np.random.default_rng(seed)
        picks = (rng.integers(low.size, size=low.size) for _ in range(NUM_RESAMPLES))
        ratios = np.array([_ratio(reference[pick].sum(), low[pick].sum()) for pick in picks])
        tail = _expanded_tail(low.size, confidence)
        lower, upper = np.quantile(ratios, (tail, 1 - tail), method="inverted_cdf")
    return ShrinkEstimate(
        ratio=_ratio(reference.sum(), low.sum()),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        predicted=evidence.roundoff_ratio,
    )


def _expanded_tail(num: int, confidence: float) -> float:
    """Return the share of resamples beyond each end: that of a t interval with n - 1 degrees."""
    t = stats.t.ppf((1 + confidence) / 2, num - 1)
    return float(stats.norm.cdf(-math.sqrt(num / (num - 1)) * t))


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else math.inf


def _as_power(value: float) -> str:
    if value == 0:
        return "0"
    return f"2^{math.log2(value):.1f}" if math.isfinite(value) else "unbounded"
