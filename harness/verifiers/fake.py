"""A fake verifier with injectable noise: a labelled tool for trying things out, never evidence.

Its scores come from hashes, not from a model; no torch is needed. ``fake:KIND`` chooses how scores
move, so that a planner, a pipeline or a guard can be tried in seconds. Its builds say ``fake`` in
every field, and a tolerance calibrated on it is valid for the fake alone.
"""

import hashlib
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.codec import digest
from harness.conditions.condition import Condition, requested_switches
from harness.conditions.precision import unit_roundoff
from harness.errors import ConfigError, InputFileError, nearest
from harness.records.batching import PaddingSide
from harness.records.build import Build
from harness.records.invocation import PrecisionMode, ReductionOrder
from harness.records.verifier import Overflow, VerifierSpec
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText

if TYPE_CHECKING:
    from harness.records.switches import SwitchValues

__all__ = ["FakeKind", "FakeVerifier"]

DEFAULT_MAX_TOKENS = 4096
AMPLIFICATION = 32.0
"""Movement of a fake score in units of the unit roundoff, as deep models show."""


class FakeKind(StrEnum):
    """How a fake's scores move."""

    EXACT = "exact"
    """Never."""
    ROUNDING = "rounding"
    """With the shape of the batch, in proportion to the unit roundoff."""
    COUPLED = "coupled"
    """As rounding, and with the neighbours' content too."""
    LOGIC = "logic"
    """With the shape of the batch, as much in every precision: a bug."""
    CONSTANT = "constant"
    """Every row has the same score: a dead head."""
    NAN = "nan"
    """A padded row's score is NaN: a fully masked row."""


class FakeVerifier:
    """See `harness.verifiers.protocol.Verifier`; bytes are its tokens."""

    def __init__(self, spec: VerifierSpec, condition: Condition) -> None:
        """Raise ConfigError for an unknown kind."""
        kind = spec.model.removeprefix("fake:")
        if kind not in set(FakeKind):
            raise ConfigError(f"model: unknown fake {kind!r}; {nearest(kind, FakeKind)}")
        self._spec, self._condition, self._kind = spec, condition, FakeKind(kind)
        self._unit = unit_roundoff(condition.precision)

    def facts(self) -> Build:
        """Return a build that says fake in every field."""
        return Build(
            weights_digest=digest(["fake", self._kind]),
            tokenizer_digest=digest("fake"),
            prompt_digest=digest(self._spec.prompt),
            head_digest=digest(self._spec.head),
            engine="fake",
            libraries={},
            parallel_layout="1",
            device="fake",
            device_name="fake",
            device_capability="fake",
            kernel_environment={},
            verifier=self._spec,
        )

    def resolved(self) -> ResolvedCondition:
        """Return what was requested: a fake has no switches to read back."""
        requested = requested_switches(self._condition, self._spec.device)
        dtype: SwitchValues = {"weights_dtype": str(self._condition.precision)}
        return ResolvedCondition(
            precision_mode=PrecisionMode(
                name=self._condition.precision,
                requested=requested.precision,
                resolved=requested.precision | dtype,
            ),
            reduction_order=ReductionOrder(
                name=self._condition.reduction_order.label,
                requested=requested.order,
                resolved=requested.order,
                fingerprints=self._fingerprints(),
            ),
            loaded_digest=digest(["fake", self._kind, self._condition.precision]),
        )

    def encode(self, texts: Sequence[RowText]) -> list[EncodedRow]:
        """Return the rows' UTF-8 bytes as tokens."""
        return [self._encode(text) for text in texts]

    def score(
        self,
        rows: Sequence[EncodedRow],
        width: int,
        side: PaddingSide | None,
        num_rows: int | None = None,
    ) -> list[float]:
        """Return a hash of each row, moved as the kind says."""
        shape = f"{num_rows or len(rows)}|{width}|{side}"
        batch = "|".join(row.content_digest for row in rows)
        return [self._score(row, shape, batch, width) for row in rows]

    def close(self) -> None:
        """Do nothing."""

    def _fingerprints(self) -> dict[str, str]:
        """Return a fingerprint that says fake, where the condition asks for one."""
        order = self._condition.reduction_order
        return {"fake": digest(["fake", self._kind, order.label])} if order.fingerprint else {}

    def _encode(self, text: RowText) -> EncodedRow:
        context, branch = text.context.encode(), text.branch.encode()
        limit = self._spec.max_tokens or DEFAULT_MAX_TOKENS
        dropped = max(len(context) + len(branch) - limit, 0)
        if not branch:
            raise InputFileError(f"{text.name}: the branch has no token; give it some text")
        if dropped and (self._spec.overflow is Overflow.ERROR or dropped > len(context)):
            raise InputFileError(f"{text.name}: the row is too long ({limit} tokens allowed)")
        tokens = context[dropped:] + branch
        return EncodedRow(
            token_ids=tuple(tokens),
            branch_start=len(tokens) - len(branch),
            branch_end=len(tokens),
            num_dropped=dropped,
        )

    def _score(self, row: EncodedRow, shape: str, batch: str, width: int) -> float:
        if self._kind is FakeKind.CONSTANT:
            return 1.0
        if self._kind is FakeKind.NAN and width > len(row.token_ids):
            return math.nan
        own = _noise(row.content_digest)
        step = AMPLIFICATION * self._unit
        fixed = 4 * own + step * _noise(row.content_digest, str(self._condition.precision))
        if self._kind is FakeKind.LOGIC:
            return fixed + 0.1 * _noise(row.content_digest, shape)
        if self._kind in {FakeKind.ROUNDING, FakeKind.COUPLED}:
            neighbours = batch if self._kind is FakeKind.COUPLED else ""
            return fixed + step * _noise(row.content_digest, shape, neighbours)
        return fixed


def _noise(*parts: str) -> float:
    """Return a number in [-1, 1) that depends on `parts` alone."""
    data = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(data[:6], "big") / 2**47 - 1.0
