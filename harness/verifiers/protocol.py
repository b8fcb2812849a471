"""What a backend is: five methods, under one condition, in one process.

Contract, checked for every backend by tests/verifiers/test_contract.py:

* `encode` is pure: the same text gives the same row;
* `score` runs exactly one forward over exactly the rows given, in that order, padded as told, and
  returns one float64 score a row; it drops no row and caches nothing between calls;
* with `num_rows` the forward is of a set shape: inert rows, one token of padding each, fill it up
  after the rows given, and every operation's shape follows from `num_rows` and `width` alone, so
  that no kernel is chosen by how many neighbours there are, or by what is in them;
* a non-finite score is returned as it is: judging it is not the backend's business;
* `facts` and `resolved` report what is, read back after set-up, not what was asked for.

An engine that schedules by itself has `serve` in place of `score`: it takes a flight of requests
and says, beside their scores, which steps really ran.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from harness.codec import digest
from harness.conditions.flight import EngineStep, Flight
from harness.records.batching import PaddingSide
from harness.records.build import Build
from harness.records.document import Record
from harness.records.invocation import PrecisionMode, ReductionOrder

__all__ = [
    "EncodedRow",
    "EngineVerifier",
    "ResolvedCondition",
    "RowText",
    "Served",
    "Verifier",
]


class RowText(Record, frozen=True, kw_only=True):
    """One row before tokenization."""

    context: str
    """The decision's context."""
    branch: str
    """The branch's text."""
    name: str = ""
    """For error messages: ``decision/branch``."""


class EncodedRow(Record, frozen=True, kw_only=True, dict=True):
    """One row as the model sees it."""

    token_ids: tuple[int, ...]
    """Token ids, unpadded, `[tokens]`."""
    branch_start: int
    """Index of the branch's first token."""
    branch_end: int
    """Index after the branch's last token."""
    num_dropped: int = 0
    """Tokens lost to the length limit."""

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tokens and of which of them are the branch."""
        return digest([self.token_ids, self.branch_start, self.branch_end])


class ResolvedCondition(Record, frozen=True, kw_only=True):
    """Precision mode and reduction order as they turned out."""

    precision_mode: PrecisionMode
    """Dtypes and accumulation switches."""
    reduction_order: ReductionOrder
    """Order of sums."""
    loaded_digest: str
    """Digest of the weights as loaded in this precision."""


class Verifier(Protocol):
    """A model with its score head, ready under one condition."""

    def facts(self) -> Build:
        """Return the build."""

    def resolved(self) -> ResolvedCondition:
        """Return the condition as it turned out."""

    def encode(self, texts: Sequence[RowText]) -> list[EncodedRow]:
        """Turn texts into rows.

        Raises InputFileError naming the row when one is too long and truncation is not allowed.
        """

    def score(
        self,
        rows: Sequence[EncodedRow],
        width: int,
        side: PaddingSide | None,
        num_rows: int | None = None,
    ) -> list[float]:
        """Run one forward over `rows`, padded to `width` tokens on `side`; one score a row.

        `num_rows` is the set number of the forward's rows, inert ones included; None for `rows`.
        """

    def close(self) -> None:
        """Free the model and restore every switch."""


class Served(Record, frozen=True, kw_only=True):
    """What a flight gives."""

    scores: tuple[float, ...]
    """One score a request, in the order given."""
    steps: tuple[EngineStep, ...] = ()
    """The steps that ran, as the scheduler told them; empty where nobody saw them."""
    generated: tuple[tuple[int, ...], ...] = ()
    """`[requests]`: the tokens that each generated, where the steps were seen."""
    note: str = ""
    """Why a pin ended early; empty where there was none, or it ran as planned."""


class EngineVerifier(Protocol):
    """A model in an engine that schedules by itself, ready under one condition."""

    def facts(self) -> Build:
        """Return the build."""

    def resolved(self) -> ResolvedCondition:
        """Return the condition as it turned out."""

    def encode(self, texts: Sequence[RowText]) -> list[EncodedRow]:
        """Turn texts into rows; see `Verifier.encode`."""

    def serve(self, rows: Sequence[EncodedRow], flight: Flight) -> Served:
        """Take `rows` through the engine as `flight` says, from empty to empty.

        Raises UnsupportedConditionError for a flight that this engine cannot take.
        """

    def close(self) -> None:
        """Free the model and restore every switch."""
