"""Batch membership: who was computed together, step by step.

A padded forward of the transformers backend is one step with a width and a side. A step of a
serving engine has neither; its slots say how many tokens each request computed in this step and
how many it had computed before.
"""

from enum import StrEnum

from harness.records.batching import Batching, Lane, PaddingSide
from harness.records.document import Record

__all__ = ["BatchMembership", "MembershipSource", "Slot", "Step"]


class MembershipSource(StrEnum):
    """How the membership is known."""

    OBSERVED = "observed"
    """Read back from what ran."""
    REQUESTED = "requested"
    """Asked for, but not seen: such a record can never be the ground of a fault."""


class Slot(Record, frozen=True, kw_only=True):
    """One request's part in one step."""

    request_id: str
    """Name of the request; a label, not part of the computation."""
    content_digest: str
    """Digest of the token ids that the model saw, and of which of them are the branch."""
    num_tokens: int
    """Tokens of this request computed in this step."""
    num_computed_tokens: int = 0
    """Tokens of this request computed in earlier steps (0 for a whole prefill)."""
    branch_id: str | None = None
    """The decision's branch that this slot scores; None for a companion."""

    def __post_init__(self) -> None:
        """A slot computes at least one token."""
        if self.num_tokens < 1 or self.num_computed_tokens < 0:
            raise ValueError("a slot computes at least one token, and none before the first")

    def computation(self) -> tuple[str, int, int]:
        """Return what the step computes from: content and token counts, not the label."""
        return self.content_digest, self.num_tokens, self.num_computed_tokens


class Step(Record, frozen=True, kw_only=True):
    """One forward pass over ordered slots."""

    slots: tuple[Slot, ...]
    """The requests in row order, `[rows]`."""
    padded_width: int | None = None
    """Tokens in a row after padding; None where the engine packs tokens without padding."""
    padding_side: PaddingSide | None = None
    """Side of the padding; None where there is none."""
    padded_rows: int | None = None
    """Rows of the forward at a set shape: the slots' and inert ones; None for the slots' alone."""

    def __post_init__(self) -> None:
        """A step has rows, no more than it has room for, and none is wider than the step."""
        if not self.slots:
            raise ValueError("a step without slots computes nothing")
        if self.padded_width is not None and self.padded_width < self.longest:
            raise ValueError(
                f"padded_width {self.padded_width} is less than the longest row, {self.longest}"
            )
        if self.padded_rows is not None and self.padded_rows < len(self.slots):
            raise ValueError(f"padded_rows {self.padded_rows} is less than {len(self.slots)} slots")
        if self.padded_rows is not None and (self.padded_width or 0) <= self.longest:
            found = f"found width {self.padded_width} and a row of {self.longest} tokens"
            raise ValueError(f"a step with padded_rows is wider than its rows: {found}")

    @property
    def lane(self) -> Lane | None:
        """The set shape; None for a step that is as large as its slots need."""
        if self.padded_rows is None or self.padded_width is None:
            return None
        return Lane(rows=self.padded_rows, width=self.padded_width)

    @property
    def num_rows(self) -> int:
        """Rows that were computed, inert ones included."""
        return self.padded_rows or len(self.slots)

    @property
    def longest(self) -> int:
        """Token count of the longest row."""
        return max(slot.num_tokens for slot in self.slots)


class BatchMembership(Record, frozen=True, kw_only=True):
    """The steps in which a decision's branches took part."""

    steps: tuple[Step, ...]
    """In the order they ran."""
    source: MembershipSource = MembershipSource.OBSERVED
    """How the membership is known."""
    requested: Batching | None = None
    """The rule that was asked for; None where an engine decided. Not compared: the steps are."""

    def __post_init__(self) -> None:
        """Something was computed."""
        if not self.steps:
            raise ValueError("a membership without steps computes nothing")

    @property
    def max_rows(self) -> int:
        """Rows in the largest step, inert ones included."""
        return max(step.num_rows for step in self.steps)

    @property
    def max_width(self) -> int:
        """Tokens in the widest row, padding included."""
        return max(step.padded_width or step.longest for step in self.steps)

    @property
    def longest_branch(self) -> int:
        """Tokens, of earlier steps too, of the longest row that scores a branch; 0 if none does."""
        slots = (slot for step in self.steps for slot in step.slots if slot.branch_id is not None)
        return max((slot.num_tokens + slot.num_computed_tokens for slot in slots), default=0)

    @property
    def branch_ids(self) -> frozenset[str]:
        """The branches that some slot scores."""
        slots = (slot for step in self.steps for slot in step.slots)
        return frozenset(slot.branch_id for slot in slots if slot.branch_id is not None)
