"""A few replicas of the embedded verifier, run for real: an honest one and two that lie."""

from functools import partial

import pytest

from calibrate.power.derived import ForgottenMerges, Int8
from calibrate.power.replicas import Difference, Planted, Replica, replay_planted
from calibrate.power.rules import OURS, STRICT, rules
from calibrate.power.side_by_side import side_by_side
from calibrate.power.stage import taking_part
from harness.decisions import read_decisions
from harness.judge.tolerances import Tolerances
from harness.records import CommitRecord
from harness.records.batching import Padded, PaddingSide
from harness.records.tolerance import CoveredBatches
from harness.scoring import score_decisions
from tests.examples import a_bound, a_tolerance, a_tolerance_file
from tests.scored import a_condition, a_spec

MODEL = a_spec("embedded:reward")
ENVELOPE = 0.265625
REPLICAS = (
    Replica(name="honest", difference=Difference.WEIGHTS, differs="nothing"),
    Replica(name="int8", difference=Difference.WEIGHTS, differs="int8", change=Int8()),
    Replica(
        name="merges", difference=Difference.PROMPT, differs="merges", change=ForgottenMerges()
    ),
)


@pytest.fixture(scope="module")
def commits_and_planted() -> tuple[tuple[CommitRecord, ...], dict[str, Planted]]:
    decisions = taking_part(read_decisions("embedded:decisions"), 3, limit=20)
    scored = score_decisions(MODEL, a_condition(), Padded(max_rows=12), decisions)
    items = {item.content_digest: item for item in scored.items}
    calls = [partial(replay_planted, MODEL, replica, scored.commits, items) for replica in REPLICAS]
    found = side_by_side(calls, 2, lambda _: None)
    return scored.commits, {one.replica.name: one for one in found}


def called(
    found: tuple[tuple[CommitRecord, ...], dict[str, Planted]], replica: str
) -> dict[str, int]:
    """Return rule -> how many of the replica's replays it calls a fault."""
    commits, planted = found
    invocation = commits[0].invocation
    tolerance = a_tolerance(
        precision_mode=invocation.precision_mode,
        reduction_order=invocation.reduction_order,
        batches=CoveredBatches(
            mode="padded", max_rows=32, max_width=88, sides=(PaddingSide.RIGHT,)
        ),
        floor=a_bound(0.0),
        envelope=a_bound(ENVELOPE),
    )
    file = a_tolerance_file(build=invocation.build, tolerances=(tolerance,))
    pairs = list(zip(commits, planted[replica].replays, strict=True))
    return {
        rule.name: sum(rule.is_fault(*pair) for pair in pairs)
        for rule in rules(Tolerances(files=(file,)), ENVELOPE, None)
    }


def test_an_honest_replica_keeps_every_bit(
    commits_and_planted: tuple[tuple[CommitRecord, ...], dict[str, Planted]],
) -> None:
    assert set(called(commits_and_planted, "honest").values()) == {0}


def test_int8_weights_are_found_in_nearly_every_replay_under_strict(
    commits_and_planted: tuple[tuple[CommitRecord, ...], dict[str, Planted]],
) -> None:
    found = called(commits_and_planted, "int8")
    assert found[STRICT] == found["exact"] >= 19
    assert found["argmax"] < 5
    changed = commits_and_planted[1]["int8"].num_weights_changed
    assert changed is not None
    assert changed > 100_000


def test_another_tokenizer_is_a_divergence(
    commits_and_planted: tuple[tuple[CommitRecord, ...], dict[str, Planted]],
) -> None:
    found = called(commits_and_planted, "merges")
    assert found[OURS] >= 15
    assert commits_and_planted[1]["merges"].num_weights_changed == 0
