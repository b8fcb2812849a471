"""What each planted replica runs, and that it reports the committed invocation."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from calibrate.config import CalibrationConfig
from calibrate.power.derived import Int8
from calibrate.power.replicas import (
    Difference,
    Replica,
    misreport,
    planted_replicas,
    rebatched,
    reordered,
    replay_planted,
)
from calibrate.power.spec import PowerSpec
from harness.conditions.reduction_order import Attention, ReductionOrderSpec
from harness.records import CommitRecord, Item, PrecisionName
from harness.records.batching import FixedWidth, Lane, Lanes, Order, Padded, Solo
from harness.records.verifier import Message, Prompt
from harness.replay import ReplayAs, replay_commits
from harness.scoring import score_decisions
from tests.calibrate.example_runs import a_config, an_arm
from tests.scored import DECISIONS, a_condition, a_spec


def config_of(model: str = "embedded:reward", **changes: object) -> CalibrationConfig:
    return a_config("decisions.jsonl", model, **changes)


def of_kind(config: CalibrationConfig, difference: Difference) -> list[Replica]:
    return [one for one in planted_replicas(config) if one.difference is difference]


@pytest.fixture(scope="module")
def committed() -> tuple[tuple[CommitRecord, ...], dict[str, Item]]:
    scored = score_decisions(a_spec(), a_condition(), Padded(max_rows=3), DECISIONS)
    return scored.commits, {item.content_digest: item for item in scored.items}


def test_the_table_holds_every_kind_of_difference_once_by_name() -> None:
    table = planted_replicas(config_of())
    names = [one.name for one in table]
    assert len(set(names)) == len(names)
    assert {one.difference for one in table} == set(Difference)
    assert all(one.change is not None or one.replay_as != ReplayAs() for one in table)


def test_a_fake_has_no_checkpoint_to_change() -> None:
    assert not any(one.change for one in planted_replicas(config_of("fake:rounding")))
    assert any(one.change for one in planted_replicas(config_of()))


def test_every_other_precision_of_the_device() -> None:
    names = {one.name for one in of_kind(config_of(), Difference.PRECISION)}
    assert names == {"float32", "float16", "float64"}  # tf32 needs CUDA
    other = config_of(arms=(an_arm(precision=PrecisionName.FLOAT32),))
    assert {one.name for one in of_kind(other, Difference.PRECISION)} == {
        "bfloat16",
        "float16",
        "float64",
    }


@pytest.mark.parametrize("own", [Attention.AUTO, Attention.EAGER, Attention.MATH])
def test_two_other_attention_kernels(own: Attention) -> None:
    order = ReductionOrderSpec(name="vendor", attention=own)
    found = of_kind(config_of(arms=(an_arm(reduction_order=order),)), Difference.ATTENTION)
    kernels = {
        one.replay_as.condition.reduction_order.attention
        for one in found
        if one.replay_as.condition
    }
    assert len(kernels) == 2
    assert own not in kernels


def test_another_checkpoint_is_the_one_that_is_given() -> None:
    (stand_in,) = of_kind(config_of(), Difference.CHECKPOINT)
    assert "stand-in" in stand_in.differs
    spec = PowerSpec(other_checkpoint="models/step-900")
    (given,) = of_kind(config_of(power=spec), Difference.CHECKPOINT)
    assert given.replay_as.verifier is not None
    assert given.replay_as.verifier.model == "models/step-900"
    assert (given.change, given.differs) == (None, "another checkpoint: step-900")


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(template="{context}={branch}."),
        Prompt(chat=(Message(role="user", content="{context}: {branch}"),)),
    ],
)
def test_the_template_gets_a_space_before_the_branch(prompt: Prompt) -> None:
    config = config_of()
    config = replace(config, verifier=replace(config.verifier, prompt=prompt))
    found = next(one for one in planted_replicas(config) if one.name == "template: a space")
    assert found.replay_as.verifier is not None
    changed = found.replay_as.verifier.prompt
    whole = (changed.template or "") + "".join(message.content for message in changed.chat)
    assert " {branch}" in whole
    assert changed != prompt


@pytest.mark.parametrize(
    ("own", "rows"),
    [
        (Solo(), 3),
        (Padded(max_rows=8), 3),
        (Padded(max_rows=2), 2),
        (FixedWidth(width=9, max_rows=8), 3),
        (Lanes(lanes=(Lane(rows=8, width=9),)), 3),
        (Lanes(lanes=(Lane(rows=8, width=9),), max_rows=2), 2),
    ],
)
def test_smaller_batches_are_never_larger_than_the_arms(own: Padded, rows: int) -> None:
    found = rebatched(own, 3)
    assert found.max_rows == rows
    assert reordered(found) != found
    assert reordered(reordered(found)).order is Order.GIVEN  # type: ignore[union-attr, arg-type]


def test_a_replica_runs_something_else_and_reports_what_was_committed(
    committed: tuple[tuple[CommitRecord, ...], dict[str, Item]],
) -> None:
    commits, items = committed
    replica = Replica(
        name="finer",
        difference=Difference.PRECISION,
        differs="float32",
        replay_as=ReplayAs(condition=a_condition(PrecisionName.FLOAT32)),
    )
    told = replay_commits(commits, items, replica.replay_as)
    lied = replay_planted(a_spec(), replica, commits, items, lambda _: None)
    assert [r.invocation for r in told] != [c.invocation for c in commits]
    assert [r.invocation for r in lied.replays] == [c.invocation for c in commits]
    assert [r.scores for r in lied.replays] == [r.scores for r in told]
    assert [r.scores for r in lied.replays] != [c.scores for c in commits]
    assert {r.replica for r in lied.replays} == {"finer"}
    assert (lied.left_out, lied.num_weights_changed) == (None, None)
    assert misreport(told, commits) == tuple(replace(r, replica="") for r in lied.replays)


def test_a_replica_that_cannot_be_run_is_left_out_with_its_reason(
    committed: tuple[tuple[CommitRecord, ...], dict[str, Item]], tmp_path: Path
) -> None:
    commits, items = committed
    replica = Replica(name="int8", difference=Difference.WEIGHTS, differs="int8", change=Int8())
    nowhere = a_spec(str(tmp_path))
    found = replay_planted(nowhere, replica, commits, items, lambda _: None)
    assert found.replays == ()
    assert found.left_out is not None
    assert "ModelLoadError" in found.left_out
    assert list(tmp_path.iterdir()) == []
