"""An invocation: build, batch membership, precision mode, reduction order, as resolved.

Two invocations are identical when the resolved values are; what was requested is kept beside them
to explain, never to compare.
"""

from enum import StrEnum
from typing import Any

from harness.codec import digest
from harness.records.build import Build
from harness.records.document import Record
from harness.records.membership import BatchMembership
from harness.records.switches import SwitchValues

__all__ = ["Invocation", "PrecisionMode", "PrecisionName", "ReductionOrder", "condition_id"]


class PrecisionName(StrEnum):
    """The named precision modes."""

    FLOAT32 = "float32"
    """IEEE single precision throughout, TF32 off."""
    TF32 = "tf32"
    """float32 storage, TF32 tensor-core products; CUDA only."""
    BFLOAT16 = "bfloat16"
    """bfloat16 weights and activations."""
    FLOAT16 = "float16"
    """float16 weights and activations."""
    FLOAT64 = "float64"
    """Double precision: the reference of the guards."""


class PrecisionMode(Record, frozen=True, kw_only=True):
    """Dtypes and accumulation switches."""

    name: PrecisionName
    """The mode that was asked for."""
    requested: SwitchValues
    """Switches as the mode sets them."""
    resolved: SwitchValues
    """Dtypes of weights, activations and head, and switches, read back after set-up."""


class ReductionOrder(Record, frozen=True, kw_only=True):
    """How sums are ordered."""

    name: str
    """``vendor``, ``deterministic``, ``split_k:S``."""
    requested: SwitchValues
    """Switches as the order sets them."""
    resolved: SwitchValues
    """Switches and the attention kernel that ran, read back after set-up."""
    fingerprints: dict[str, str] = {}
    """Shape class -> digest of a measured summation tree; empty where none was measured."""


class Invocation(Record, frozen=True, kw_only=True):
    """One verifier call, as it was really parameterised."""

    build: Build
    """What ran."""
    batch_membership: BatchMembership
    """With whom."""
    precision_mode: PrecisionMode
    """In which arithmetic."""
    reduction_order: ReductionOrder
    """In which order."""
    condition: dict[str, Any] = {}
    """The condition as it was asked for, in its backend's words, so that a replay can ask again.

    Not compared: the resolved values above are."""

    @property
    def condition_id(self) -> str:
        """Digest of build, precision mode and reduction order, as resolved."""
        return condition_id(self.build.build_id, self.precision_mode, self.reduction_order)


def condition_id(build_id: str, precision: PrecisionMode, order: ReductionOrder) -> str:
    """Return the digest under which a tolerance is looked up."""
    return digest(
        {
            "build_id": build_id,
            "precision": [precision.name, precision.resolved],
            "order": [order.name, order.resolved, order.fingerprints],
        }
    )
