"""Lanes end to end: calibrated, committed, replayed in other company, judged."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calibrate.config import Arm, Claim
from harness.conditions.batching import RowShape, plan_batches
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.decisions import read_decisions, row_texts
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records import AxisStatus, Equivalence, Tolerance, VerdictKind
from harness.records.batching import Lane, Lanes, Order, Padded
from harness.records.tolerance import ToleranceFile
from harness.replay import ReplayAs, replay_commits
from harness.scoring import score_decisions
from harness.verifiers import open_verifier
from tests.calibrate.example_runs import a_config, an_arm, run, write_decisions
from tests.scored import a_condition, a_spec

ALIKE = 104  # decisions enough for every axis to be compared on 59 of them
LANES = Lanes(lanes=(Lane(rows=4, width=24), Lane(rows=4, width=32), Lane(rows=4, width=48)))


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_decisions(tmp_path_factory.mktemp("data") / "decisions.jsonl", ALIKE)


def tolerances(
    decisions: str, folder: Path, model: str, *arms: Arm
) -> tuple[ToleranceFile, tuple[Tolerance, ...]]:
    file = run(a_config(decisions, model, arms=arms), folder).file
    return file, file.tolerances


def moved(tolerance: Tolerance) -> set[str]:
    return {one.axis for one in tolerance.axes if one.status is AxisStatus.MOVED}


def test_rounding_that_follows_the_shape_is_gone_in_lanes(decisions: str, tmp_path: Path) -> None:
    """And is there, in the same run, where rows are padded to the longest of them."""
    arms = an_arm(batching=LANES), an_arm(batching=Padded(max_rows=8))
    _, (lanes, padded) = tolerances(decisions, tmp_path, "fake:rounding", *arms)
    assert (lanes.floor.value, lanes.envelope.value) == (0.0, 0.0)
    assert lanes.equivalence is Equivalence.ANY
    assert lanes.batches.lanes == LANES.lanes
    assert (lanes.batches.mode, lanes.batches.max_rows) == ("lanes", 4)
    assert moved(lanes) == set()
    assert padded.equivalence is Equivalence.SHAPE
    assert padded.envelope.value > 0.0
    assert {"num_rows", "padded_width"} <= moved(padded)
    assert padded.batches.lanes == ()


def test_neighbours_that_reach_into_a_row_are_found_in_lanes_too(
    decisions: str, tmp_path: Path
) -> None:
    _, (lanes,) = tolerances(decisions, tmp_path, "fake:coupled", an_arm(batching=LANES))
    assert lanes.companion_coupled
    assert lanes.equivalence is Equivalence.EXACT
    assert lanes.envelope.value > 0.0
    assert {"num_rows", "companions", "row_position"} <= moved(lanes)


def test_a_lane_that_few_rows_reach_is_not_claimed(decisions: str, tmp_path: Path) -> None:
    table = (*LANES.lanes[:2], Lane(rows=64, width=48))
    file, (lanes,) = tolerances(
        decisions, tmp_path, "fake:exact", an_arm(batching=Lanes(lanes=table))
    )
    assert lanes.batches.lanes == table[:2]
    found = verdicts(file, an_arm(batching=Lanes(lanes=table)), 12, decisions, None)
    assert found == {VerdictKind.EXACT, VerdictKind.UNJUDGED}


def verdicts(
    file: ToleranceFile, arm: Arm, num_decisions: int, decisions: str, other: Any
) -> set[VerdictKind]:
    """Return how commits in the arm's own batches are judged when they are replayed in `other`."""
    scored = score_decisions(
        file.build.verifier,
        arm.condition,
        arm.batching,
        read_decisions(decisions, num_decisions),
    )
    items = {item.content_digest: item for item in scored.items}
    replays = replay_commits(scored.commits, items, ReplayAs(batching=other))
    return {
        judge(commit, replay, Tolerances(files=(file,))).kind
        for commit, replay in zip(scored.commits, replays, strict=True)
    }


ELSEWHERE = {
    "fewer real rows": (replace(LANES, max_rows=3), VerdictKind.EXACT),
    "each row alone": (replace(LANES, max_rows=1), VerdictKind.EXACT),
    "other company": (replace(LANES, order=Order.LENGTH), VerdictKind.EXACT),
    "another lane table": (Lanes(lanes=LANES.lanes[2:]), VerdictKind.RECONSTRUCTION),
    "padded": (Padded(max_rows=8), VerdictKind.RECONSTRUCTION),
}


def test_commits_replay_to_the_bit_in_any_company_of_their_lanes(
    decisions: str, tmp_path: Path
) -> None:
    arm = an_arm(batching=LANES)
    file, _ = tolerances(decisions, tmp_path, "fake:rounding", arm)
    found = {name: verdicts(file, arm, 12, decisions, ELSEWHERE[name][0]) for name in ELSEWHERE}
    assert found == {name: {expected} for name, (_, expected) in ELSEWHERE.items()}


def padded_bits(num_decisions: int) -> list[set[float]]:
    """Return each row's scores of the embedded verifier in padded batches of 8 and of 3 rows."""
    verifier = open_verifier(a_spec("embedded:reward"), a_condition(num_threads=None))
    rows = verifier.encode(row_texts(read_decisions("embedded:decisions", num_decisions)))
    shapes = [RowShape(num_tokens=len(row.token_ids), decision_id="") for row in rows]
    found: list[set[float]] = [set() for _ in rows]
    for max_rows in (8, 3):
        for batch in plan_batches(shapes, Padded(max_rows=max_rows), 0):
            scores = verifier.score([rows[at] for at in batch.rows], batch.width, batch.side)
            for at, score in zip(batch.rows, scores, strict=True):
                found[at].add(score)
    verifier.close()
    return found


def test_the_embedded_verifier_moves_no_bit_in_lanes_and_does_when_padded(tmp_path: Path) -> None:
    """Its commits in lanes then replay to the bit with fewer neighbours and in another order."""
    order = ReductionOrderSpec(name="vendor", num_threads=1)
    lanes = Lanes(lanes=(Lane(rows=4, width=48), Lane(rows=4, width=80)))
    arm = an_arm(batching=lanes, reduction_order=order)
    config = a_config(
        "embedded:decisions",
        "embedded:reward",
        arms=(arm,),
        guard_decisions=3,
        appeal_decisions=0,
        exact_decisions=0,
        num_decisions=10,
        claim=Claim(coverage=0.8, confidence=0.8),
    )
    file = run(config, tmp_path).file
    (tolerance,) = file.tolerances
    assert (tolerance.floor.value, tolerance.envelope.value) == (0.0, 0.0)
    assert tolerance.equivalence is Equivalence.ANY
    assert max(map(len, padded_bits(10))) > 1
    other = replace(lanes, max_rows=3, order=Order.LENGTH)
    assert verdicts(file, arm, 4, "embedded:decisions", other) == {VerdictKind.EXACT}
