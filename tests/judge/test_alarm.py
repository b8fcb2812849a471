import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from harness.errors import ConfigError
from harness.judge.alarm import BETS, DriftAlarm, alarm_over, observe
from harness.records import Verdict, VerdictKind
from tests.examples import a_verdict

RATE, ALPHA = 0.05, 0.1

Bools = npt.NDArray[np.bool_]


def verdicts(kinds: str, replica: str = "r", tolerance_id: str | None = "t") -> list[Verdict]:
    """Return verdicts: `x` drift, `X` divergence, `.` exact, `,` consistent, `?` reconstruction."""
    of = {
        "x": VerdictKind.DRIFT,
        "X": VerdictKind.DIVERGENCE,
        ".": VerdictKind.EXACT,
        ",": VerdictKind.CONSISTENT,
        "?": VerdictKind.RECONSTRUCTION,
        "u": VerdictKind.UNJUDGED,
        "p": VerdictKind.PLAN_NOISE,
    }
    return [
        a_verdict(commit_id=f"c{at}", kind=of[kind], replica=replica, tolerance_id=tolerance_id)
        for at, kind in enumerate(kinds, start=1)
    ]


def raised_at(exceeded: Bools, rate: float) -> Bools:
    """Return, run by run, whether the alarm is ever raised; the same sums, vectorised."""
    gains = np.log1p([bet * (1 - rate) / rate for bet in BETS])
    losses = np.log1p([-bet for bet in BETS])
    steps = np.where(exceeded[..., None], gains, losses)
    e_value = np.exp(np.cumsum(steps, axis=1)).mean(axis=2)
    raised: Bools = (e_value >= 1 / ALPHA).any(axis=1)
    return raised


def test_the_vectorised_sums_are_those_of_the_alarm() -> None:
    exceeded = np.random.default_rng(1).random((20, 60)) < 0.15
    expected = raised_at(exceeded, RATE)
    assert 0 < expected.sum() < len(expected)
    for run, is_raised in zip(exceeded, expected, strict=True):
        alarm = DriftAlarm(rate=RATE, alpha=ALPHA)
        for x in run:
            alarm = observe(alarm, bool(x))
        assert alarm.raised == is_raised


def test_false_alarms_are_rarer_than_alpha_however_often_one_looks() -> None:
    runs = 2000
    exceeded = np.random.default_rng(2).random((runs, 1000)) < RATE
    false_alarms = int(raised_at(exceeded, RATE).sum())
    allowed = int(binom.ppf(1 - 1e-6, runs, ALPHA))
    assert 0 < false_alarms <= allowed, f"{false_alarms} of {runs}, allowed {allowed}"


def test_the_simulation_would_see_a_broken_null() -> None:
    """Negative control: betting against half the true rate must break the bound."""
    runs = 500
    exceeded = np.random.default_rng(3).random((runs, 1000)) < RATE
    assert raised_at(exceeded, RATE / 2).sum() > binom.ppf(1 - 1e-6, runs, ALPHA)


@pytest.mark.parametrize(("true_rate", "within"), [(0.1, 1000), (0.2, 200), (0.5, 40), (1.0, 10)])
def test_drift_is_found_soon(true_rate: float, within: int) -> None:
    exceeded = np.random.default_rng(4).random((500, within)) < true_rate
    found = raised_at(exceeded, RATE).mean()
    assert found > 0.9, f"found in {found:.0%} of runs within {within} verdicts"


def test_every_bet_is_fair_under_the_null_and_never_ruined() -> None:
    for rate in (1e-6, 0.01, 0.5, 1.0):
        start = DriftAlarm(rate=rate, alpha=ALPHA)
        up, down = observe(start, True).log_wealth, observe(start, False).log_wealth
        for high, low in zip(up, down, strict=True):
            assert rate * math.exp(high) + (1 - rate) * math.exp(low) <= 1 + 1e-9
            assert low > -math.inf


def test_the_e_value_is_the_mean_wealth() -> None:
    alarm = observe(DriftAlarm(rate=0.25, alpha=0.01), True)
    expected = math.log(sum(1 + bet / 0.25 * 0.75 for bet in BETS) / len(BETS))
    assert alarm.log_e_value == pytest.approx(expected)
    assert DriftAlarm(rate=0.25, alpha=0.01).log_e_value == 0


def test_observing_changes_nothing_but_what_it_returns() -> None:
    start = DriftAlarm(rate=RATE, alpha=ALPHA)
    after = observe(observe(start, True), False)
    assert start == DriftAlarm(rate=RATE, alpha=ALPHA)
    assert (after.num_observed, after.num_exceeded) == (2, 1)


def test_an_alarm_stays_raised_and_says_what_raised_it() -> None:
    report = alarm_over(verdicts("..xXx" + "." * 500), RATE, ALPHA)["r"]
    assert report.raised
    assert report.alarm.alarmed_at == 5
    assert report.raised_by == "c5"
    assert report.alarm.log_e_value < 0
    assert report.alarm.num_observed == 505


def test_a_very_long_stream_neither_overflows_nor_ends() -> None:
    alarm = DriftAlarm(rate=1e-6, alpha=ALPHA)
    for _ in range(2000):
        alarm = observe(alarm, True)
    assert math.isfinite(alarm.log_e_value)
    assert alarm.log_e_value > 1000


def test_replicas_are_told_apart() -> None:
    stream = [
        v
        for pair in zip(verdicts(",.,." * 9, "honest"), verdicts("xxX." * 9, "odd"), strict=True)
        for v in pair
    ]
    reports = alarm_over(stream, RATE, ALPHA)
    assert {name: report.raised for name, report in reports.items()} == {
        "honest": False,
        "odd": True,
    }
    assert all(report.replica == name for name, report in reports.items())


def test_other_verdicts_are_no_evidence() -> None:
    assert alarm_over(verdicts("?up" * 100), RATE, ALPHA) == {}
    report = alarm_over(verdicts("x?u?p."), RATE, ALPHA)["r"]
    assert (report.alarm.num_observed, report.alarm.num_exceeded) == (2, 1)


def test_each_verdict_is_weighed_by_its_own_tolerance() -> None:
    rates = {"tight": 0.001, "loose": 0.5}
    tight = alarm_over(verdicts("xx", tolerance_id="tight"), rates, ALPHA)["r"]
    loose = alarm_over(verdicts("xx", tolerance_id="loose"), rates, ALPHA)["r"]
    assert tight.raised
    assert not loose.raised
    mixed = verdicts("x", tolerance_id="tight") + verdicts("x", tolerance_id="loose")
    both = alarm_over(mixed, rates, ALPHA)["r"].alarm.log_e_value
    assert loose.alarm.log_e_value < both < tight.alarm.log_e_value


@pytest.mark.parametrize("tolerance_id", ["other", None])
def test_a_tolerance_without_a_rate_is_an_error(tolerance_id: str | None) -> None:
    with pytest.raises(
        ConfigError, match=r"commit 'c1' was judged by tolerance .*rate is not given"
    ):
        alarm_over(verdicts("x", tolerance_id=tolerance_id), {"t": 0.1}, ALPHA)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, math.nan, math.inf])
def test_rate_and_alpha_have_limits(value: float) -> None:
    with pytest.raises(ConfigError, match="exceedance rate"):
        DriftAlarm(rate=value, alpha=ALPHA)
    with pytest.raises(ConfigError, match="alpha"):
        DriftAlarm(rate=RATE, alpha=value)
