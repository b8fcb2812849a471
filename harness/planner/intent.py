"""Decides how a commit that was ruled on is written, and how one that a crash left is finished.

A commit that writes only to the gate's own database is `complete` in the transaction that ruled on
it. One that writes outside is kept as an intent first, and `finish` takes it from there, as often
as it must:

1. each outside write is looked at: still to do, already done by an earlier try (its content
   stands there), or overtaken by somebody else;
2. the ruling is made again, with what was done counted as not yet done;
3. if it still says commit, the rest is written, outside first, each write conditional, and the
   commit is completed in the gate's database;
4. if not, what was done is taken back, as far as nobody wrote over it; both the write and its
   taking back count as generations. The branch is refused, or held when nothing had been done.

An outside write counts as already done when exactly its bytes stand there. Should somebody outside
the gate write those same bytes in that moment, it is taken for the commit's own write.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.errors import VersionConflictError
from harness.planner.branch import Branch, ResourceVersion, reads_of
from harness.planner.gate_records import CommitOutcome, Detail, Filed, Intent, Planned, Write
from harness.planner.gate_table import UNRESOLVED, Event
from harness.planner.observation import World
from harness.planner.resources.resource import Resource, Snapshot
from harness.planner.ruling import Refusal, RefusalReason, Ruling, rule, union_of_reads

if TYPE_CHECKING:
    from harness.planner.commit_store import CommitStore, GateTransaction

__all__ = ["complete", "finish", "plan_writes", "siblings_of", "undoing"]


def plan_writes(branch: Branch, replaced: Mapping[str, Snapshot]) -> tuple[Planned, ...]:
    """Return the writes of a branch that was ruled current, by resource id."""
    return tuple(
        Planned(
            resource=name,
            content=content,
            before=replaced[name].content,
            before_token=replaced[name].token or "",  # the ruling refused a missing one
        )
        for name, content in sorted(branch.write_set.items())
    )


def complete(
    transaction: "GateTransaction",
    intent: Intent,
    filed: Filed,
    world: World,
    applied: Mapping[str, str] | None = None,
) -> CommitOutcome:
    """Write what lives in the gate's database, and keep the commit; all in one transaction.

    `applied` has the new tokens of the writes outside.
    """
    tokens = dict(applied or {})
    for planned in intent.writes:
        if planned.resource not in tokens:
            inside = world.handle(planned.resource)
            tokens[planned.resource] = inside.write(planned.content, planned.before_token)
    for planned in intent.writes:
        transaction.put_write(_write(intent, planned, world, tokens[planned.resource]))
    outcome = _outcome(intent, world, tokens)
    transaction.put_commit(outcome, reads_of(filed.branch), intent.record)
    transaction.move(filed, Event.COMMIT, intent.commit_id)
    return outcome


def finish(commit_id: str, store: "CommitStore", resources: Mapping[str, Resource]) -> None:
    """Finish one intent, or give it up; nothing happens when somebody else has.

    Raises StoreError when a resource does not answer: the intent then stays.
    """

    def work(transaction: "GateTransaction") -> None:
        for intent in transaction.intents():
            if intent.commit_id == commit_id:
                _Finish(transaction, intent, resources).run()

    store.transact(work)


class _Finish:
    """One try at one intent."""

    def __init__(
        self, transaction: "GateTransaction", intent: Intent, resources: Mapping[str, Resource]
    ) -> None:
        self._transaction, self._intent = transaction, intent
        self._world = World(transaction, resources, intent.resources)
        self._outside = [w for w in intent.writes if not self._world.is_inside(w.resource)]
        self._done: dict[str, str] = {}
        """Resource id -> token, of the outside writes that stand."""

    def run(self) -> None:
        """Look, rule again, and go forward or back."""
        self._look()
        mine, ruling = self._rule()
        overtaken = self._apply() if ruling.commits else ""
        if ruling.commits and not overtaken:
            complete(self._transaction, self._intent, mine, self._world, self._done)
        else:
            self._give_up(mine, ruling, overtaken)
        self._transaction.close_intent(self._intent.commit_id)

    def _look(self) -> None:
        now = self._world.snapshots(write.resource for write in self._outside)
        for write in self._outside:
            snapshot = now[write.resource]
            moved = snapshot.token not in (None, write.before_token)
            if moved and snapshot.content == write.content:
                self._done[write.resource] = str(snapshot.token)

    def _rule(self) -> tuple[Filed, Ruling]:
        before = {w.resource: w.before_token for w in self._outside if w.resource in self._done}
        name = self._intent.branch_id
        mine = self._transaction.family("", name)[name]
        family = self._transaction.family(mine.branch.decision_id)
        siblings = siblings_of(mine.branch, family)
        self._world.look_up(union_of_reads(siblings))
        return mine, rule(mine.branch, siblings, self._world.found(before))

    def _apply(self) -> str:
        """Do the outside writes that are still to do; return why it stopped, if it did."""
        for write in self._outside:
            if write.resource in self._done:
                continue
            try:
                token = self._world.handle(write.resource).write(write.content, write.before_token)
            except VersionConflictError as error:
                return str(error)
            self._done[write.resource] = token
        return ""

    def _give_up(self, mine: Filed, ruling: Ruling, overtaken: str) -> None:
        name, commit_id = mine.branch.branch_id, self._intent.commit_id
        if not self._done and not overtaken and ruling.stale:
            held = Detail(stale=ruling.stale)
            self._transaction.move(mine, Event.FIND_STALE, commit_id, held)
            return
        refusal = ruling.refusal
        if self._done or overtaken or refusal is None:
            notes = [overtaken, *(self._take_back(w) for w in reversed(self._outside))]
            refusal = Refusal(
                branch_id=name,
                reason=RefusalReason.OVERTAKEN,
                reads=ruling.refusal.reads if ruling.refusal else ruling.stale,
                note="; ".join(filter(None, notes)),
            )
        self._transaction.move(mine, Event.REFUSE, commit_id, Detail(refusal=refusal))

    def _take_back(self, planned: Planned) -> str:
        """Take back one outside write if it was done; return what became of it, in words."""
        if planned.resource not in self._done:
            return ""
        done = _write(self._intent, planned, self._world, self._done[planned.resource])
        self._transaction.put_write(done)
        try:
            token = self._world.handle(planned.resource).write(planned.before, done.token)
        except VersionConflictError as error:
            return f"{planned.resource} was written and could not be taken back ({error})"
        self._transaction.put_write(undoing(done, done, planned.content, token))
        return f"{planned.resource} was written and taken back"


def undoing(done: Write, latest: Write, before: bytes | None, token: str) -> Write:
    """Return the write that takes `done` back: it follows `latest`, and replaced `before`."""
    return Write(
        resource=done.resource,
        generation=latest.generation + 1,
        branch_id=done.branch_id,
        commit_id=done.commit_id,
        before=before,
        before_token=latest.token,
        token=token,
        content_of=done.replaced,
        replaced=done.generation,
    )


def siblings_of(branch: Branch, family: Mapping[str, Filed]) -> list[Branch]:
    """Return the other branches of the decision whose reads still count, by id."""
    return [
        filed.branch
        for name, filed in sorted(family.items())
        if name != branch.branch_id
        and filed.branch.decision_id == branch.decision_id
        and filed.state in UNRESOLVED
    ]


def _write(intent: Intent, planned: Planned, world: World, token: str) -> Write:
    head = world.heads[planned.resource]
    return Write(
        resource=planned.resource,
        generation=head.generation + 1,
        branch_id=intent.branch_id,
        commit_id=intent.commit_id,
        before=planned.before,
        before_token=planned.before_token,
        token=token,
        content_of=head.generation + 1,
        replaced=head.content_of,
    )


def _outcome(intent: Intent, world: World, tokens: Mapping[str, str]) -> CommitOutcome:
    versions = {
        name: ResourceVersion(token=token, generation=world.heads[name].generation + 1)
        for name, token in sorted(tokens.items())
    }
    return CommitOutcome(
        commit_id=intent.commit_id,
        branch_id=intent.branch_id,
        request_digest=intent.request_digest,
        versions=versions,
    )
