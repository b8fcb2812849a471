"""Precision modes: which switches each name stands for, and how coarse its arithmetic is.

A mode states every accumulation switch that can reach it, at torch's own default unless the name
says otherwise, so that a default that changes in a later release is seen as a request not met or a
value that differs. A config may override single switches; the overrides are part of the label.

What it does not know: the dtypes in which a model's own code computes (a norm in float32, a router
in float64). Those of weights, activations and head are read back by whoever loads the model.
"""

from harness.conditions.switch import Owner
from harness.conditions.switches import switch
from harness.errors import ConfigError, UnsupportedConditionError
from harness.records.invocation import PrecisionName
from harness.records.switches import SwitchValue, SwitchValues
from harness.records.verifier import Device

__all__ = ["precision_switches", "reference_of", "torch_dtype_name", "unit_roundoff"]

_DTYPES = {
    PrecisionName.FLOAT32: "float32",
    PrecisionName.TF32: "float32",
    PrecisionName.BFLOAT16: "bfloat16",
    PrecisionName.FLOAT16: "float16",
    PrecisionName.FLOAT64: "float64",
}

_SIGNIFICAND_BITS = {
    PrecisionName.FLOAT32: 24,
    PrecisionName.TF32: 11,
    PrecisionName.BFLOAT16: 8,
    PrecisionName.FLOAT16: 11,
    PrecisionName.FLOAT64: 53,
}
"""With the implicit leading bit."""

_CUDA_ACCUMULATION: dict[PrecisionName, SwitchValues] = {
    PrecisionName.BFLOAT16: {"cuda.matmul.allow_bf16_reduced_precision_reduction": True},
    PrecisionName.FLOAT16: {
        "cuda.matmul.allow_fp16_reduced_precision_reduction": True,
        "cuda.matmul.allow_fp16_accumulation": False,
    },
}
"""torch's defaults, said outright."""


def torch_dtype_name(name: PrecisionName) -> str:
    """Return the name of the torch dtype of the weights."""
    return _DTYPES[name]


def unit_roundoff(name: PrecisionName) -> float:
    """Return u = 2**-t for t significand bits: the largest relative error of one rounding.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (SIAM 2002), sec. 2.1.
    """
    return float(2.0 ** -_SIGNIFICAND_BITS[name])


def reference_of(name: PrecisionName) -> PrecisionName:
    """Return the finer mode against which rounding in `name` is judged.

    Raises `UnsupportedConditionError` for float64, which has none.
    """
    if name is PrecisionName.FLOAT64:
        raise UnsupportedConditionError("float64 has no finer reference; calibrate another mode")
    if name is PrecisionName.FLOAT32:
        return PrecisionName.FLOAT64
    return PrecisionName.FLOAT32


def precision_switches(
    name: PrecisionName, device: Device, overrides: SwitchValues
) -> SwitchValues:
    """Return the switches that ask for `name` on `device`, with `overrides` on top.

    Raises `UnsupportedConditionError` where the device cannot do it, and `ConfigError` for an
    override that is unknown, of a wrong type, or the reduction order's.
    """
    for override, value in overrides.items():
        _check_override(override, value, device)
    own = _cpu(name) if device is Device.CPU else _cuda(name)
    return own | overrides


def _check_override(name: str, value: SwitchValue, device: Device) -> None:
    found = switch(name)
    found.check(value)
    if found.owner is not Owner.PRECISION:
        raise ConfigError(f"precision_overrides: {name} belongs to the reduction order")
    if device not in found.devices:
        raise UnsupportedConditionError(f"precision_overrides: {name} has no effect on {device}")


def _cpu(name: PrecisionName) -> SwitchValues:
    if name is PrecisionName.TF32:
        raise UnsupportedConditionError("precision tf32 needs a CUDA device; use float32 on a CPU")
    switches: SwitchValues = {
        "ONEDNN_DEFAULT_FPMATH_MODE": None,
        "float32_matmul_precision": "highest",
        "sdpa.allow_fp16_bf16_reduction_math": False,
    }
    if name is PrecisionName.FLOAT16:
        switches["cpu.allow_fp16_reduced_precision_reduction"] = False
    return switches


def _cuda(name: PrecisionName) -> SwitchValues:
    tf32 = name is PrecisionName.TF32
    return {
        "NVIDIA_TF32_OVERRIDE": None if tf32 else "0",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": None,
        "float32_matmul_precision": "high" if tf32 else "highest",
        "cuda.matmul.allow_tf32": tf32,
        "cudnn.allow_tf32": tf32,
        "sdpa.allow_fp16_bf16_reduction_math": False,
        **_CUDA_ACCUMULATION.get(name, {}),
    }
