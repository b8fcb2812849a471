from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrate.sensitivity import (
    Pair,
    Scores,
    axis_finding,
    decision_magnitudes,
    decision_ranges,
    moved_bits,
    movement_quantiles,
    winner_changes,
)
from harness.errors import GuardRefusalError, InsufficientEvidenceError, InvalidRecordError
from harness.records import AxisStatus

DECISION_OF_ROW = np.array([0, 0, 1, 1, 1, 2])
SCORES = np.array(
    [
        [1.0, 2.0, 3.0, -4.0, 5.0, 6.0],
        [1.0, 2.5, 3.0, -4.0, 5.0, 6.0],
        [1.0, 2.0, 3.0, -4.25, 5.125, 6.0],
    ]
)

finite_scores = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 5), st.just(6)), elements=st.floats(-1e6, 1e6)
)


def pair(*moves: tuple[int, float]) -> Pair:
    left, right = SCORES[0].copy(), SCORES[0].copy()
    for row, score in moves:
        right[row] = score
    return left, right


def test_a_decision_moves_as_far_as_its_worst_branch() -> None:
    assert decision_ranges(SCORES, DECISION_OF_ROW).tolist() == [0.5, 0.25, 0.0]


@given(scores=finite_scores, seed=st.integers(0, 100))
def test_ranges_do_not_depend_on_the_order_of_compositions_or_rows(
    scores: Scores, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    expected = decision_ranges(scores, DECISION_OF_ROW)
    rows = rng.permutation(6)
    shuffled = rng.permutation(scores)[:, rows]
    assert np.array_equal(decision_ranges(shuffled, DECISION_OF_ROW[rows]), expected)


@given(scores=finite_scores)
def test_ranges_never_fall_with_another_composition(scores: Scores) -> None:
    fewer = decision_ranges(scores, DECISION_OF_ROW)
    assert (decision_ranges(np.vstack((scores, SCORES)), DECISION_OF_ROW) >= fewer).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_non_finite_score_is_named_by_composition_and_row(wrong: float) -> None:
    scores = SCORES.copy()
    scores[2, 4] = wrong
    with pytest.raises(InvalidRecordError, match=r"1 of 18 .* composition 2, row 4 \(decision 1\)"):
        decision_ranges(scores, DECISION_OF_ROW)


@pytest.mark.parametrize(
    "scores",
    [SCORES[:0], SCORES[:1], SCORES[:, :0]],
    ids=["no compositions", "one composition", "no rows"],
)
def test_nothing_to_compare_is_an_error_and_not_a_zero(scores: Scores) -> None:
    decision_of_row = DECISION_OF_ROW[: scores.shape[1]]
    with pytest.raises(InsufficientEvidenceError, match="comparison over zero items"):
        decision_ranges(scores, decision_of_row)


@pytest.mark.parametrize(
    ("scores", "decisions", "message"),
    [
        (SCORES[0], [0, 0, 1, 1, 1, 2], r"`\[compositions, rows\]`"),
        (SCORES, [0, 0, 1], "same rows"),
        (SCORES, [0, 0, 1, 1, 1, 3], "1 decisions have no row, the first: 2"),
        (SCORES, [0, 0, 1, 1, 1, -1], "negative"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    scores: Scores, decisions: list[int], message: str
) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        decision_ranges(scores, np.array(decisions))


def test_magnitudes_are_of_the_largest_score() -> None:
    assert decision_magnitudes(SCORES[0], DECISION_OF_ROW).tolist() == [2.0, 5.0, 6.0]


def test_minus_zero_has_moved_a_bit_by_a_distance_of_0() -> None:
    finding = axis_finding(
        "num_rows", [(np.array([0.0, 1.0]), np.array([-0.0, 1.0]))], np.array([0, 1]), [], 0.95
    )
    assert finding.status is AxisStatus.MOVED
    assert finding.num_scores_moved == 1
    assert finding.max_movement == 0.0


def test_the_smallest_step_is_a_movement() -> None:
    assert moved_bits(np.array([1.0, 1.0]), np.array([1.0, np.nextafter(1, 2)])).tolist() == [
        False,
        True,
    ]


def test_an_axis_counts_decisions_once_and_scores_each_time() -> None:
    pairs = [pair((0, 1.5)), pair((0, 1.25), (1, 2.125)), pair()]
    finding = axis_finding("num_rows", pairs, DECISION_OF_ROW, ["1 against 3"], 0.95)
    assert finding.status is AxisStatus.MOVED
    assert finding.settings == ("1 against 3",)
    assert (finding.num_decisions, finding.num_decisions_moved) == (3, 1)
    assert (finding.num_scores, finding.num_scores_moved) == (18, 3)
    assert finding.max_movement == 0.5
    assert finding.moved_rate_upper == pytest.approx(0.8646, abs=1e-4)


def test_an_axis_that_moved_nothing_is_invariant_with_a_rate() -> None:
    finding = axis_finding("num_rows", [pair()], DECISION_OF_ROW, [], 0.95)
    assert finding.status is AxisStatus.INVARIANT
    assert finding.moved_rate_upper == pytest.approx(1 - 0.05 ** (1 / 3))


def test_an_axis_without_pairs_is_not_exercised() -> None:
    finding = axis_finding("num_rows", [], DECISION_OF_ROW, [], 0.95)
    assert finding.status is AxisStatus.NOT_EXERCISED
    assert finding.moved_rate_upper == 1.0


def test_rows_of_some_decisions_only_count_those_decisions() -> None:
    finding = axis_finding("companions", [pair()], np.array([7, 7, 9, 9, 9, 9]), [], 0.95)
    assert finding.num_decisions == 2


@pytest.mark.parametrize("other", ["same object", "view"])
def test_a_vector_compared_with_itself_is_refused(other: str) -> None:
    left = SCORES[0].copy()
    right = left if other == "same object" else left[:]
    with pytest.raises(GuardRefusalError, match=r"distinct_arms.*the same path"):
        axis_finding("num_rows", [(left, right)], DECISION_OF_ROW, [], 0.95)


def test_equal_vectors_from_two_runs_are_evidence() -> None:
    finding = axis_finding(
        "num_rows", [(SCORES[0].copy(), SCORES[0].copy())], DECISION_OF_ROW, [], 0.95
    )
    assert finding.status is AxisStatus.INVARIANT


def test_an_axis_refuses_a_score_that_is_not_finite_and_zero_rows() -> None:
    with pytest.raises(InvalidRecordError, match="not finite"):
        axis_finding("num_rows", [pair((3, np.nan))], DECISION_OF_ROW, [], 0.95)
    empty = (np.zeros(0), np.ones(0))
    with pytest.raises(InsufficientEvidenceError, match="zero items"):
        axis_finding("num_rows", [empty], np.zeros(0, np.int64), [], 0.95)


@pytest.mark.parametrize(
    ("moves", "changes"),
    [
        ([], 0),
        ([(0, 3.0)], 1),
        ([(0, 2.0)], 1),  # a tie goes to the lower row
        ([(0, 1.999)], 0),
        ([(2, 5.0)], 1),
        ([(3, 5.0)], 1),
        ([(0, 9.0), (2, 9.0), (5, -9.0)], 2),  # a single branch always wins
    ],
)
def test_winner_changes(moves: list[tuple[int, float]], changes: int) -> None:
    left, right = pair(*moves)
    assert winner_changes(left, right, DECISION_OF_ROW) == changes
    assert winner_changes(right, left, DECISION_OF_ROW) == changes


@given(scores=finite_scores)
def test_winners_are_those_of_a_plain_loop(scores: Scores) -> None:
    scores = np.round(scores / 5e5)  # many ties
    groups = [np.array(rows) for rows in ([0, 1], [2, 3, 4], [5])]
    first, second = ([int(g[np.argmax(side[g])]) for g in groups] for side in scores[:2])
    expected = sum(a != b for a, b in zip(first, second, strict=True))
    assert winner_changes(scores[0], scores[1], DECISION_OF_ROW) == expected


def test_winners_among_non_finite_scores_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="not finite"):
        winner_changes(*pair((0, np.nan)), DECISION_OF_ROW)


def test_quantiles_are_movements_that_were_seen() -> None:
    seen = movement_quantiles(np.array([0.0] * 95 + [1.0, 2.0, 3.0, 4.0, 100.0]))
    assert (seen.num_decisions, seen.num_moved) == (100, 5)
    assert (seen.median, seen.p90, seen.p99, seen.largest) == (0.0, 0.0, 4.0, 100.0)
    assert seen.mean == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("movements", "error"),
    [([], InsufficientEvidenceError), ([0.0, np.nan], InvalidRecordError)],
)
def test_quantiles_of_nothing_or_of_nan_are_refused(
    movements: list[float], error: type[Exception]
) -> None:
    with pytest.raises(error):
        movement_quantiles(cast("Scores", np.array(movements)))
