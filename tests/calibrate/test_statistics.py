from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from calibrate.statistics import (
    largest_rank,
    lower_rank,
    order_statistic_bound,
    rate_upper,
    required_decisions,
)
from harness.errors import ConfigError, InsufficientEvidenceError, InvalidRecordError

COVERAGE = 0.95
CONFIDENCE = 0.95
NUM_RUNS = 1500
# More failures than this happen with probability 1e-6 when the confidence is kept.
MAX_FAILURES = int(stats.binom.isf(1e-6, NUM_RUNS, 1 - CONFIDENCE))

shares = st.floats(0.5, 0.999)


@pytest.mark.parametrize(
    ("coverage", "confidence", "num"),
    [
        (0.9, 0.9, 22),
        (0.9, 0.95, 29),
        (0.95, 0.9, 45),
        (0.95, 0.95, 59),
        (0.95, 0.99, 90),
        (0.99, 0.95, 299),
        (0.99, 0.99, 459),
        (0.5, 0.5, 1),
    ],
)
def test_required_decisions_are_those_of_the_published_table(
    coverage: float, confidence: float, num: int
) -> None:
    assert required_decisions(coverage, confidence) == num


@pytest.mark.parametrize(
    ("rank", "num"),
    # Wilks's formula at 0.95/0.95, orders 1 to 5, as nuclear safety analyses tabulate it.
    [(1, 59), (2, 93), (3, 124), (4, 153), (5, 181)],
)
def test_ranks_change_at_the_published_sample_sizes(rank: int, num: int) -> None:
    assert largest_rank(num, 0.95, 0.95) == rank
    if rank > 1:
        assert largest_rank(num - 1, 0.95, 0.95) == rank - 1


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_rank_is_the_largest_that_the_definition_allows(coverage: float, confidence: float) -> None:
    required = required_decisions(coverage, confidence)
    for num in range(required, required + 150):
        rank = largest_rank(num, coverage, confidence)
        assert stats.binom.sf(rank - 1, num, 1 - coverage) >= confidence - 1e-12
        assert stats.binom.sf(rank, num, 1 - coverage) < confidence


@pytest.mark.parametrize(("coverage", "confidence"), [(0.95, 0.95), (0.99, 0.95), (0.9, 0.9)])
def test_one_decision_short_is_refused(coverage: float, confidence: float) -> None:
    required = required_decisions(coverage, confidence)
    assert largest_rank(required, coverage, confidence) == 1
    with pytest.raises(InsufficientEvidenceError, match="measure 1 more"):
        largest_rank(required - 1, coverage, confidence)


def test_too_few_decisions_say_how_many_more() -> None:
    with pytest.raises(InsufficientEvidenceError, match=r"250 of the 299 .* measure 49 more"):
        largest_rank(250, 0.99, 0.95)


@pytest.mark.parametrize(
    ("num_events", "num", "upper"),
    # The rule of three's exact form, and the textbook upper bounds at 0.95.
    [
        (0, 1, 0.95),
        (0, 59, 0.0495),
        (0, 100, 0.0295),
        (1, 10, 0.3942),
        (5, 5, 1.0),
        (9, 10, 0.9949),
    ],
)
def test_rate_upper_is_clopper_and_pearsons(num_events: int, num: int, upper: float) -> None:
    assert rate_upper(num_events, num, 0.95) == pytest.approx(upper, abs=5e-5)


def test_rate_upper_leaves_exactly_the_stated_chance_of_fewer_events() -> None:
    upper = rate_upper(3, 40, 0.9)
    assert stats.binom.cdf(3, 40, upper) == pytest.approx(0.1)


def test_a_rate_over_nothing_is_refused() -> None:
    with pytest.raises(InsufficientEvidenceError, match="zero decisions"):
        rate_upper(0, 0, 0.95)


@pytest.mark.parametrize(("num_events", "num"), [(-1, 5), (6, 5), (0, -1)])
def test_impossible_counts_are_refused(num_events: int, num: int) -> None:
    with pytest.raises(InvalidRecordError, match="between 0 and all"):
        rate_upper(num_events, num, 0.95)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_shares_lie_strictly_between_0_and_1(share: float) -> None:
    with pytest.raises(ConfigError, match="coverage lies strictly"):
        required_decisions(share, 0.95)
    with pytest.raises(ConfigError, match="confidence lies strictly"):
        required_decisions(0.95, share)
    with pytest.raises(ConfigError, match="confidence lies strictly"):
        rate_upper(0, 10, share)


@given(coverage=shares, confidence=shares)
def test_required_decisions_are_the_fewest(coverage: float, confidence: float) -> None:
    num = required_decisions(coverage, confidence)
    assert 1 - coverage**num >= confidence - 1e-12
    assert num == 1 or 1 - coverage ** (num - 1) < confidence


@given(num=st.integers(300, 3000), coverage=st.floats(0.5, 0.98), confidence=st.floats(0.5, 0.99))
def test_rank_never_falls_with_more_decisions_or_lower_demands(
    num: int, coverage: float, confidence: float
) -> None:
    num = max(num, required_decisions(coverage, confidence))
    rank = largest_rank(num, coverage, confidence)
    assert largest_rank(num + 1, coverage, confidence) >= rank
    assert largest_rank(num, coverage * 0.99, confidence) >= rank
    assert largest_rank(num, coverage, confidence * 0.99) >= rank


@given(events=st.integers(0, 50), more=st.integers(1, 50), confidence=shares)
def test_rate_upper_rises_with_events_and_falls_with_decisions(
    events: int, more: int, confidence: float
) -> None:
    num = events + more
    upper = rate_upper(events, num, confidence)
    assert events / num < upper < 1
    assert rate_upper(events + 1, num, confidence) > upper
    assert rate_upper(events, num + 1, confidence) < upper


@given(
    movements=st.lists(st.floats(0, 1e6), min_size=59, max_size=200),
    coverage=st.floats(0.5, 0.95),
    confidence=st.floats(0.5, 0.95),
)
def test_bound_is_a_movement_seen_and_rises_with_demands(
    movements: list[float], coverage: float, confidence: float
) -> None:
    data = np.array(movements)
    bound = order_statistic_bound(data, coverage, confidence, 4)
    assert bound.value == sorted(movements, reverse=True)[bound.rank - 1]
    assert bound.exceedance_rate_upper <= 1 - coverage + 1e-9
    assert order_statistic_bound(data, 0.95, confidence, 4).value >= bound.value
    assert order_statistic_bound(data, coverage, 0.95, 4).value >= bound.value
    assert order_statistic_bound(data[::-1].copy(), coverage, confidence, 4) == bound


@given(movements=st.lists(st.floats(0, 1e6), min_size=59, max_size=120), where=st.integers(0, 58))
def test_bound_never_falls_when_a_movement_grows(movements: list[float], where: int) -> None:
    data = np.array(movements)
    grown = data.copy()
    grown[where] += 1.0
    before = order_statistic_bound(data, 0.9, 0.9, 2).value
    assert order_statistic_bound(grown, 0.9, 0.9, 2).value >= before


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1e-9])
def test_movements_that_are_no_distances_are_refused(wrong: float) -> None:
    movements = np.zeros(100)
    movements[17] = wrong
    with pytest.raises(InvalidRecordError, match=r"1 of 100 movements .* at decision 17"):
        order_statistic_bound(movements, 0.9, 0.9, 2)


def test_a_matrix_of_movements_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match=r"found shape \(100, 2\)"):
        order_statistic_bound(np.zeros((100, 2)), 0.9, 0.9, 2)


def test_no_movements_are_refused() -> None:
    with pytest.raises(InsufficientEvidenceError, match="0 of the 22"):
        order_statistic_bound(np.zeros(0), 0.9, 0.9, 2)


# Coverage by simulation. Each law: uniform numbers -> movements, and a movement -> its true share.
Law = tuple[
    Callable[[NDArray[np.float64]], NDArray[np.float64]],
    Callable[[NDArray[np.float64]], NDArray[np.float64]],
]
INDEX = 1.1  # of the Pareto law: a mean, and no variance
STEP = 0.25


def _pareto(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((1 - uniform) ** (-1 / INDEX))


def _pareto_share(movement: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 - np.maximum(movement, 1) ** -INDEX)


def _lattice(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.ceil(_pareto(uniform) / STEP) * STEP)


def _mostly_zero(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(uniform < 0.9, 0.0, _pareto(np.maximum(uniform - 0.9, 0) / 0.1))


def _mostly_zero_share(movement: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(movement > 0, 0.9 + 0.1 * _pareto_share(movement), 0.9)


def _bfloat16(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round up to bfloat16's lattice, 8 bits: equal movements are as frequent as there."""
    mantissa, exponent = np.frexp(_pareto(uniform))
    return np.asarray(np.ldexp(np.ceil(mantissa * 2**8) / 2**8, exponent))


def _student(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return absolute values of Student's t with 2 degrees of freedom: no variance."""
    return np.asarray(uniform * np.sqrt(2 / (1 - uniform**2)))


def _student_share(movement: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(movement / np.sqrt(2 + movement**2))


LAWS: dict[str, Law] = {
    "student-t2": (_student, _student_share),
    "bfloat16": (_bfloat16, _pareto_share),
    "pareto": (_pareto, _pareto_share),
    "lattice": (_lattice, _pareto_share),
    "mostly-zero": (_mostly_zero, _mostly_zero_share),
}


def _draws(law: str, num: int, seed: int) -> NDArray[np.float64]:
    return LAWS[law][0](np.random.default_rng(seed).random((NUM_RUNS, num)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("num", [59, 70, 181])
def test_both_limits_hold_as_often_as_they_say(law: str, num: int) -> None:
    draws = _draws(law, num, seed=num)
    bounds = [order_statistic_bound(row, COVERAGE, CONFIDENCE, 2) for row in draws]
    shares_covered = LAWS[law][1](np.array([bound.value for bound in bounds]))
    assert (shares_covered < COVERAGE).sum() <= MAX_FAILURES
    # the exact exceedance rate is kept too, and it is sharper than 1 - coverage
    exceeding = 1 - shares_covered > bounds[0].exceedance_rate_upper
    assert exceeding.sum() <= MAX_FAILURES
    # a lower limit is too high when more than the covered share lies below it
    lower = np.array([bound.lower for bound in bounds])
    assert (LAWS[law][1](np.nextafter(lower, 0)) > COVERAGE).sum() <= MAX_FAILURES


@pytest.mark.parametrize("law", ["pareto", "student-t2", "mostly-zero"])
@pytest.mark.parametrize("num", [40, 53])  # just before the rank changes: the error is largest
def test_one_rank_higher_is_no_lower_limit(law: str, num: int) -> None:
    rank = lower_rank(num, COVERAGE, CONFIDENCE) - 1
    values = np.partition(_draws(law, num, seed=num), num - rank, axis=1)[:, num - rank]
    assert (LAWS[law][1](values) > COVERAGE).sum() > MAX_FAILURES


@given(num=st.integers(1, 500), coverage=shares, confidence=shares)
def test_the_lower_rank_is_the_smallest_that_the_definition_allows(
    num: int, coverage: float, confidence: float
) -> None:
    rank = lower_rank(num, coverage, confidence)
    assert stats.binom.cdf(rank - 1, num, 1 - coverage) >= confidence - 1e-12
    assert rank == 1 or stats.binom.cdf(rank - 2, num, 1 - coverage) < confidence + 1e-12


def test_too_few_decisions_for_a_lower_limit_leave_zero() -> None:
    bound = order_statistic_bound(np.ones(5), 0.5, 0.95, 2)
    assert (bound.value, bound.lower) == (1.0, 1.0)
    assert lower_rank(2, 0.3, 0.9) == 3
    assert order_statistic_bound(np.ones(2), 0.3, 0.9, 2).lower == 0.0


@pytest.mark.parametrize("law", ["pareto", "student-t2", "mostly-zero"])
@pytest.mark.parametrize(("num", "rank"), [(40, 1), (59, 2), (181, 6)])
def test_too_few_decisions_or_too_small_an_order_statistic_fails_the_simulation(
    law: str, num: int, rank: int
) -> None:
    values = np.partition(_draws(law, num, seed=num), num - rank, axis=1)[:, num - rank]
    assert (LAWS[law][1](values) < COVERAGE).sum() > MAX_FAILURES


def test_exceedance_rate_is_exact_for_a_continuous_law() -> None:
    draws = _draws("pareto", 181, seed=5)
    bounds = [order_statistic_bound(row, COVERAGE, CONFIDENCE, 2) for row in draws]
    rates = 1 - _pareto_share(np.array([bound.value for bound in bounds]))
    num_beyond = int((rates > bounds[0].exceedance_rate_upper).sum())
    assert stats.binomtest(num_beyond, NUM_RUNS, 1 - CONFIDENCE).pvalue > 1e-6
