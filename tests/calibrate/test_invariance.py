"""The guard of a batch-invariant arm: it passes for one that is, and has its control beside it."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from calibrate.config import Claim, Sweep, load_config
from calibrate.guards import GuardName, InvarianceEvidence, invariance
from calibrate.plan import Purpose, plan_processes
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import GuardRefusalError
from harness.records import AxisStatus, Equivalence
from harness.records.batching import PaddingSide
from tests.calibrate.example_runs import a_config, an_arm, run, write_decisions
from tests.calibrate.faulty_models import NUM_DECISIONS

STILL, MOVING = np.zeros(4), np.array([0.0, 0.25, 0.5, 0.0])
ORDER = ReductionOrderSpec(name="batch_invariant", num_threads=1)


def evidence(own: np.ndarray, control: np.ndarray, name: str = "fixed_order") -> InvarianceEvidence:
    return InvarianceEvidence(implementation=name, movements=own, control_movements=control)


@pytest.mark.parametrize(
    ("given", "passed", "words"),
    [
        (
            evidence(STILL, MOVING),
            True,
            "vendor moved 2 of 4 decisions by at most 0.5, batch_invariant (fixed_order) 0 of 4",
        ),
        (evidence(STILL, STILL), True, "not shown: vendor did not move either"),
        (evidence(MOVING, MOVING), False, "is not invariant: decision 2 by 0.5, decision 1 by"),
        (evidence(np.array([np.nan]), MOVING), False, "is not invariant: decision 0 by nan"),
        (evidence(STILL, MOVING, ""), False, "the vendor's order ran in its place"),
        (evidence(STILL[:0], MOVING), False, "comparison over zero items"),
        (evidence(STILL, MOVING[:0]), False, "comparison over zero items"),
    ],
)
def test_the_guard(given: InvarianceEvidence, passed: bool, words: str) -> None:  # noqa: FBT001
    found = invariance(given)
    assert (found.guard, found.passed) == (GuardName.INVARIANCE, passed)
    assert words in found.evidence


def test_a_batch_invariant_arm_has_a_control_and_no_other_arm_has() -> None:
    config = a_config("unused", arms=(an_arm(), an_arm(reduction_order=ORDER)))
    plans = plan_processes(config, 60)
    (control,) = [plan for plan in plans if plan.purpose is Purpose.CONTROL]
    order = control.condition.reduction_order
    assert (control.arm, control.num_decisions) == (1, config.guard_decisions)
    assert (order.name, order.num_threads) == ("vendor", 1)
    assert control.condition.precision is config.arms[1].precision


def test_a_real_arm_is_blessed_for_any_batch_beside_a_vendor_that_moves(tmp_path: Path) -> None:
    config = a_config(
        write_decisions(tmp_path / "rows.jsonl", NUM_DECISIONS),
        "embedded:reward",
        arms=(an_arm(reduction_order=ORDER),),
        claim=Claim(coverage=0.9, confidence=0.9),
        guard_decisions=6,
        exact_decisions=0,
        sweep=Sweep(rows=(), reference_rows=8, sides=(PaddingSide.LEFT,), search=False),
    )
    (tolerance,) = run(config, tmp_path / "run").file.tolerances
    (found,) = [guard for guard in tolerance.guards if guard.guard == GuardName.INVARIANCE]
    assert found.passed
    assert found.evidence.endswith(f"batch_invariant (fixed_order) 0 of {NUM_DECISIONS} decisions")
    assert "vendor moved 0" not in found.evidence
    assert (tolerance.envelope.value, tolerance.floor.value) == (0, 0)
    assert {axis.axis for axis in tolerance.axes if axis.status is AxisStatus.MOVED} == set()
    assert tolerance.equivalence is not Equivalence.EXACT
    assert tolerance.reduction_order.resolved["batch_invariant"] == "fixed_order"


def test_an_order_that_is_none_is_refused(tmp_path: Path) -> None:
    """Negative control: a verifier that takes the name and does nothing for it."""
    config = a_config(
        write_decisions(tmp_path / "rows.jsonl"), arms=(an_arm(reduction_order=ORDER),)
    )
    with pytest.raises(GuardRefusalError, match=r"invariance: .*ran in its place") as refusal:
        run(config, tmp_path / "run")
    assert "scorepin locate" in str(refusal.value)
    vendor = replace(config, arms=(an_arm(),))
    assert run(vendor, tmp_path / "vendor").file.tolerances


def test_the_example_config_holds_both_orders() -> None:
    config = load_config(Path(__file__).parents[2] / "configs" / "batch_invariant.yaml")
    assert [arm.reduction_order.name for arm in config.arms] == ["vendor", "batch_invariant"]
