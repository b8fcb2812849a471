import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calibrate.power.detection import (
    Delay,
    delay_over,
    first_fault,
    rate,
    rate_if_any,
    until_alarm,
)
from calibrate.statistics import rate_interval
from harness.errors import InsufficientEvidenceError, InvalidRecordError
from harness.judge.alarm import alarm_over
from harness.records import VerdictKind
from tests.examples import a_verdict

RATE, ALPHA = 0.0075, 0.01


def streams(rate: float, num: int, length: int, seed: int) -> list[tuple[bool, ...]]:
    generator = random.Random(seed)  # noqa: S311 - a seeded simulation
    return [tuple(generator.random() < rate for _ in range(length)) for _ in range(num)]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.data())
def test_the_interval_is_clopper_and_pearsons(num_trials: int, data: st.DataObject) -> None:
    num_events = data.draw(st.integers(0, num_trials))
    found = rate_interval(num_events, num_trials, 0.95)
    exact = stats.binomtest(num_events, num_trials).proportion_ci(0.95, method="exact")
    assert found.lower == pytest.approx(exact.low, abs=1e-9)
    assert found.upper == pytest.approx(exact.high, abs=1e-9)
    assert found.lower <= found.value <= found.upper


def test_the_interval_of_no_event_and_of_every() -> None:
    none, every = rate_interval(0, 1200, 0.95), rate_interval(1200, 1200, 0.95)
    assert (none.lower, every.upper) == (0.0, 1.0)
    assert none.upper == pytest.approx(1 - 0.025 ** (1 / 1200))
    assert every.lower == pytest.approx(1 - none.upper)


def test_a_rate_over_nothing_is_not_known() -> None:
    assert rate_if_any([]) is None
    with pytest.raises(InsufficientEvidenceError):
        rate([])
    with pytest.raises(InvalidRecordError):
        rate_interval(3, 2, 0.95)


def test_flags_are_counted() -> None:
    found = rate_if_any(flag for flag in (True, False, True))
    assert found is not None
    assert (found.num_events, found.num_trials, found.value) == (2, 3, 2 / 3)


def test_a_delay_counts_replays_from_one() -> None:
    every = delay_over([True] * 9, 20, 0, first_fault)
    assert every == Delay(num_streams=20, num_raised=20, median=1, most=1, longest=1)
    none = delay_over([False] * 9, 20, 0, first_fault)
    assert none == Delay(num_streams=20, num_raised=0, median=None, most=None, longest=None)


def test_the_first_of_one_fault_among_many_is_uniform() -> None:
    found = delay_over([True] + [False] * 99, 4000, 0, first_fault)
    assert (found.num_raised, found.longest) == (4000, 100)
    assert found.median is not None
    assert found.most is not None
    assert abs(found.median - 50) < 5
    assert abs(found.most - 95) < 3


def test_streams_in_which_nothing_is_raised_count_as_the_longest() -> None:
    """Raised when the first replay exceeds: in about half of the orders."""
    found = delay_over([True, False], 400, 0, lambda flags: 1 if flags[0] else None)
    assert 150 < found.num_raised < 250
    assert (found.most, found.longest) == (None, None)
    assert found.median == (1 if found.num_raised >= 200 else None)


def test_the_same_seed_gives_the_same_orders() -> None:
    flags = [at % 7 == 0 for at in range(60)]
    watch = until_alarm(0.05, ALPHA)
    assert delay_over(flags, 50, 3, watch) == delay_over(flags, 50, 3, watch)
    assert delay_over(flags, 50, 3, watch) != delay_over(flags, 50, 4, watch)


def test_the_watch_is_the_alarm_of_the_verdicts() -> None:
    watch = until_alarm(RATE, ALPHA)
    raised = 0
    for flags in streams(0.05, 30, 80, seed=1):
        kinds = [VerdictKind.DRIFT if flag else VerdictKind.EXACT for flag in flags]
        verdicts = [a_verdict(kind=kind) for kind in kinds]
        (report,) = alarm_over(verdicts, RATE, ALPHA).values()
        assert watch(flags) == report.alarm.alarmed_at
        raised += report.raised
    assert 0 < raised < 30


def test_two_exceedances_in_a_row_raise_it_and_an_honest_stream_does_not() -> None:
    watch = until_alarm(RATE, ALPHA)
    assert watch((True,) * 9) == 2
    assert watch((False,) * 400) is None


def test_honest_streams_at_the_stated_rate_raise_it_no_oftener_than_alpha() -> None:
    watch, num = until_alarm(0.02, 0.05), 400
    raised = sum(watch(stream) is not None for stream in streams(0.02, num, 200, seed=2))
    assert raised <= 0.05 * num + 3 * math.sqrt(0.05 * 0.95 * num), f"{raised} of {num}"
    worse = streams(0.2, 50, 200, seed=3)
    assert all(watch(stream) is not None for stream in worse)
