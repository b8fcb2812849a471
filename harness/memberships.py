"""Who was computed with whom, of a batch that ran.

A forward is one step, exactly as it was planned. A flight is what the engine's scheduler said it
was; where nobody saw the steps, only who was in the engine together is known, and the membership
says so. A row of a forward goes by the digest of its tokens and of which of them are the branch; an
engine knows only tokens, so there it goes by theirs (`harness.serving.content`).
"""

from collections.abc import Iterable, Sequence

from harness.conditions.batching import Batch
from harness.conditions.flight import StepSlot
from harness.messages import Scored
from harness.records.document import Record
from harness.records.membership import MembershipSource, Slot, Step
from harness.serving.content import prompt_digest, sequence_digest
from harness.verifiers.protocol import EncodedRow

__all__ = ["SlotLabel", "row_digest", "source_of", "steps_of"]


class SlotLabel(Record, frozen=True, kw_only=True):
    """Whose a slot is: a name, and the decision's branch if it scores one."""

    request_id: str
    """Name of the request."""
    branch_id: str | None
    """The branch it scores; None for a companion."""


def row_digest(row: EncodedRow, batch: Batch) -> str:
    """Return the digest by which `row` goes in the memberships of `batch`."""
    return row.content_digest if batch.flight is None else prompt_digest(row.token_ids)


def source_of(ran: Iterable[tuple[Batch, Scored]]) -> MembershipSource:
    """Return how the membership in these batches is known: asked for, if any flight was unseen."""
    unseen = any(batch.flight and not scored.steps for batch, scored in ran)
    return MembershipSource.REQUESTED if unseen else MembershipSource.OBSERVED


def steps_of(
    batch: Batch, scored: Scored, rows: Sequence[EncodedRow], labels: Sequence[SlotLabel]
) -> tuple[Step, ...]:
    """Return the steps of `batch` in which some branch was computed; `labels` are its rows'."""
    digests = [row_digest(rows[row], batch) for row in batch.rows]
    lengths = [len(rows[row].token_ids) for row in batch.rows]
    if not scored.steps:
        return (_whole(batch, digests, lengths, labels),)

    def slot_of(slot: StepSlot) -> Slot:
        reach = slot.num_computed_tokens + slot.num_tokens
        generated = scored.generated[slot.request][: max(reach - lengths[slot.request], 0)]
        return Slot(
            request_id=labels[slot.request].request_id,
            content_digest=sequence_digest(digests[slot.request], generated),
            num_tokens=slot.num_tokens,
            num_computed_tokens=slot.num_computed_tokens,
            branch_id=labels[slot.request].branch_id,
        )

    own = {at for at, label in enumerate(labels) if label.branch_id is not None}
    return tuple(
        Step(slots=tuple(map(slot_of, step.slots)))
        for step in scored.steps
        if any(slot.request in own for slot in step.slots)
    )


def _whole(
    batch: Batch, digests: Sequence[str], lengths: Sequence[int], labels: Sequence[SlotLabel]
) -> Step:
    """Return the batch as one step: a forward, or all that a flight asked for."""
    slots = tuple(
        Slot(
            request_id=label.request_id,
            content_digest=digest,
            num_tokens=length,
            branch_id=label.branch_id,
        )
        for digest, length, label in zip(digests, lengths, labels, strict=True)
    )
    if batch.flight is not None:
        return Step(slots=slots)
    return Step(
        slots=slots,
        padded_width=batch.width,
        padding_side=batch.side,
        padded_rows=batch.num_rows,
    )
