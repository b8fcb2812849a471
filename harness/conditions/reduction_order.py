"""Reduction orders: the order of summation a condition asks for, and the switches that ask for it.

``vendor``: the libraries' heuristics. ``deterministic``: the libraries' promise of equal bits in
equal calls. ``split_k:S``: every linear layer summed in S explicit partial sums (`split_k`).
``batch_invariant``: sums that no batch changes (`batch_invariant`), with the deterministic
switches and, on a CPU, one thread. On top of each: the attention kernel, and on a CPU the thread
count and oneDNN.

What it does not know: the tree in which a kernel really adds. A switch is a request; the same
switch gives other trees at other shapes.
"""

from typing import Literal

from harness.conditions.attention import (
    Attention,
    attention_kernels,
    attention_switches,
    attn_implementation,
)
from harness.errors import UnsupportedConditionError
from harness.records.document import Record
from harness.records.switches import SwitchValues
from harness.records.verifier import Device

__all__ = [
    "Attention",
    "OrderName",
    "ReductionOrderSpec",
    "attention_kernels",
    "attn_implementation",
    "reduction_switches",
]

OrderName = Literal["vendor", "deterministic", "split_k", "batch_invariant"]

_DETERMINISTIC = frozenset({"deterministic", "batch_invariant"})
"""Orders that rest on equal calls giving equal bits."""


class ReductionOrderSpec(Record, frozen=True, kw_only=True):
    """The order of summation as a config asks for it."""

    name: OrderName
    """Which order."""
    split_k: int | None = None
    """Partial sums per linear layer; given with ``split_k``, and only with it."""
    attention: Attention = Attention.AUTO
    """Attention kernel."""
    num_threads: int | None = None
    """Threads of a CPU's kernels; None for the machine's default."""
    onednn: bool | None = None
    """Whether a CPU's kernels may be oneDNN's; None for torch's default."""
    fingerprint: bool = False
    """Measure the summation trees and record their digests; the label is the same without."""

    def __post_init__(self) -> None:
        """Parts go with ``split_k`` and are at least 2; threads are at least 1."""
        if (self.name == "split_k") != (self.split_k is not None):
            raise ValueError("`split_k` (the number of parts) goes with name split_k, and only it")
        if self.split_k is not None and self.split_k < 2:
            raise ValueError(f"split_k must be at least 2, found {self.split_k}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, found {self.num_threads}")

    @property
    def label(self) -> str:
        """``vendor``, ``split_k:4``, ``vendor+math``, ``vendor+threads:1+onednn:off``."""
        parts: list[str] = [self.name if self.split_k is None else f"split_k:{self.split_k}"]
        if self.attention is not Attention.AUTO:
            parts.append(self.attention.value)
        if self.num_threads is not None:
            parts.append(f"threads:{self.num_threads}")
        if self.onednn is not None:
            parts.append(f"onednn:{'on' if self.onednn else 'off'}")
        return "+".join(parts)


def reduction_switches(spec: ReductionOrderSpec, device: Device) -> SwitchValues:
    """Return the switches that ask for `spec` on `device`; raises for what it cannot do."""
    if spec.name == "batch_invariant":
        _refuse_uncovered(spec)
    own = _cpu(spec) if device is Device.CPU else _cuda(spec)
    return own | attention_switches(spec.attention, device)


def _refuse_uncovered(spec: ReductionOrderSpec) -> None:
    """Raise for what a batch-invariant order cannot keep in one order."""
    if spec.attention is Attention.EAGER:
        advice = "take auto, flash or math"
        raise UnsupportedConditionError(f"batch_invariant does not cover attention eager; {advice}")
    if spec.num_threads not in {None, 1}:
        advice = "threads cut vectors at places that move with the batch; set num_threads: 1"
        raise UnsupportedConditionError(f"batch_invariant needs one thread on a CPU: {advice}")


def _cpu(spec: ReductionOrderSpec) -> SwitchValues:
    deterministic = spec.name in _DETERMINISTIC
    switches: SwitchValues = {
        "deterministic_algorithms": deterministic,
        "mkldnn.deterministic": deterministic,
    }
    num_threads = 1 if spec.name == "batch_invariant" else spec.num_threads
    if num_threads is not None:
        count = str(num_threads)
        switches |= {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        switches["num_threads"] = num_threads
    if spec.onednn is not None:
        switches["mkldnn.enabled"] = spec.onednn
    return switches


def _cuda(spec: ReductionOrderSpec) -> SwitchValues:
    for name in ("num_threads", "onednn"):
        if getattr(spec, name) is not None:
            raise UnsupportedConditionError(f"{name} applies to a CPU; leave it out on cuda")
    deterministic = spec.name in _DETERMINISTIC
    return {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8" if deterministic else None,
        "deterministic_algorithms": deterministic,
        "cudnn.deterministic": deterministic,
        "cudnn.benchmark": False,
    }
