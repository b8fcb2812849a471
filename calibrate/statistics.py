"""Bounds: what a count or a set of movements proves, with no assumption on the distribution.

Rules: every bound is exact, and one-sided but for `rate_interval`; a discrete distribution (a
bfloat16 lattice, a mass of exact zeros) only makes it more conservative; too little evidence is an
error that says how much more is needed, never a number.

Not known here: whether the decisions were drawn independently, and whether later decisions are
like them. Both are assumed: decisions are the unit of evidence because branches are not
independent.

Sources: S. S. Wilks, "Determination of sample sizes for setting tolerance limits", Annals of
Mathematical Statistics 12 (1941); C. J. Clopper and E. S. Pearson, "The use of confidence or
fiducial limits illustrated in the case of the binomial", Biometrika 26 (1934); H. A. David and
H. N. Nagaraja, "Order Statistics", 3rd ed. (2003), section 7.1.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.errors import ConfigError, InsufficientEvidenceError, InvalidRecordError
from harness.records import Bound
from harness.records.document import Record

__all__ = [
    "Rate",
    "largest_rank",
    "lower_rank",
    "order_statistic_bound",
    "rate_interval",
    "rate_upper",
    "required_decisions",
]


class Rate(Record, frozen=True, kw_only=True):
    """A rate with its exact two-sided interval."""

    num_events: int
    """How often it happened."""
    num_trials: int
    """How often it could have."""
    lower: float
    """Lower end of the interval."""
    upper: float
    """Upper end of the interval."""
    confidence: float
    """Confidence that the interval holds the rate."""

    @property
    def value(self) -> float:
        """The rate itself."""
        return self.num_events / self.num_trials


def required_decisions(coverage: float, confidence: float) -> int:
    """Return the fewest decisions whose largest movement is a bound: 1 - coverage^n >= confidence.

    Wilks 1941: 59 for coverage 0.95 at confidence 0.95, 299 for coverage 0.99.
    """
    _check_share("coverage", coverage)
    _check_share("confidence", confidence)
    num = max(1, math.ceil(math.log1p(-confidence) / math.log(coverage)))
    return num - 1 if num > 1 and 1 - coverage ** (num - 1) >= confidence else num


def largest_rank(num_decisions: int, coverage: float, confidence: float) -> int:
    """Return the largest k whose k-th largest movement is still a bound (1: the largest).

    It is one when at least k of the decisions lie beyond the `coverage` quantile with probability
    `confidence` or more: P(Binomial(n, 1 - coverage) >= k) >= confidence (David and Nagaraja,
    section 7.1). Raises InsufficientEvidenceError when not even the largest is one.
    """
    required = required_decisions(coverage, confidence)
    if num_decisions < required:
        raise InsufficientEvidenceError(
            f"too few decisions: {num_decisions} of the {required} that coverage {coverage} at "
            f"confidence {confidence} needs; measure {required - num_decisions} more decisions, "
            f"or ask for less coverage or confidence"
        )
    rank = int(stats.binom.ppf(1 - confidence, num_decisions, 1 - coverage)) + 1
    while rank > 1 and stats.binom.sf(rank - 1, num_decisions, 1 - coverage) < confidence:
        rank -= 1
    return rank


def lower_rank(num_decisions: int, coverage: float, confidence: float) -> int:
    """Return the smallest k whose k-th largest movement is a lower limit on the quantile.

    It is one when fewer than k of the decisions lie beyond the `coverage` quantile with probability
    `confidence` or more: P(Binomial(n, 1 - coverage) < k) >= confidence (David and Nagaraja,
    section 7.1). Above `num_decisions` when no movement is one.
    """
    _check_share("coverage", coverage)
    _check_share("confidence", confidence)
    return int(stats.binom.ppf(confidence, num_decisions, 1 - coverage)) + 1


def rate_upper(num_events: int, num_decisions: int, confidence: float) -> float:
    """Return the one-sided upper bound on a rate (Clopper and Pearson 1934).

    1.0 when every decision was an event. Raises InsufficientEvidenceError for no decisions.
    """
    _check_share("confidence", confidence)
    if num_decisions == 0:
        raise InsufficientEvidenceError(
            "a rate over zero decisions is not known; measure at least one decision"
        )
    if not 0 <= num_events <= num_decisions:
        raise InvalidRecordError(
            f"{num_events} events in {num_decisions} decisions: a count lies between 0 and all"
        )
    if num_events == num_decisions:
        return 1.0
    return float(stats.beta.ppf(confidence, num_events + 1, num_decisions - num_events))


def rate_interval(num_events: int, num_trials: int, confidence: float) -> Rate:
    """Return a rate between its one-sided bounds, half of the doubt on either side.

    Clopper and Pearson 1934. Raises InsufficientEvidenceError for no trials.
    """
    one_sided = (1 + confidence) / 2
    return Rate(
        num_events=num_events,
        num_trials=num_trials,
        lower=1 - rate_upper(num_trials - num_events, num_trials, one_sided),
        upper=rate_upper(num_events, num_trials, one_sided),
        confidence=confidence,
    )


def order_statistic_bound(
    movements: NDArray[np.float64], coverage: float, confidence: float, num_compositions: int
) -> Bound:
    """Return the bound on a decision's movement: the `largest_rank`-th largest of `[decisions]`.

    The `lower_rank`-th largest stands beside it: together they say how well the quantile is known.
    The share of decisions beyond it is at most Beta(k, n - k + 1) distributed, with equality for a
    continuous distribution, so its quantile at `confidence` is an exact upper bound. Raises
    InvalidRecordError for a movement that is not a finite number >= 0, and
    InsufficientEvidenceError for too few of them.
    """
    _check_movements(movements)
    num, descending = len(movements), np.sort(movements)[::-1]
    rank = largest_rank(num, coverage, confidence)
    low = max(rank, lower_rank(num, coverage, confidence))
    return Bound(
        value=float(descending[rank - 1]),
        lower=float(descending[low - 1]) if low <= num else 0.0,
        coverage=coverage,
        confidence=confidence,
        num_decisions=num,
        rank=rank,
        exceedance_rate_upper=float(stats.beta.ppf(confidence, rank, num - rank + 1)),
        num_compositions=num_compositions,
    )


def _check_movements(movements: NDArray[np.float64]) -> None:
    if movements.ndim != 1:
        raise InvalidRecordError(
            f"movements are one number per decision, `[decisions]`; found shape {movements.shape}"
        )
    wrong = np.flatnonzero(~(np.isfinite(movements) & (movements >= 0)))
    if wrong.size:
        raise InvalidRecordError(
            f"{wrong.size} of {movements.size} movements are not finite numbers >= 0, the first "
            f"at decision {wrong[0]}: {movements[wrong[0]]}; measure that decision again"
        )


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ConfigError(f"{name} lies strictly between 0 and 1, found {value}")
