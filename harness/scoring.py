"""Scores decisions in one fresh process and says, for each, who was computed with whom.

The speculative run of a planner: every branch is a row, rows are batched as the mode says, and each
decision gets a commit record whose membership lists the very batches that its branches were in.
"""

from collections.abc import Callable, Sequence

import msgspec

from harness.conditions.batching import Batch, RowShape, plan_batches
from harness.conditions.condition import Condition
from harness.decisions import row_texts
from harness.errors import InvalidRecordError
from harness.judge.ranking import winner
from harness.memberships import SlotLabel, row_digest, source_of, steps_of
from harness.messages import Ready, Scored
from harness.records.batching import Batching
from harness.records.commit import CommitRecord, commit_id_of
from harness.records.decision import Decision, Item
from harness.records.document import Record
from harness.records.invocation import Invocation
from harness.records.membership import BatchMembership
from harness.records.verifier import VerifierSpec
from harness.runner import ConditionProcess
from harness.verifiers.heads import score_unit
from harness.verifiers.protocol import EncodedRow, RowText

__all__ = ["Advance", "ScoredDecisions", "invocation_of", "score_decisions"]

Advance = Callable[[int], None]
"""Called with the number of rows that have just been scored."""


class ScoredDecisions(Record, frozen=True, kw_only=True):
    """What a speculative run gives."""

    commits: tuple[CommitRecord, ...]
    """One a decision, in file order."""
    items: tuple[Item, ...]
    """The text behind every content digest in them."""


def score_decisions(  # noqa: PLR0913 - what a run is made of
    verifier: VerifierSpec,
    condition: Condition,
    batching: Batching,
    decisions: tuple[Decision, ...],
    *,
    seed: int = 0,
    committed: bool = True,
    advance: Advance = lambda _: None,
) -> ScoredDecisions:
    """Score every branch of `decisions` and return a commit record for each decision.

    Raises what loading and encoding raise; a non-finite score raises InvalidRecordError.
    """
    texts = row_texts(decisions)
    with ConditionProcess(verifier, condition, texts) as process:
        ready = process.ready()
        batches = plan_batches(_shapes(decisions, ready.rows), batching, seed)
        ran = []
        for batch, scored in zip(batches, process.run(batches), strict=True):
            ran.append((batch, scored))
            advance(len(scored.scores))
    done = _Pass(ready, ran, batching, condition, decisions)
    commits = tuple(done.commit(at, committed=committed) for at in range(len(decisions)))
    return ScoredDecisions(commits=commits, items=_items(ready.rows, texts, batches))


def _shapes(decisions: Sequence[Decision], rows: Sequence[EncodedRow]) -> list[RowShape]:
    names = [decision.decision_id for decision in decisions for _ in decision.branches]
    return [
        RowShape(num_tokens=len(row.token_ids), decision_id=name)
        for row, name in zip(rows, names, strict=True)
    ]


def _items(
    rows: Sequence[EncodedRow], texts: Sequence[RowText], batches: Sequence[Batch]
) -> tuple[Item, ...]:
    digests = {at: row_digest(rows[at], batch) for batch in batches for at in batch.rows}
    items = {
        digests[at]: Item(content_digest=digests[at], context=text.context, text=text.branch)
        for at, text in enumerate(texts)
    }
    return tuple(items.values())


def invocation_of(ready: Ready, condition: Condition, membership: BatchMembership) -> Invocation:
    """Return the invocation of a pass, as resolved, with the condition that was asked for."""
    return Invocation(
        build=ready.build,
        batch_membership=membership,
        precision_mode=ready.condition.precision_mode,
        reduction_order=ready.condition.reduction_order,
        condition=msgspec.to_builtins(condition),
    )


class _Pass:
    """What was computed, and in which batches each row was."""

    def __init__(
        self,
        ready: Ready,
        ran: Sequence[tuple[Batch, Scored]],
        batching: Batching,
        condition: Condition,
        decisions: Sequence[Decision],
    ) -> None:
        self._ready, self._batching, self._condition = ready, batching, condition
        self._ran, self._decisions = ran, decisions
        self._scores: dict[int, float] = {}
        for batch, scored in ran:
            self._scores |= zip(batch.rows, scored.scores, strict=True)
        self._owners = [
            (at, branch.branch_id)
            for at, decision in enumerate(decisions)
            for branch in decision.branches
        ]
        self._rows_of: list[dict[str, int]] = [{} for _ in decisions]
        for row, (at, branch_id) in enumerate(self._owners):
            self._rows_of[at][branch_id] = row
        self._batches_of: list[dict[int, None]] = [{} for _ in decisions]
        for number, (batch, _) in enumerate(ran):
            for row in batch.rows:
                self._batches_of[self._owners[row][0]][number] = None

    def commit(self, at: int, *, committed: bool) -> CommitRecord:
        decision_id, own = self._decisions[at].decision_id, self._rows_of[at]
        vector = {branch: self._scores[row] for branch, row in own.items()}
        invocation = invocation_of(self._ready, self._condition, self._membership(at))
        try:
            commit_id = commit_id_of(decision_id, vector, invocation)
        except InvalidRecordError as error:
            raise InvalidRecordError(f"decision {decision_id!r}: {error}") from error
        return CommitRecord(
            commit_id=commit_id,
            decision_id=decision_id,
            scores=vector,
            invocation=invocation,
            committed=committed,
            winner=winner(vector),
            score_unit=score_unit(self._ready.build.verifier.head),
            num_truncated=sum(self._ready.rows[row].num_dropped > 0 for row in own.values()),
        )

    def _membership(self, at: int) -> BatchMembership:
        ran = [self._ran[number] for number in self._batches_of[at]]
        return BatchMembership(
            steps=tuple(
                step
                for batch, scored in ran
                for step in steps_of(batch, scored, self._ready.rows, self._labels(batch, at))
            ),
            source=source_of(ran),
            requested=self._batching,
        )

    def _labels(self, batch: Batch, at: int) -> list[SlotLabel]:
        owners = (self._owners[row] for row in batch.rows)
        return [
            SlotLabel(
                request_id=f"{self._decisions[owner].decision_id}/{branch}",
                branch_id=branch if owner == at else None,
            )
            for owner, branch in owners
        ]
