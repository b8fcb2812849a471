"""Backends that score branches, behind one small protocol.

`open_verifier` imports a backend only when it is asked for, so that nothing heavy is loaded by
those who only judge.
"""

from typing import TYPE_CHECKING

from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText, Verifier

if TYPE_CHECKING:
    from harness.conditions.condition import Condition
    from harness.records.verifier import VerifierSpec

__all__ = ["EncodedRow", "ResolvedCondition", "RowText", "Verifier", "open_verifier"]


def open_verifier(spec: "VerifierSpec", condition: "Condition") -> Verifier:
    """Load the verifier that `spec` names, under `condition`, in this process."""
    if spec.model.startswith("fake:"):
        from harness.verifiers.fake import FakeVerifier  # noqa: PLC0415 - only when asked for

        return FakeVerifier(spec, condition)
    from harness.verifiers.transformers import TransformersVerifier  # noqa: PLC0415 - heavy

    return TransformersVerifier(spec, condition)
