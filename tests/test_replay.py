"""Replays: the same call gives the same bits, another call is seen, and what is lost is said."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from harness.decisions import read_decisions
from harness.errors import InputFileError, UnsupportedConditionError
from harness.records.batching import FixedWidth, Lane, Lanes, Padded, PaddingSide, Solo
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Item
from harness.records.invocation import PrecisionName
from harness.replay import ReplayAs, replay_commits
from harness.scoring import ScoredDecisions, score_decisions
from tests.scored import DECISIONS, a_condition, a_spec

LEFT = PaddingSide.LEFT
LANES = Lanes(lanes=(Lane(rows=4, width=18), Lane(rows=5, width=40)))


def scored(batching: Any, model: str = "fake:coupled") -> ScoredDecisions:
    return score_decisions(a_spec(model), a_condition(), batching, DECISIONS)


@pytest.fixture(scope="module")
def run() -> ScoredDecisions:
    return scored(Padded(max_rows=2, side=LEFT))


def store(run: ScoredDecisions) -> dict[str, Item]:
    return {item.content_digest: item for item in run.items}


def item_of(run: ScoredDecisions, context: str, text: str) -> str:
    (found,) = (i for i in run.items if i.context.endswith(context) and i.text == text)
    return found.content_digest


def check_same(commit: CommitRecord, replay: ReplayRecord) -> None:
    assert (replay.commit_id, replay.decision_id) == (commit.commit_id, commit.decision_id)
    assert replay.scores == commit.scores
    assert replay.invocation == commit.invocation
    assert replay.notes == ()


def test_the_embedded_verifier_replays_to_the_bit() -> None:
    """And, as the negative control, does not when each row is alone: the batcher counts."""
    decisions = read_decisions("embedded:decisions", limit=6)
    batching = Padded(max_rows=16, side=LEFT)
    run = score_decisions(a_spec("embedded:reward"), a_condition(), batching, decisions)
    for commit, replay in zip(run.commits, replay_commits(run.commits, store(run)), strict=True):
        check_same(commit, replay)
    alone = replay_commits(run.commits, store(run), ReplayAs(batching=Solo()))
    moved = [
        abs(commit.scores[branch] - score)
        for commit, replay in zip(run.commits, alone, strict=True)
        for branch, score in replay.numeric_scores().items()
    ]
    assert 0 < max(moved) < 1
    assert len(moved) == sum(len(decision.branches) for decision in decisions)


@pytest.mark.parametrize(
    "batching", [Solo(), Padded(max_rows=7), FixedWidth(width=50, max_rows=3, side=LEFT), LANES]
)
def test_a_replay_is_the_same_call(batching: Any) -> None:
    run = scored(batching)
    for commit, replay in zip(run.commits, replay_commits(run.commits, store(run)), strict=True):
        check_same(commit, replay)


def test_another_batching_is_another_membership(run: ScoredDecisions) -> None:
    replays = replay_commits(run.commits, store(run), ReplayAs(batching=Padded(max_rows=7)))
    for commit, replay in zip(run.commits, replays, strict=True):
        assert replay.scores.keys() == commit.scores.keys()
        assert replay.scores != commit.scores
        (step,) = replay.invocation.batch_membership.steps
        assert len(step.slots) == 7
        assert {slot.branch_id for slot in step.slots} - {None} == commit.scores.keys()
        assert replay.invocation.batch_membership.requested == Padded(max_rows=7)
        assert replay.notes == ()


def test_the_rows_of_another_batching_are_their_own(run: ScoredDecisions) -> None:
    exact = scored(Padded(max_rows=2), "fake:exact")
    replays = replay_commits(exact.commits, store(exact), ReplayAs(batching=Padded(max_rows=5)))
    assert [replay.scores for replay in replays] == [commit.scores for commit in exact.commits]


def test_another_condition_and_another_verifier(run: ScoredDecisions) -> None:
    other = ReplayAs(
        condition=a_condition(PrecisionName.FLOAT32), verifier=a_spec("fake:exact"), replica="r1"
    )
    (replay, *_) = replay_commits(run.commits, store(run), other)
    commit = run.commits[0]
    assert replay.replica == "r1"
    assert replay.invocation.precision_mode.name is PrecisionName.FLOAT32
    assert replay.invocation.build.build_id != commit.invocation.build.build_id
    assert replay.invocation.batch_membership == commit.invocation.batch_membership


def test_one_commit_of_many_brings_its_companions(run: ScoredDecisions) -> None:
    (replay,) = replay_commits(run.commits[1:2], store(run))
    check_same(run.commits[1], replay)


def test_commits_come_back_in_their_order(run: ScoredDecisions) -> None:
    solo = scored(Solo(), "fake:exact")
    mixed = [run.commits[1], solo.commits[0], run.commits[0], solo.commits[2]]
    replays = replay_commits(mixed, store(run) | store(solo))
    for commit, replay in zip(mixed, replays, strict=True):
        check_same(commit, replay)


def test_nothing_replays_to_nothing() -> None:
    assert replay_commits((), {}) == ()


def without(items: Mapping[str, Item], lost: str) -> dict[str, Item]:
    return {name: item for name, item in items.items() if name != lost}


def test_a_lost_companion_is_noted_and_leaves_another_membership(run: ScoredDecisions) -> None:
    commit = run.commits[1]
    items = without(store(run), item_of(run, "d2", "seventeen"))
    (replay,) = replay_commits([commit], items)
    assert replay.notes == ("1 companions are not in the item store",)
    membership = replay.invocation.batch_membership
    assert membership != commit.invocation.batch_membership
    assert [len(step.slots) for step in membership.steps] == [1, 2]
    assert membership.steps[0].padded_width == (
        commit.invocation.batch_membership.steps[0].padded_width
    )
    assert replay.scores["b0"] != commit.scores["b0"]
    assert replay.scores["b2"] == commit.scores["b2"]


def test_a_lost_companion_leaves_a_lanes_shape_and_its_scores() -> None:
    run = scored(LANES, "fake:rounding")
    commit = run.commits[0]
    items = without(store(run), item_of(run, "d10", "other"))
    (replay,) = replay_commits([commit], items)
    assert replay.notes == ("1 companions are not in the item store",)
    assert replay.scores == commit.scores
    steps = [r.invocation.batch_membership.steps for r in (commit, replay)]
    assert [[(s.padded_rows, s.padded_width) for s in mine] for mine in steps] == [
        [(4, 18), (5, 40)]
    ] * 2
    assert [[len(step.slots) for step in mine] for mine in steps] == [[2, 5], [2, 4]]


def test_a_row_that_outgrew_its_lane_is_scored_and_seen() -> None:
    """Another tokenizer makes longer rows: the forward grows, and the record says so."""
    run = scored(LANES, "fake:rounding")
    longer = {name: replace(item, text=item.text + "!" * 40) for name, item in store(run).items()}
    (replay, *_) = replay_commits(run.commits[:1], longer)
    for step in replay.invocation.batch_membership.steps:
        assert step.padded_width == step.longest + 1


def test_a_lost_branch_is_refused(run: ScoredDecisions) -> None:
    commit = run.commits[1]
    items = without(store(run), item_of(run, "d10", "same"))
    message = f"commit {commit.commit_id}, branch 'b0': its text is not in the item store"
    with pytest.raises(InputFileError, match=message):
        replay_commits([commit], items)


def test_an_engines_commit_is_refused(run: ScoredDecisions) -> None:
    commit = run.commits[0]
    foreign = replace(commit, invocation=replace(commit.invocation, condition={"dtype": "auto"}))
    with pytest.raises(
        UnsupportedConditionError, match=f"{commit.commit_id}: its condition is not"
    ):
        replay_commits([foreign], store(run))
    step = replace(
        commit.invocation.batch_membership.steps[0], padded_width=None, padding_side=None
    )
    membership = replace(commit.invocation.batch_membership, steps=(step,))
    packed = replace(commit, invocation=replace(commit.invocation, batch_membership=membership))
    with pytest.raises(UnsupportedConditionError, match="no scheduler runs here"):
        replay_commits([packed], store(run))


def test_progress_counts_rows_once(run: ScoredDecisions) -> None:
    done: list[int] = []
    replay_commits(run.commits, store(run), advance=done.append)
    assert done == [2, 2, 2, 1]
