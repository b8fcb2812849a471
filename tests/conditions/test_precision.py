"""Precision modes: the switches that each name stands for, and its arithmetic."""

import pytest
import torch

from harness.conditions.precision import (
    precision_switches,
    reference_of,
    torch_dtype_name,
    unit_roundoff,
)
from harness.conditions.switch import Owner
from harness.conditions.switches import switch
from harness.errors import ConfigError, UnsupportedConditionError
from harness.records.invocation import PrecisionName
from harness.records.switches import SwitchValues
from harness.records.verifier import Device

ON_A_CPU = [name for name in PrecisionName if name is not PrecisionName.TF32]
CASES = [(name, Device.CPU) for name in ON_A_CPU] + [(n, Device.CUDA) for n in PrecisionName]


@pytest.mark.parametrize("name", [n for n in PrecisionName if n is not PrecisionName.TF32])
def test_unit_roundoff_is_half_of_torch_epsilon(name: PrecisionName) -> None:
    dtype = getattr(torch, torch_dtype_name(name))
    assert unit_roundoff(name) == torch.finfo(dtype).eps / 2


def test_tf32_rounds_like_float16_and_is_stored_as_float32() -> None:
    assert unit_roundoff(PrecisionName.TF32) == 2.0**-11
    assert torch_dtype_name(PrecisionName.TF32) == "float32"


def test_each_reference_is_finer() -> None:
    named = [name for name in PrecisionName if name is not PrecisionName.FLOAT64]
    assert all(unit_roundoff(reference_of(name)) < unit_roundoff(name) for name in named)


def test_float64_has_no_reference() -> None:
    with pytest.raises(UnsupportedConditionError, match="float64 has no finer reference"):
        reference_of(PrecisionName.FLOAT64)


@pytest.mark.parametrize(("name", "device"), CASES)
def test_a_mode_asks_only_for_its_own_switches_of_the_device(
    name: PrecisionName, device: Device
) -> None:
    for asked, value in precision_switches(name, device, {}).items():
        assert switch(asked).owner is Owner.PRECISION
        assert device in switch(asked).devices
        switch(asked).check(value)


def test_float32_turns_tf32_off_everywhere_and_tf32_turns_it_on() -> None:
    off = precision_switches(PrecisionName.FLOAT32, Device.CUDA, {})
    on = precision_switches(PrecisionName.TF32, Device.CUDA, {})
    names = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32", "float32_matmul_precision")
    assert [off[name] for name in names] == [False, False, "highest"]
    assert [on[name] for name in names] == [True, True, "high"]
    assert (off["NVIDIA_TF32_OVERRIDE"], on["NVIDIA_TF32_OVERRIDE"]) == ("0", None)


def test_half_types_state_their_accumulation() -> None:
    bfloat16 = precision_switches(PrecisionName.BFLOAT16, Device.CUDA, {})
    float16 = precision_switches(PrecisionName.FLOAT16, Device.CUDA, {})
    assert bfloat16["cuda.matmul.allow_bf16_reduced_precision_reduction"] is True
    assert float16["cuda.matmul.allow_fp16_reduced_precision_reduction"] is True
    assert float16["cuda.matmul.allow_fp16_accumulation"] is False


def test_tf32_on_a_cpu_is_refused() -> None:
    with pytest.raises(UnsupportedConditionError, match="tf32 needs a CUDA device"):
        precision_switches(PrecisionName.TF32, Device.CPU, {})


def test_an_override_wins() -> None:
    override: SwitchValues = {"cuda.matmul.allow_bf16_reduced_precision_reduction": False}
    asked = precision_switches(PrecisionName.BFLOAT16, Device.CUDA, override)
    assert asked["cuda.matmul.allow_bf16_reduced_precision_reduction"] is False


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ({"cuda.matmul.alow_tf32": True}, ConfigError, "did you mean 'cuda.matmul.allow_tf32'"),
        ({"cuda.matmul.allow_tf32": "yes"}, ConfigError, "cannot be 'yes'"),
        ({"num_threads": 1}, ConfigError, "belongs to the reduction order"),
        ({"cudnn.allow_tf32": True}, UnsupportedConditionError, "no effect on cpu"),
    ],
)
def test_a_bad_override_is_refused(
    override: SwitchValues, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        precision_switches(PrecisionName.FLOAT32, Device.CPU, override)
