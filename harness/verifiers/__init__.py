"""Backends that score branches, behind one small protocol.

`open_verifier` and `open_engine` import a backend only when it is asked for, so that nothing heavy
is loaded by those who only judge.
"""

from typing import TYPE_CHECKING

from harness.errors import UnsupportedConditionError
from harness.records.engine import Endpoint, Transformers
from harness.verifiers.protocol import (
    EncodedRow,
    EngineVerifier,
    ResolvedCondition,
    RowText,
    Served,
    Verifier,
)

if TYPE_CHECKING:
    from harness.conditions.condition import Condition
    from harness.records.verifier import VerifierSpec

__all__ = [
    "EncodedRow",
    "EngineVerifier",
    "ResolvedCondition",
    "RowText",
    "Served",
    "Verifier",
    "open_engine",
    "open_verifier",
]


def open_verifier(spec: "VerifierSpec", condition: "Condition") -> Verifier:
    """Load the verifier that `spec` names, under `condition`, in this process.

    Raises UnsupportedConditionError for an engine that schedules by itself.
    """
    if not isinstance(spec.engine, Transformers):
        raise UnsupportedConditionError(f"{type(spec.engine).__name__} is opened by open_engine")
    if spec.model.startswith("fake:"):
        from harness.verifiers.fake import FakeVerifier  # noqa: PLC0415 - only when asked for

        return FakeVerifier(spec, condition)
    from harness.verifiers.transformers import TransformersVerifier  # noqa: PLC0415 - heavy

    return TransformersVerifier(spec, condition)


def open_engine(spec: "VerifierSpec", condition: "Condition") -> EngineVerifier:
    """Start the engine that `spec` names, under `condition`, in this process, or reach it."""
    if isinstance(spec.engine, Endpoint):
        from harness.verifiers.endpoint import EndpointVerifier  # noqa: PLC0415 - when asked for

        return EndpointVerifier(spec, condition)
    from harness.verifiers.vllm import VllmVerifier  # noqa: PLC0415 - only when asked for

    return VllmVerifier(spec, condition)
