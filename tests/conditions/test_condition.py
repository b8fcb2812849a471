"""Conditions: what is asked for, what a child needs, and each resolved fact under one owner."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.conditions.condition import (
    QUIET,
    Condition,
    ConditionSwitches,
    controlled,
    environment,
    label,
    requested_switches,
    resolved_switches,
    split_by_owner,
)
from harness.conditions.reduction_order import Attention, ReductionOrderSpec
from harness.conditions.switches import SWITCHES, read_switches
from harness.errors import UnsupportedConditionError
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device

if TYPE_CHECKING:
    from harness.records.switches import SwitchValues

ROOT = Path(__file__).parents[2]
VENDOR = ReductionOrderSpec(name="vendor")
BFLOAT16 = Condition(precision=PrecisionName.BFLOAT16, reduction_order=VENDOR)
CUDA_ONLY = {n for n, entry in SWITCHES.items() if entry.devices == frozenset({Device.CUDA})}
CPU_ONLY = {n for n, entry in SWITCHES.items() if entry.devices == frozenset({Device.CPU})}


def deterministic(precision: PrecisionName = PrecisionName.FLOAT32) -> Condition:
    order = ReductionOrderSpec(name="deterministic")
    return Condition(precision=precision, reduction_order=order)


def test_the_label_names_both_halves_and_the_overrides() -> None:
    overridden = Condition(
        precision=PrecisionName.BFLOAT16,
        precision_overrides={"sdpa.allow_fp16_bf16_reduction_math": True},
        reduction_order=ReductionOrderSpec(name="vendor", attention=Attention.MATH),
    )
    assert label(BFLOAT16) == "bfloat16/vendor"
    assert label(overridden) == "bfloat16[sdpa.allow_fp16_bf16_reduction_math=True]/vendor+math"


@pytest.mark.parametrize("device", list(Device))
def test_a_switch_has_one_owner_and_all_of_the_device_are_resolved(device: Device) -> None:
    resolved = resolved_switches(device)
    assert not resolved.precision.keys() & resolved.order.keys()
    assert resolved.precision | resolved.order == read_switches(device)
    foreign = CUDA_ONLY if device is Device.CPU else CPU_ONLY
    assert not foreign & (resolved.precision.keys() | resolved.order.keys())


def test_splitting_keeps_every_value_once() -> None:
    values: SwitchValues = {
        "num_threads": 2,
        "float32_matmul_precision": "highest",
        "MKL_CBWR": None,
    }
    assert split_by_owner(values) == ConditionSwitches(
        precision={"float32_matmul_precision": "highest"},
        order={"MKL_CBWR": None, "num_threads": 2},
    )


@pytest.mark.parametrize("device", list(Device))
def test_what_is_asked_for_is_among_what_is_resolved(device: Device) -> None:
    asked, resolved = requested_switches(deterministic(), device), resolved_switches(device)
    assert asked.precision.keys() <= resolved.precision.keys()
    assert asked.order.keys() <= resolved.order.keys()


def test_the_environment_sets_unsets_and_quiets() -> None:
    found = environment(deterministic(), Device.CUDA)
    assert found == {
        **QUIET,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": None,
    }
    assert environment(BFLOAT16, Device.CUDA)["CUBLAS_WORKSPACE_CONFIG"] is None


def test_a_condition_is_controlled_and_put_back() -> None:
    before = resolved_switches(Device.CPU)
    with controlled(deterministic(), Device.CPU) as resolved:
        asked = requested_switches(deterministic(), Device.CPU)
        assert asked.precision.items() <= resolved.precision.items()
        assert asked.order.items() <= resolved.order.items()
        assert resolved.order["deterministic_algorithms"] is True
        assert resolved.precision["mkldnn.matmul.fp32_precision"] == "ieee"
    assert resolved_switches(Device.CPU) == before
    assert before.order["deterministic_algorithms"] is False


def test_a_condition_of_another_environment_is_refused() -> None:
    threads = os.environ.get("OMP_NUM_THREADS") == "1"
    order = ReductionOrderSpec(name="vendor", num_threads=2 if threads else 1)
    condition = Condition(precision=PrecisionName.FLOAT32, reduction_order=order)
    with (
        pytest.raises(UnsupportedConditionError, match="OMP_NUM_THREADS"),
        controlled(condition, Device.CPU),
    ):
        pytest.fail("entered")


CHILD = """
import torch
from harness.conditions.condition import Condition, controlled
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device
order = ReductionOrderSpec(name="vendor", num_threads=1, onednn=False)
with controlled(
    Condition(precision=PrecisionName.FLOAT32, reduction_order=order), Device.CPU
) as resolved:
    assert torch.get_num_threads() == 1
    assert not torch.backends.mkldnn.enabled
    print(sorted(resolved.order.items()))
"""


def test_a_child_started_with_the_environment_runs_the_condition() -> None:
    order = ReductionOrderSpec(name="vendor", num_threads=1, onednn=False)
    condition = Condition(precision=PrecisionName.FLOAT32, reduction_order=order)
    merged = {**os.environ, **environment(condition, Device.CPU), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "('OMP_NUM_THREADS', '1')" in result.stdout


def test_asking_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from harness.conditions.condition import Condition, environment\n"
        "from harness.conditions import kernel_environment, split_k\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
