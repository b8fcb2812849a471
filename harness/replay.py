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
from harness.conditions.flight import Flight
from harness.errors import InputFileError, UnsupportedConditionError
from harness.memberships import SlotLabel, source_of, steps_of
from harness.messages import Ready, Scored
from harness.records.batching import Batching
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Item
from harness.records.document import Record
from harness.records.membership import BatchMembership, MembershipSource, Slot, Step
from harness.records.scores import to_wire
from harness.records.verifier import VerifierSpec
from harness.runner import ConditionProcess
from harness.scoring import Advance, invocation_of
from harness.serving.pin_plan import planned_steps
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
            ran: dict[Batch, Scored] = {}
            for batch, scored in zip(batches, process.run(batches), strict=True):
                ran[batch] = scored
                advance(len(scored.scores))
        return [
            self._replay(commit, plan, ready, ran, replay_as)
            for commit, plan in zip(self.commits, plans, strict=True)
        ]

    def _texts(self, items: Mapping[str, Item]) -> list[RowText]:
        """Return what the item store has of the commits' slots, each named by its digest."""
        for commit in self.commits:
            _refuse_lost(commit, items)
        slots = (slot for commit in self.commits for slot in _prompts_of(commit))
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
        ran: Mapping[Batch, Scored],
        replay_as: ReplayAs,
    ) -> ReplayRecord:
        own = {
            label.branch_id: score
            for step in plan.steps
            for label, score in zip(step.labels, ran[step.batch].scores, strict=True)
            if label.branch_id is not None
        }
        batches = [step.batch for step in plan.steps]
        membership = BatchMembership(
            steps=tuple(
                one
                for step in plan.steps
                for one in steps_of(step.batch, ran[step.batch], ready.rows, step.labels)
            ),
            source=source_of((batch, ran[batch]) for batch in batches),
            requested=replay_as.batching or commit.invocation.batch_membership.requested,
        )
        ended = (ran[batch].note for batch in batches)
        return ReplayRecord(
            commit_id=commit.commit_id,
            decision_id=commit.decision_id,
            scores=to_wire(own),
            invocation=invocation_of(ready, self._condition, membership),
            replica=replay_as.replica,
            notes=(*plan.notes, *filter(None, ended)),
        )


def slots_of(commit: CommitRecord) -> Iterator[Slot]:
    """Yield every slot of every step that a commit's branches were in."""
    for step in commit.invocation.batch_membership.steps:
        yield from step.slots


def _is_packed(commit: CommitRecord) -> bool:
    """Return whether an engine packed the commit's steps."""
    return commit.invocation.batch_membership.steps[0].padded_width is None


def _prompts_of(commit: CommitRecord) -> Iterator[Slot]:
    """Yield the slots whose content is in an item store: of an engine's requests, the first ones.

    Later ones go by the digest of what was generated, too.
    """
    known: set[str] = set()
    for slot in slots_of(commit):
        if not (_is_packed(commit) and slot.request_id in known):
            yield slot
        known.add(slot.request_id)


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
    membership = commit.invocation.batch_membership
    recorded = membership.steps
    if _is_packed(commit) and membership.source is MembershipSource.OBSERVED:
        return _in_flight(commit, encoded, rows)
    present = [[slot for slot in step.slots if slot.content_digest in rows] for step in recorded]
    again = _asked_again if _is_packed(commit) else _pinned
    steps = [
        again(step, slots, encoded, rows)
        for step, slots in zip(recorded, present, strict=True)
        if slots
    ]
    missing = sum(len(step.slots) for step in recorded) - sum(map(len, present))
    return _Plan(steps=tuple(steps), notes=_told_missing(missing))


def _told_missing(count: int) -> tuple[str, ...]:
    return (f"{count} companions are not in the item store",) if count else ()


def _in_flight(
    commit: CommitRecord, encoded: Sequence[EncodedRow], rows: Mapping[str, int]
) -> _Plan:
    """Return the flight of an engine's commit: pinned to its steps, where that can be done."""
    membership = commit.invocation.batch_membership
    first = {slot.request_id: slot for slot in _prompts_of(commit)}
    there = [slot for slot in first.values() if slot.content_digest in rows]
    chosen = tuple(rows[slot.content_digest] for slot in there)
    flight, notes = Flight(), _told_missing(len(first) - len(there))
    if not notes:
        try:
            flight = Flight(
                pinned=planned_steps(membership, list(first)),
                extra_tokens=_extra_tokens(commit, first, [encoded[row] for row in chosen]),
            )
        except UnsupportedConditionError as error:
            notes = (f"not pinned: {error}",)
    step = _PlannedStep(
        batch=Batch(
            rows=chosen,
            width=max(len(encoded[row].token_ids) for row in chosen),
            side=None,
            flight=flight,
        ),
        labels=tuple(_label(slot) for slot in there),
    )
    return _Plan(steps=(step,), notes=notes)


def _extra_tokens(
    commit: CommitRecord, first: Mapping[str, Slot], rows: Sequence[EncodedRow]
) -> int:
    """Return how many tokens beyond its score a request must generate to be in all its steps."""
    reached = {s.request_id: s.num_computed_tokens + s.num_tokens for s in slots_of(commit)}
    generated = (reached[name] - len(row.token_ids) for name, row in zip(first, rows, strict=True))
    return max(max(generated) - commit.invocation.build.verifier.reasoning_tokens, 0)


def _asked_again(
    _step: Step, slots: Sequence[Slot], encoded: Sequence[EncodedRow], rows: Mapping[str, int]
) -> _PlannedStep:
    """Return a flight of the `slots` that are left, of one whose steps nobody saw."""
    chosen = tuple(rows[slot.content_digest] for slot in slots)
    width = max(len(encoded[row].token_ids) for row in chosen)
    return _PlannedStep(
        batch=Batch(rows=chosen, width=width, side=None, flight=Flight()),
        labels=tuple(_label(slot) for slot in slots),
    )


def _pinned(
    step: Step, slots: Sequence[Slot], encoded: Sequence[EncodedRow], rows: Mapping[str, int]
) -> _PlannedStep:
    """Return `step` with the `slots` that are left, as wide as it was, or as its rows now need."""
    if step.padded_width is None:
        raise UnsupportedConditionError("a commit is of one engine: this step is of another")
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
        for slot in _prompts_of(commit)
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
    for slot in _prompts_of(commit):
        if slot.branch_id is not None and slot.content_digest not in items:
            where = f"commit {commit.commit_id}, branch {slot.branch_id!r}"
            advice = "its text is not in the item store, so it cannot be replayed"
            raise InputFileError(f"{where}: {advice}")
