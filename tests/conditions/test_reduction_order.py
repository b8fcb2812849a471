"""Reduction orders: what a config may ask for, its label, and the switches it stands for."""

from typing import Any

import msgspec
import pytest

from harness.conditions.reduction_order import (
    Attention,
    ReductionOrderSpec,
    attn_implementation,
    reduction_switches,
)
from harness.conditions.switch import Owner
from harness.conditions.switches import switch
from harness.errors import UnsupportedConditionError
from harness.records.verifier import Device

VENDOR = ReductionOrderSpec(name="vendor")
DETERMINISTIC = ReductionOrderSpec(name="deterministic")


def read(**fields: Any) -> ReductionOrderSpec:
    return msgspec.convert(fields, ReductionOrderSpec)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "split_k"}, "goes with name split_k"),
        ({"name": "vendor", "split_k": 4}, "goes with name split_k"),
        ({"name": "split_k", "split_k": 1}, "at least 2, found 1"),
        ({"name": "vendor", "num_threads": 0}, "num_threads must be at least 1"),
        ({"name": "fastest"}, "Invalid enum value 'fastest'"),
        ({"name": "vendor", "attention": "xformers"}, "Invalid enum value 'xformers'"),
    ],
)
def test_a_bad_spec_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        read(**fields)


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (VENDOR, "vendor"),
        (DETERMINISTIC, "deterministic"),
        (ReductionOrderSpec(name="split_k", split_k=4), "split_k:4"),
        (ReductionOrderSpec(name="vendor", attention=Attention.MATH), "vendor+math"),
        (ReductionOrderSpec(name="vendor", num_threads=1), "vendor+threads:1"),
        (
            ReductionOrderSpec(
                name="split_k", split_k=2, attention=Attention.EAGER, onednn=False, num_threads=2
            ),
            "split_k:2+eager+threads:2+onednn:off",
        ),
    ],
)
def test_the_label_tells_specs_apart(spec: ReductionOrderSpec, label: str) -> None:
    assert spec.label == label


@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize("spec", [VENDOR, DETERMINISTIC])
def test_an_order_asks_only_for_its_own_switches_of_the_device(
    spec: ReductionOrderSpec, device: Device
) -> None:
    for asked, value in reduction_switches(spec, device).items():
        assert switch(asked).owner is Owner.ORDER
        assert device in switch(asked).devices
        switch(asked).check(value)


def test_deterministic_differs_from_vendor_and_says_what_cublas_needs() -> None:
    vendor = reduction_switches(VENDOR, Device.CUDA)
    deterministic = reduction_switches(DETERMINISTIC, Device.CUDA)
    assert deterministic["deterministic_algorithms"] is True
    assert deterministic["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert vendor["CUBLAS_WORKSPACE_CONFIG"] is None
    assert vendor["deterministic_algorithms"] is False


def test_threads_are_asked_of_the_environment_and_of_the_library() -> None:
    asked = reduction_switches(ReductionOrderSpec(name="vendor", num_threads=3), Device.CPU)
    assert asked["num_threads"] == 3
    assert asked["OMP_NUM_THREADS"] == asked["MKL_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in reduction_switches(VENDOR, Device.CPU)


def test_one_kernel_means_the_others_are_off() -> None:
    spec = ReductionOrderSpec(name="vendor", attention=Attention.FLASH)
    asked = {n: v for n, v in reduction_switches(spec, Device.CUDA).items() if n[:5] == "sdpa."}
    assert asked == {
        "sdpa.flash": True,
        "sdpa.math": False,
        "sdpa.mem_efficient": False,
        "sdpa.cudnn": False,
    }


@pytest.mark.parametrize("attention", [Attention.MEM_EFFICIENT, Attention.CUDNN])
def test_kernels_of_another_device_are_refused(attention: Attention) -> None:
    spec = ReductionOrderSpec(name="vendor", attention=attention)
    assert reduction_switches(spec, Device.CUDA)[f"sdpa.{attention}"] is True
    with pytest.raises(UnsupportedConditionError, match=f"{attention} does not exist on cpu"):
        reduction_switches(spec, Device.CPU)


@pytest.mark.parametrize("fields", [{"num_threads": 2}, {"onednn": True}])
def test_cpu_settings_are_refused_on_cuda(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedConditionError, match="applies to a CPU"):
        reduction_switches(read(name="vendor", **fields), Device.CUDA)


@pytest.mark.parametrize("attention", list(Attention))
def test_only_eager_leaves_sdpa(attention: Attention) -> None:
    wanted = "eager" if attention == "eager" else "sdpa"
    assert attn_implementation(attention) == wanted
