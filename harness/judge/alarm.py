"""Decides when exceedances have become too many for an honest build: a drift alarm per replica.

A tolerance states a bound `rate` on how often an honest replay leaves the floor. The alarm bets
against "P(exceed | past) <= rate": each bet multiplies its wealth by ``1 + lambda (x - rate)``,
whose expectation under that null is at most 1, so wealth is a non-negative supermartingale, and so
is the mean over a fixed grid of bets. By Ville's inequality the mean ever reaches 1/alpha with
probability at most alpha: the alarm may be looked at after every verdict.

Rules kept here:

* lambda is a fixed share of 1/rate, so that no factor is ever zero or negative;
* wealth is kept as logarithms, one per bet, and once raised an alarm stays raised;
* drift and divergence exceed; exact and consistent do not; other verdicts are no evidence.

It does not know whether the stated rate is true: that holds with the tolerance's own confidence,
whose complement adds to alpha. Nor does it know whether two verdicts are about one decision: a
decision that exceeds once exceeds each time, so give it each decision once.

Sources: J. Ville, Etude critique de la notion de collectif, 1939; I. Waudby-Smith and A. Ramdas,
Estimating means of bounded random variables by betting, Journal of the Royal Statistical Society B
86(1), 2024, section 4.
"""

import math
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from harness.errors import ConfigError
from harness.records.document import Record
from harness.records.verdict import Verdict, VerdictKind

__all__ = ["EXCEEDS", "AlarmReport", "DriftAlarm", "alarm_over", "observe"]

BETS = (*(2.0**-power for power in range(1, 13)), 0.75, 0.9)
"""Shares of 1/rate. The best share against a true rate q is (q - rate) / (1 - rate): a halving grid
meets every q within a factor of two, at a cost of log(14) of wealth."""

EXCEEDS = {
    VerdictKind.EXACT: False,
    VerdictKind.CONSISTENT: False,
    VerdictKind.DRIFT: True,
    VerdictKind.DIVERGENCE: True,
}
"""Verdicts that are evidence, and which way."""


class DriftAlarm(Record, frozen=True, kw_only=True):
    """State of one replica's alarm."""

    rate: float
    """Null bound on the probability of an exceedance, in (0, 1]; may change in between."""
    alpha: float
    """Probability of ever raising a false alarm, in (0, 1)."""
    num_observed: int = 0
    """Verdicts counted."""
    num_exceeded: int = 0
    """Verdicts beyond the floor."""
    log_wealth: tuple[float, ...] = (0.0,) * len(BETS)
    """Natural logarithm of the wealth of each bet, `[bets]`."""
    alarmed_at: int | None = None
    """Number of the observation that raised the alarm, from 1; None while it has not been."""

    def __post_init__(self) -> None:
        """`rate` lies in (0, 1] and `alpha` in (0, 1)."""
        if not 0 < self.rate <= 1:
            raise ConfigError(f"the exceedance rate lies in (0, 1], found {self.rate!r}")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha lies in (0, 1), found {self.alpha!r}")

    @property
    def log_e_value(self) -> float:
        """Natural logarithm of the evidence against an honest build: of the mean wealth."""
        highest = max(self.log_wealth)
        shares = math.fsum(math.exp(one - highest) for one in self.log_wealth)
        return highest + math.log(shares / len(self.log_wealth))

    @property
    def raised(self) -> bool:
        """Whether the alarm has been raised."""
        return self.alarmed_at is not None


class AlarmReport(Record, frozen=True, kw_only=True):
    """What one replica's verdicts amount to."""

    replica: str
    """The server that replayed."""
    alarm: DriftAlarm
    """Its state after the last verdict."""
    raised_by: str | None = None
    """Commit id of the verdict that raised the alarm."""

    @property
    def raised(self) -> bool:
        """Whether the replica drifts."""
        return self.alarm.raised


def observe(alarm: DriftAlarm, exceeded: bool) -> DriftAlarm:  # noqa: FBT001 - the outcome itself
    """Return the alarm after one more verdict."""
    wealth = tuple(
        log + math.log1p(_gain(bet, alarm.rate) if exceeded else -bet)
        for log, bet in zip(alarm.log_wealth, BETS, strict=True)
    )
    after = replace(
        alarm,
        num_observed=alarm.num_observed + 1,
        num_exceeded=alarm.num_exceeded + exceeded,
        log_wealth=wealth,
    )
    if after.raised or after.log_e_value < -math.log(alarm.alpha):
        return after
    return replace(after, alarmed_at=after.num_observed)


def alarm_over(
    verdicts: Iterable[Verdict], tolerances_rate: float | Mapping[str, float], alpha: float
) -> dict[str, AlarmReport]:
    """Return replica -> what its verdicts, in the order they were given, amount to.

    `tolerances_rate` is the stated exceedance rate: one for all, or tolerance id -> rate as
    `Tolerances.exceedance_rates` gives it. Raises ConfigError for a tolerance without a rate.
    """
    reports: dict[str, AlarmReport] = {}
    for verdict in verdicts:
        if verdict.kind in EXCEEDS:
            before = reports.get(verdict.replica)
            reports[verdict.replica] = _after(before, verdict, tolerances_rate, alpha)
    return reports


def _gain(bet: float, rate: float) -> float:
    """Return ``lambda (1 - rate)`` for lambda = bet / rate; ``-lambda rate`` is ``-bet``."""
    return bet * (1 - rate) / rate


def _after(
    before: AlarmReport | None,
    verdict: Verdict,
    rates: float | Mapping[str, float],
    alpha: float,
) -> AlarmReport:
    rate = _rate(verdict, rates)
    alarm = DriftAlarm(rate=rate, alpha=alpha) if before is None else before.alarm
    after = observe(replace(alarm, rate=rate), EXCEEDS[verdict.kind])
    raised_by = None if before is None else before.raised_by
    if after.raised and not alarm.raised:
        raised_by = verdict.commit_id
    return AlarmReport(replica=verdict.replica, alarm=after, raised_by=raised_by)


def _rate(verdict: Verdict, rates: float | Mapping[str, float]) -> float:
    if not isinstance(rates, Mapping):
        return rates
    rate = rates.get(verdict.tolerance_id or "")
    if rate is None:
        raise ConfigError(
            f"commit {verdict.commit_id!r} was judged by tolerance {verdict.tolerance_id!r}, whose "
            "rate is not given; load the tolerance file that the verdict names"
        )
    return rate
