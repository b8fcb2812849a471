"""Scoring decisions: the right score to the right branch, and the batches as they were."""

from typing import Any

import pytest

from harness.errors import ConfigError, InvalidRecordError
from harness.records.batching import (
    Companions,
    FixedWidth,
    Lane,
    Lanes,
    Order,
    Padded,
    PaddingSide,
    Solo,
)
from harness.records.commit import CommitRecord, ScoreUnit
from harness.records.verifier import Overflow
from harness.scoring import ScoredDecisions, score_decisions
from harness.verifiers import RowText, open_verifier
from tests.scored import DECISIONS, a_condition, a_spec

LANES = Lanes(lanes=(Lane(rows=4, width=18), Lane(rows=2, width=40)))
TWO = Padded(max_rows=2, side=PaddingSide.LEFT)


def scored(batching: Any = TWO, model: str = "fake:exact", **options: Any) -> ScoredDecisions:
    return score_decisions(a_spec(model), a_condition(), batching, DECISIONS, **options)


def slots(commit: CommitRecord) -> list[list[tuple[str, str | None]]]:
    return [
        [(slot.request_id, slot.branch_id) for slot in step.slots]
        for step in commit.invocation.batch_membership.steps
    ]


def own_scores() -> dict[str, dict[str, float]]:
    """Each branch scored by itself, in this process, with nothing of the code under test."""
    verifier = open_verifier(a_spec("fake:exact"), a_condition())
    found: dict[str, dict[str, float]] = {}
    for decision in DECISIONS:
        for branch in decision.branches:
            (row,) = verifier.encode([RowText(context=decision.context, branch=branch.text)])
            (score,) = verifier.score([row], len(row.token_ids), None)
            found.setdefault(decision.decision_id, {})[branch.branch_id] = score
    return found


@pytest.mark.parametrize(
    "batching",
    [
        Solo(),
        TWO,
        Padded(max_rows=3, order=Order.LENGTH),
        Padded(max_rows=32, order=Order.SHUFFLED),
        FixedWidth(width=40, max_rows=2, companions=Companions.SAME_DECISION),
        LANES,
        Lanes(lanes=LANES.lanes, max_rows=1, order=Order.SHUFFLED),
    ],
)
def test_every_branch_gets_its_own_score(batching: Any) -> None:
    found = scored(batching, seed=3)
    assert [commit.decision_id for commit in found.commits] == ["d2", "d10", "d1"]
    expected = own_scores()
    assert {commit.decision_id: commit.scores for commit in found.commits} == expected
    for commit in found.commits:
        assert commit.winner == max(sorted(commit.scores), key=commit.scores.__getitem__)
        assert commit.invocation.batch_membership.branch_ids == commit.scores.keys()


def test_each_commit_lists_the_batches_its_branches_were_in() -> None:
    first, second, third = scored().commits
    assert slots(first) == [
        [("d2/b0", "b0"), ("d2/b1", "b1")],
        [("d2/b2", "b2"), ("d10/b0", None)],
    ]
    assert slots(second) == [
        [("d2/b2", None), ("d10/b0", "b0")],
        [("d10/b1", "b1"), ("d10/b2", "b2")],
    ]
    assert slots(third) == [[("d1/b0", "b0")]]
    membership = first.invocation.batch_membership
    widths = [max(slot.num_tokens for slot in step.slots) for step in membership.steps]
    assert [step.padded_width for step in membership.steps] == widths
    assert {step.padding_side for step in membership.steps} == {PaddingSide.LEFT}
    assert membership.requested == TWO


def test_a_forward_of_a_lane_is_recorded_as_it_was() -> None:
    steps = [step for commit in scored(LANES).commits for step in slots_and_shapes(commit)]
    assert steps == [
        (["d2/b0", "d1/b0"], 4, 18),
        (["d2/b1", "d2/b2"], 2, 40),
        (["d10/b0", "d10/b1"], 2, 40),
        (["d10/b2"], 2, 40),
        (["d2/b0", "d1/b0"], 4, 18),
    ]


def slots_and_shapes(commit: CommitRecord) -> list[tuple[list[str], int | None, int | None]]:
    return [
        ([slot.request_id for slot in step.slots], step.padded_rows, step.padded_width)
        for step in commit.invocation.batch_membership.steps
    ]


def test_a_text_that_stands_twice_is_two_rows_and_one_item() -> None:
    found = scored()
    commit = found.commits[1]
    assert commit.scores["b0"] == commit.scores["b1"] != commit.scores["b2"]
    assert len(found.items) == 6
    assert {item.text for item in found.items if "d10" in item.context} == {"same", "other"}
    digests = {item.content_digest for item in found.items}
    for each in found.commits:
        for step in each.invocation.batch_membership.steps:
            assert digests.issuperset(slot.content_digest for slot in step.slots)


def test_ids_and_flags() -> None:
    found, again, other = scored(), scored(), scored(Solo(), committed=False)
    ids = [commit.commit_id for commit in found.commits]
    assert ids == [commit.commit_id for commit in again.commits]
    assert set(ids).isdisjoint(commit.commit_id for commit in other.commits)
    assert all(commit.committed for commit in found.commits)
    assert not any(commit.committed for commit in other.commits)
    assert {commit.score_unit for commit in found.commits} == {ScoreUnit.LOGIT}


def test_progress_counts_rows() -> None:
    done: list[int] = []
    scored(advance=done.append)
    assert done == [2, 2, 2, 1]


def test_a_score_that_is_no_number_names_its_decision() -> None:
    with pytest.raises(InvalidRecordError, match="decision 'd2': the score of branch 'b0' is not"):
        scored(Padded(max_rows=7), "fake:nan")


def test_truncated_rows_are_counted() -> None:
    spec = a_spec("fake:exact", max_tokens=17, overflow=Overflow.KEEP_END)
    found = score_decisions(spec, a_condition(), TWO, DECISIONS)
    assert [commit.num_truncated for commit in found.commits] == [2, 3, 0]


def test_a_row_wider_than_the_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="the fixed width is 9"):
        scored(FixedWidth(width=9))
