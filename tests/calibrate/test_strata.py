"""Strata on scores drawn at random: the test's level, its power, and what the envelopes cover."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import stats

from calibrate import strata as module
from calibrate.sensitivity import Indices, Scores
from calibrate.statistics import largest_rank
from calibrate.strata import RowSizes, StrataInput, find_strata
from harness.records import Strata, StratumAxis

LENGTH, WIDTH = StratumAxis.TOKEN_LENGTH, StratumAxis.PADDED_WIDTH
NUM_DECISIONS = 300
BRANCHES = 2
NUM_COMPOSITIONS = 6

Law = Callable[[np.random.Generator, tuple[int, ...]], Scores]


def _student(generator: np.random.Generator, shape: tuple[int, ...]) -> Scores:
    return np.asarray(generator.standard_t(2, shape))


def _lattice(generator: np.random.Generator, shape: tuple[int, ...]) -> Scores:
    return np.round(_student(generator, shape) * 4) / 4


def _mostly_zero(generator: np.random.Generator, shape: tuple[int, ...]) -> Scores:
    return np.where(generator.random(shape) < 0.98, 0.0, _student(generator, shape))


LAWS: dict[str, Law] = {"student-t2": _student, "lattice": _lattice, "mostly-zero": _mostly_zero}


def drawn(
    seed: int,
    law: str = "student-t2",
    num_decisions: int = NUM_DECISIONS,
    by_length: Callable[[Indices], Scores] = np.ones_like,
    by_width: Callable[[Indices], Scores] = np.ones_like,
    **changes: Any,
) -> StrataInput:
    """Draw scores whose scale may depend on a row's length, or on the width it is padded to."""
    generator = np.random.default_rng(seed)
    num_rows = num_decisions * BRANCHES
    lengths = generator.integers(20, 100, num_rows)
    owners = np.repeat(np.arange(num_decisions), BRANCHES)
    companions = generator.integers(20, 100, (NUM_COMPOSITIONS, num_decisions))
    widths = np.maximum(lengths.reshape(-1, BRANCHES).max(axis=1), companions)[:, owners]
    scores = LAWS[law](generator, widths.shape) * by_length(lengths) * by_width(widths)
    given = StrataInput(
        scores=scores,
        decision_of_row=owners,
        sizes=RowSizes(num_tokens=lengths, widths=widths),
        coverage=0.9,
        confidence=0.9,
        seed=seed,
    )
    return replace(given, **changes)


def found(given: StrataInput, floor: float = 0.0) -> dict[StratumAxis, Strata]:
    return {one.axis: one for one in find_strata(given, floor)}


def longer_moves_more(lengths: Indices) -> Scores:
    return np.where(lengths > 70, 8.0, 1.0)


@pytest.mark.parametrize("law", LAWS)
def test_where_no_size_matters_the_tests_keep_their_level(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUM_PERMUTATIONS", 19)
    runs = 120
    p_values = [
        [one.p_value for one in find_strata(drawn(seed, law, num_decisions=40), 0.0)]
        for seed in range(runs)
    ]
    allowed = stats.binom.isf(1e-6, runs, 0.05)
    assert all((np.array(p_values) <= 0.05).sum(axis=0) <= allowed)


def test_compositions_with_the_same_bits_are_no_evidence_that_the_width_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four of eight compositions have one width, and then one score, as where only widths count."""
    monkeypatch.setattr(module, "NUM_PERMUTATIONS", 19)
    monkeypatch.setattr(module, "MOST_GROUPS", 2)  # up to 60, and 90
    runs, num = 60, 60
    widths = np.repeat([[90], [90], [90], [90], [30], [40], [50], [60]], num, axis=1)
    drawn_scores = np.random.default_rng(1).standard_t(2, (runs, 8, num))
    drawn_scores[:, 1:4] = drawn_scores[:, :1]
    sizes = RowSizes(num_tokens=np.full(num, 9), widths=widths)
    small = 0
    for seed, scores in enumerate(drawn_scores):
        given = drawn(seed, num_decisions=num // BRANCHES)
        own = replace(given, scores=scores, sizes=sizes, decision_of_row=np.arange(num))
        small += found(own)[WIDTH].p_value <= 0.05
    assert small <= stats.binom.isf(1e-6, runs, 0.05)


@pytest.mark.parametrize("law", ["student-t2", "lattice"])
def test_where_long_rows_move_further_it_is_seen_and_each_length_gets_an_envelope(law: str) -> None:
    """Negative control: the same draws with one scale for all are not split."""
    by_length = found(drawn(3, law, by_length=longer_moves_more))[LENGTH]
    assert 1 / 500 <= by_length.p_value <= by_length.level == 0.005, "never 0"
    assert by_length.num_missing == 0
    values = [one.envelope.value for one in by_length.strata]
    assert len(values) == 3
    assert values == sorted(values)
    assert values[0] < values[-1]
    assert found(drawn(3, law))[LENGTH].strata == ()


def test_mostly_zero_movement_is_seen_too() -> None:
    given = drawn(4, "mostly-zero", 400, by_length=lambda n: np.where(n > 70, 1.0, 0.0))
    assert found(given)[LENGTH].strata[0].envelope.value == 0.0
    assert found(drawn(4, "mostly-zero", 400))[LENGTH].strata == ()


def test_groups_hold_every_decision_once_and_about_as_many_each() -> None:
    strata = found(drawn(3, by_length=longer_moves_more))[LENGTH].strata
    assert sum(one.envelope.num_decisions for one in strata) == NUM_DECISIONS
    assert max(abs(one.envelope.num_decisions - NUM_DECISIONS / 3) for one in strata) < 15
    assert [one.lower for one in strata[1:]] == [one.upper + 1 for one in strata[:-1]]


def test_where_narrow_batches_move_it_is_seen_by_width() -> None:
    """At widths up to 70 every width has its own noise; beyond, nothing moves at all."""
    by_width = found(drawn(5, by_width=lambda w: np.where(w > 70, 0.0, 1.0)))[WIDTH]
    assert by_width.p_value <= by_width.level
    assert found(drawn(5))[WIDTH].p_value > by_width.level


def test_the_movement_by_width_reaches_to_every_other_width() -> None:
    """One composition stands apart: from there it is far to all, and from all it is far to it."""
    widths = np.array([[30] * 40, [30] * 40, [60] * 40])
    scores = np.zeros((3, 40))
    scores[2] = 5.0
    given = StrataInput(
        scores=scores,
        decision_of_row=np.arange(40),
        sizes=RowSizes(num_tokens=np.full(40, 9), widths=widths),
        coverage=0.9,
        confidence=0.9,
        seed=0,
    )
    groups = module._by_width(given)
    assert groups is not None
    assert [(group.lower, group.upper) for group in groups.groups] == [(30, 30), (31, 60)]
    assert [set(group.movements) for group in groups.groups] == [{5.0}, {5.0}]
    assert [group.num_compositions for group in groups.groups] == [2, 1]
    scores[1] = 2.0
    narrow = module._by_width(replace(given, scores=scores[:2], sizes=RowSizes(
        num_tokens=np.full(40, 9), widths=np.array([[30] * 40, [60] * 40]))))  # fmt: skip
    assert narrow is not None
    assert [set(group.movements) for group in narrow.groups] == [{2.0}, {2.0}]


def test_at_most_one_size_has_envelopes() -> None:
    given = drawn(7, by_length=longer_moves_more, by_width=lambda w: np.where(w > 70, 0.0, 1.0))
    both = found(given)
    assert len([one for one in both.values() if one.strata]) == 1


def test_too_few_decisions_give_two_groups_and_then_the_number_that_is_missing() -> None:
    # 0.9 at 1 - 0.1/3 needs 33 a group, at 1 - 0.1/2 it needs 29
    assert len(found(drawn(8, num_decisions=110, by_length=longer_moves_more))[LENGTH].strata) == 3
    assert len(found(drawn(8, num_decisions=80, by_length=longer_moves_more))[LENGTH].strata) == 2
    few = found(drawn(8, num_decisions=40, by_length=longer_moves_more))[LENGTH]
    assert few.strata == ()
    assert 18 <= few.num_missing <= 20


def test_the_same_decisions_count_at_every_width() -> None:
    few = found(drawn(9, num_decisions=20))[WIDTH]
    assert few.strata == ()
    assert 9 <= few.num_missing <= 20


def test_no_envelope_is_below_the_floor() -> None:
    strata = found(drawn(3, by_length=longer_moves_more), floor=50.0)[LENGTH].strata
    assert [one.envelope.value >= 50.0 for one in strata] == [True] * 3
    assert strata[0].envelope.value == 50.0


def test_the_envelopes_share_the_confidence_and_keep_the_coverage() -> None:
    strata = found(drawn(3, by_length=longer_moves_more))[LENGTH].strata
    assert {one.envelope.coverage for one in strata} == {0.9}
    assert [one.envelope.confidence for one in strata] == pytest.approx([1 - 0.1 / 3] * 3)
    for one in strata:
        assert one.envelope.rank == largest_rank(one.envelope.num_decisions, 0.9, 1 - 0.1 / 3)


@pytest.mark.parametrize("law", ["student-t2", "lattice"])
def test_all_envelopes_cover_together_as_often_as_they_say(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the next order statistic of each group fails the same simulation."""
    monkeypatch.setattr(module, "NUM_PERMUTATIONS", 1)
    monkeypatch.setattr(module, "LEVEL", 2.0)  # split whatever the test says
    runs = 200
    many = drawn(0, law, 60_000, by_length=longer_moves_more)
    lengths, truth = _movements(many)
    failures, failures_next = 0, 0
    for seed in range(runs):
        given = alone(drawn(seed + 1, law, 99, by_length=longer_moves_more))
        strata = found(given)[LENGTH].strata
        inside = [(one.lower <= lengths) & (lengths <= one.upper) for one in strata]
        failures += any(
            (truth[own] > one.envelope.value).mean() > 0.1
            for own, one in zip(inside, strata, strict=True)
        )
        failures_next += any(
            (truth[own] > value).mean() > 0.1
            for own, value in zip(inside, _next_values(given, strata), strict=True)
        )
    allowed = stats.binom.isf(1e-6, runs, 0.1)
    assert failures <= allowed < failures_next


def alone(given: StrataInput) -> StrataInput:
    """Return `given` at one width, so that only the length can split it."""
    same = replace(given.sizes, widths=np.full_like(given.sizes.widths, 100))
    return replace(given, sizes=same)


def _movements(given: StrataInput) -> tuple[Indices, NDArray[np.float64]]:
    ranges = np.ptp(given.scores, axis=0).reshape(-1, BRANCHES).max(axis=1)
    return given.sizes.num_tokens.reshape(-1, BRANCHES).max(axis=1), ranges


def _next_values(given: StrataInput, strata: Any) -> list[float]:
    lengths, movements = _movements(given)
    inside = [movements[(one.lower <= lengths) & (lengths <= one.upper)] for one in strata]
    return [
        float(np.sort(own)[-(one.envelope.rank + 1)])
        for own, one in zip(inside, strata, strict=True)
    ]


def test_one_size_for_all_is_no_size() -> None:
    given = alone(drawn(1))
    given = replace(given, sizes=replace(given.sizes, num_tokens=np.full(600, 50)))
    assert find_strata(given, 0.0) == ()


def test_the_same_seed_gives_the_same_result() -> None:
    assert find_strata(drawn(2), 0.0) == find_strata(drawn(2), 0.0)
    other = replace(drawn(2), seed=5)
    assert [one.p_value for one in find_strata(other, 0.0)] != [
        one.p_value for one in find_strata(drawn(2), 0.0)
    ]
