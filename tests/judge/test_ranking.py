import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidRecordError, InvalidToleranceError
from harness.judge.ranking import decision_impact, is_fragile, margin, stable_ranking, winner

SCORES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.floats(-4, 4) | st.sampled_from([0.0, -0.0, 0.5, 1.0]),
    min_size=1,
    max_size=8,
)
TOLERANCES = st.sampled_from([0.0, 0.25, 0.5, 10.0])


def test_ties_are_ordered_by_branch_id() -> None:
    scores = {"d": 0.99, "c": 1.0, "b": 0.5, "a": 0.49}
    assert stable_ranking(scores, 0.0) == ("c", "d", "b", "a")
    assert stable_ranking(scores, 0.02) == ("c", "d", "a", "b")
    assert stable_ranking(scores, 1.0) == ("a", "b", "c", "d")


def test_a_chain_of_small_steps_is_no_tie() -> None:
    assert stable_ranking({"a": 0.0, "b": 0.5, "c": 1.0}, 0.5) == ("b", "c", "a")


def test_a_gap_equal_to_the_tolerance_is_a_tie() -> None:
    assert stable_ranking({"b": 1.0, "a": 0.5}, 0.5) == ("a", "b")
    assert stable_ranking({"b": 1.0, "a": 0.5}, math.nextafter(0.5, 0)) == ("b", "a")


@given(SCORES, TOLERANCES, st.randoms())
def test_a_ranking_holds_every_branch_and_ignores_order(
    scores: dict[str, float], tolerance: float, shuffler: random.Random
) -> None:
    ranking = stable_ranking(scores, tolerance)
    assert sorted(ranking) == sorted(scores)
    shuffled = list(scores.items())
    shuffler.shuffle(shuffled)
    assert stable_ranking(dict(shuffled), tolerance) == ranking
    for better, worse in combinations(ranking, 2):
        assert scores[worse] - scores[better] <= tolerance


@given(SCORES)
def test_the_first_of_an_exact_ranking_wins(scores: dict[str, float]) -> None:
    best = max(scores.values())
    assert winner(scores) == min(branch for branch in scores if scores[branch] == best)
    assert stable_ranking(scores, 0.0)[0] == winner(scores)


def test_margin_and_fragility() -> None:
    assert margin({"a": 1.0}) is None
    assert margin({"a": 1.0, "b": 0.25, "c": 0.75}) == 0.25
    assert not is_fragile({"a": 1.0}, 10.0)
    assert is_fragile({"a": 1.0, "b": 0.75}, 0.25)
    assert not is_fragile({"a": 1.0, "b": 0.75}, 0.2)


def test_impact() -> None:
    commit = {"a": 1.0, "b": 0.75, "c": 0.0}
    kept = decision_impact(commit, {"a": 2.0, "b": 1.0, "c": 0.9}, 0.0)
    assert (kept.top1_changed, kept.order_inversions, kept.within_tie) == (False, 0, True)
    near = decision_impact(commit, {"a": 0.7, "b": 0.75, "c": 0.0}, 0.25)
    assert (near.top1_changed, near.order_inversions, near.within_tie) == (True, 1, True)
    far = decision_impact(commit, {"a": 0.7, "b": 0.75, "c": 0.0}, 0.2)
    assert (far.top1_changed, far.order_inversions, far.within_tie) == (True, 1, False)
    turned = decision_impact(commit, {"a": 0.0, "b": 1.0, "c": 2.0}, 0.5)
    assert (turned.top1_changed, turned.order_inversions, turned.within_tie) == (True, 3, False)
    tied = decision_impact({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, 0.0)
    assert (tied.top1_changed, tied.order_inversions, tied.within_tie) == (True, 0, True)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=7))
def test_inversions_are_counted_pair_by_pair(pairs: list[tuple[int, int]]) -> None:
    commit = {str(at): float(pair[0]) for at, pair in enumerate(pairs)}
    replay = {str(at): float(pair[1]) for at, pair in enumerate(pairs)}
    reversed_pairs = sum(
        (commit[x] - commit[y]) * (replay[x] - replay[y]) < 0 for x, y in combinations(commit, 2)
    )
    assert decision_impact(commit, replay, 0.0).order_inversions == reversed_pairs


NO_TOLERANCES = [math.nan, math.inf, -math.inf, -1e-300, True, None, "0.1", 10**400, 1j, [0.1]]


@pytest.mark.parametrize("tolerance", NO_TOLERANCES, ids=repr)
def test_a_tolerance_is_a_finite_number_from_zero_up(tolerance: float) -> None:
    with pytest.raises(InvalidToleranceError, match="a tolerance is a"):
        stable_ranking({"a": 1.0}, tolerance)
    with pytest.raises(InvalidToleranceError, match="a tolerance is a"):
        is_fragile({"a": 1.0, "b": 2.0}, tolerance)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, True, None, "1"], ids=repr)
def test_only_finite_scores_are_ranked(score: float) -> None:
    for scores in ({"a": 1.0, "b": score}, {}):
        with pytest.raises(InvalidRecordError):
            stable_ranking(scores, 0.1)
        with pytest.raises(InvalidRecordError):
            margin(scores)
