"""Executes commits again: the same condition, the same batches, in a fresh process.

The companions of a batch come from the commit log's item store, by content digest. What cannot be
put together again is left out and said in the replay's notes; the membership recorded is always the
one that ran, so a judge sees the difference by itself.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from harness.codec import digest
from harness.conditions.batching import Batch, RowShape, plan_batches
from harness.conditions.condition import Condition
from harness.errors import InputFileError, UnsupportedConditionError
from harness.messages import Ready
from harness.records.batching import Batching
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Item
from harness.records.document import Record
from harness.records.membership import BatchMembership, Slot, Step
from harness.records.scores import to_wire
from harness.records.verifier import VerifierSpec
from harness.runner import ConditionProcess
from harness.scoring import Advance, SlotLabel, invocation_of, step_of
from harness.verifiers.protocol import EncodedRow, RowText

__all__ = ["ReplayAs", "replay_commits"]


class ReplayAs(Record, frozen=True, kw_only=True):
    """How a replay departs from its commits; by default in nothing."""

    verifier: VerifierSpec | None = None
    """Another verifier than the recorded one."""
    condition: Condition | None = None
    """Another condition than the recorded one."""
    batching: Batching | None = None
    """Other batches than the recorded ones, made of all commits' branches."""
    replica: str = ""
    """Name of the replica in the records."""


def replay_commits(
    commits: Sequence[CommitRecord],
    items: Mapping[str, Item],
    replay_as: ReplayAs = ReplayAs(),  # noqa: B008 - frozen
    advance: Advance = lambda _: None,
) -> tuple[ReplayRecord, ...]:
    """Score `commits` again and return one replay record each, in their order.

    Raises InputFileError when a commit's own branch is not in the item store, and whatever loading
    raises.
    """
    replays: dict[str, ReplayRecord] = {}
    for group in _groups(commits, replay_as):
        for replay in group.run(items, replay_as, advance):
            replays[replay.commit_id] = replay
    return tuple(replays[commit.commit_id] for commit in commits)


class _PlannedStep(Record, frozen=True, kw_only=True):
    """One forward, and whose its slots are for one commit."""

    batch: Batch
    labels: tuple[SlotLabel, ...]


class _Plan(Record, frozen=True, kw_only=True):
    """How one commit is executed again."""

    steps: tuple[_PlannedStep, ...]
    notes: tuple[str, ...] = ()


class _Group:
    """Commits of one verifier under one condition: they share a process."""

    def __init__(self, verifier: VerifierSpec, condition: Condition) -> None:
        self._verifier, self._condition = verifier, condition
        self.commits: list[CommitRecord] = []

    def run(
        self, items: Mapping[str, Item], replay_as: ReplayAs, advance: Advance
    ) -> list[ReplayRecord]:
        texts = self._texts(items)
        rows = {text.name: at for at, text in enumerate(texts)}
        with ConditionProcess(self._verifier, self._condition, texts) as process:
            ready = process.ready()
            plans = self._plans(ready.rows, rows, replay_as.batching)
            batches = list(dict.fromkeys(step.batch for plan in plans for step in plan.steps))
            scores: dict[Batch, tuple[float, ...]] = {}
            for batch, values in zip(batches, process.score(batches), strict=True):
                scores[batch] = values
                advance(len(values))
        return [
            self._replay(commit, plan, ready, scores, replay_as)
            for commit, plan in zip(self.commits, plans, strict=True)
        ]

    def _texts(self, items: Mapping[str, Item]) -> list[RowText]:
        """Return what the item store has of the commits' slots, each named by its digest."""
        for commit in self.commits:
            _refuse_lost(commit, items)
        slots = (slot for commit in self.commits for slot in slots_of(commit))
        names = dict.fromkeys(slot.content_digest for slot in slots)
        return [
            RowText(context=items[name].context, branch=items[name].text, name=name)
            for name in names
            if name in items
        ]

    def _plans(
        self, encoded: Sequence[EncodedRow], rows: Mapping[str, int], batching: Batching | None
    ) -> list[_Plan]:
        if batching is None:
            return [_as_recorded(commit, encoded, rows) for commit in self.commits]
        return _as_asked(self.commits, encoded, rows, batching)

    def _replay(
        self,
        commit: CommitRecord,
        plan: _Plan,
        ready: Ready,
        scores: Mapping[Batch, tuple[float, ...]],
        replay_as: ReplayAs,
    ) -> ReplayRecord:
        own = {
            label.branch_id: score
            for step in plan.steps
            for label, score in zip(step.labels, scores[step.batch], strict=True)
            if label.branch_id is not None
        }
        steps = tuple(step_of(step.batch, ready.rows, step.labels) for step in plan.steps)
        requested = replay_as.batching or commit.invocation.batch_membership.requested
        membership = BatchMembership(steps=steps, requested=requested)
        return ReplayRecord(
            commit_id=commit.commit_id,
            decision_id=commit.decision_id,
            scores=to_wire(own),
            invocation=invocation_of(ready, self._condition, membership),
            replica=replay_as.replica,
            notes=plan.notes,
        )


def slots_of(commit: CommitRecord) -> Iterator[Slot]:
    """Yield every slot of every step that a commit's branches were in."""
    for step in commit.invocation.batch_membership.steps:
        yield from step.slots


def _groups(commits: Sequence[CommitRecord], replay_as: ReplayAs) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for commit in commits:
        verifier = replay_as.verifier or commit.invocation.build.verifier
        condition = replay_as.condition or _condition(commit)
        key = digest([verifier, condition])
        groups.setdefault(key, _Group(verifier, condition)).commits.append(commit)
    return list(groups.values())


def _condition(commit: CommitRecord) -> Condition:
    try:
        return msgspec.convert(commit.invocation.condition, Condition)
    except msgspec.ValidationError as error:
        advice = "replay it on the engine that wrote it, or give a condition"
        message = f"commit {commit.commit_id}: its condition is not one of this engine's ({error})"
        raise UnsupportedConditionError(f"{message}; {advice}") from error


def _as_recorded(
    commit: CommitRecord, encoded: Sequence[EncodedRow], rows: Mapping[str, int]
) -> _Plan:
    recorded = commit.invocation.batch_membership.steps
    present = [[slot for slot in step.slots if slot.content_digest in rows] for step in recorded]
    steps = [
        _pinned(step, slots, encoded, rows)
        for step, slots in zip(recorded, present, strict=True)
        if slots
    ]
    missing = sum(len(step.slots) for step in recorded) - sum(map(len, present))
    notes = (f"{missing} companions are not in the item store",) if missing else ()
    return _Plan(steps=tuple(steps), notes=notes)


def _pinned(
    step: Step, slots: Sequence[Slot], encoded: Sequence[EncodedRow], rows: Mapping[str, int]
) -> _PlannedStep:
    """Return `step` with the `slots` that are left, as wide as it was, or as its rows now need."""
    if step.padded_width is None:
        raise UnsupportedConditionError("this step was an engine's: replay it on that engine")
    chosen = tuple(rows[slot.content_digest] for slot in slots)
    needed = max(len(encoded[row].token_ids) for row in chosen) + (step.padded_rows is not None)
    width = needed if step.padding_side is None else max(step.padded_width, needed)
    return _PlannedStep(
        batch=Batch(rows=chosen, width=width, side=step.padding_side, num_rows=step.padded_rows),
        labels=tuple(_label(slot) for slot in slots),
    )


def _as_asked(
    commits: Sequence[CommitRecord],
    encoded: Sequence[EncodedRow],
    rows: Mapping[str, int],
    batching: Batching,
) -> list[_Plan]:
    targets = [
        (at, slot)
        for at, commit in enumerate(commits)
        for slot in slots_of(commit)
        if slot.branch_id is not None
    ]
    row_of = [rows[slot.content_digest] for _, slot in targets]
    shapes = [
        RowShape(num_tokens=len(encoded[row].token_ids), decision_id=commits[at].decision_id)
        for (at, _), row in zip(targets, row_of, strict=True)
    ]
    steps: list[list[_PlannedStep]] = [[] for _ in commits]
    for batch in plan_batches(shapes, batching, 0):
        physical = msgspec.structs.replace(batch, rows=tuple(row_of[at] for at in batch.rows))
        members = [targets[at] for at in batch.rows]
        for owner in dict.fromkeys(at for at, _ in members):
            labels = tuple(_label(slot, own=at == owner) for at, slot in members)
            steps[owner].append(_PlannedStep(batch=physical, labels=labels))
    return [_Plan(steps=tuple(own)) for own in steps]


def _label(slot: Slot, *, own: bool = True) -> SlotLabel:
    return SlotLabel(request_id=slot.request_id, branch_id=slot.branch_id if own else None)


def _refuse_lost(commit: CommitRecord, items: Mapping[str, Item]) -> None:
    for slot in slots_of(commit):
        if slot.branch_id is not None and slot.content_digest not in items:
            where = f"commit {commit.commit_id}, branch {slot.branch_id!r}"
            advice = "its text is not in the item store, so it cannot be replayed"
            raise InputFileError(f"{where}: {advice}")
