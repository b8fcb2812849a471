"""Decides whether a branch is committed to the world as it is now: the commit gate.

`commit_branch` is one conditional transaction. It reads every resource that the branch and its
unresolved siblings read, rules on that (`harness.planner.ruling`), and then commits, holds or
refuses; nothing is ever written that was not compared first.

What one commit guarantees:

* writes to rows of the gate's own database, the commit record of the score verdict and the gate's
  log are one serialisable transaction: all or nothing;
* writes to anything else cannot be part of it. The commit is first kept as an intent, then its
  outside writes are applied one by one, each conditional, then the rest in one transaction. A crash
  leaves the intent, and whoever next needs one of its resources, or calls `recover`, finishes it.
  In between, an onlooker can see some of its writes and not others;
* a resource outside that is read and not written is compared as late as possible and cannot be
  locked: somebody outside the gate may change it in the instant after;
* while outside writes are applied, the transaction stays open: on SQLite other commits wait.

Committing again under the same commit id returns the first outcome, or raises the first refusal;
once the branch was rolled back it raises `IllegalMoveError`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.codec import digest, encode
from harness.errors import (
    CommitRefusedError,
    IllegalMoveError,
    InvalidRecordError,
    ReverificationNeededError,
    StoreError,
)
from harness.planner.branch import Branch, effects_digest
from harness.planner.gate_records import CommitOutcome, Detail, Filed, Intent
from harness.planner.gate_table import UNRESOLVED, Event, State, move
from harness.planner.intent import complete, finish, plan_writes, siblings_of
from harness.planner.observation import World
from harness.planner.resources.resource import Resource, Snapshot
from harness.planner.ruling import (
    Refusal,
    RefusalReason,
    StaleRead,
    refusal_error,
    rule,
    union_of_reads,
)
from harness.records.commit import CommitRecord
from harness.records.document import Record

if TYPE_CHECKING:
    from harness.planner.commit_store import CommitStore, GateTransaction

__all__ = ["CommitGate", "Reverify", "commit_branch", "file_branch", "recover"]

Reverify = Callable[[Branch, tuple[StaleRead, ...]], Iterable[Branch]]
"""Verify a held branch again: given it and the stale reads, return it with a new read set and a new
verdict, and with it any sibling that was verified again; return nothing to give it up. Its write
set may not change: other effects are another branch."""

NUM_ROUNDS = 64
"""Unfinished commits of others that one commit will finish before it gives up."""


@dataclass(frozen=True, kw_only=True)
class CommitGate:
    """A gate in front of some resources."""

    store: "CommitStore"
    """Its memory; share one among all who write the same resources."""
    resources: Mapping[str, Resource]
    """Resource id -> resource, for everything that a branch or its siblings read or write."""
    reverify: Reverify | None = None
    """Verifies a held branch again; without it `commit_branch` raises and the branch stays held."""
    max_reverifications: int = 3
    """Times one commit may be verified again before it is refused."""


class Request(Record, frozen=True, kw_only=True):
    """What one call of `commit_branch` asks."""

    commit_id: str
    branch: Branch
    digest: str
    record: bytes | None


class Attempt(Record, frozen=True, kw_only=True):
    """How one transaction ended; exactly one of these is set."""

    outcome: CommitOutcome | None = None
    """Committed."""
    stale: tuple[StaleRead, ...] = ()
    """Held for these."""
    refusal: Refusal | None = None
    """Refused."""
    unfinished: tuple[str, ...] = ()
    """Commits that must be finished first."""


def commit_branch(
    branch: Branch,
    gate: CommitGate,
    *,
    siblings: Iterable[Branch] = (),
    commit_id: str = "",
    record: CommitRecord | None = None,
) -> CommitOutcome:
    """Commit `branch` if the world is still the one that it was verified against.

    The union of reads spans the siblings given here and every unresolved branch of the decision
    that was filed before. `record` is the score verdict's commit record: it is kept in the same
    transaction, its winner must be the branch, and its id is the commit id unless one is given.

    Raises StaleVerificationError or another CommitRefusedError when the branch is refused, for
    good; ReverificationNeededError when it is held and the gate has no verifier; IllegalMoveError
    when it was never verified, or is resolved; InvalidRecordError when the commit id stands for
    something else; StoreError when a store fails: whether it committed is then unknown, and calling
    again with the same commit id settles it.
    """
    request = _request(branch, commit_id, record)
    filed, again = (branch, *siblings), False
    _check_siblings(branch, filed)
    for num_left in reversed(range(gate.max_reverifications + 1)):
        attempt = _attempt(gate, request, filed, again=again)
        if attempt.outcome is not None:
            return attempt.outcome
        if num_left:
            filed, again = _verified_again(gate, request, attempt.stale), True
    raise _given_up(gate, request, RefusalReason.WORLD_KEEPS_MOVING, attempt.stale)


def file_branch(branch: Branch, gate: CommitGate) -> State:
    """Store a branch as it is now, so that its reads count for its siblings; return its state.

    Without a verdict it is open, with an accepting one verified, with another refused. Filing a
    held branch that was verified again releases it. Raises IllegalMoveError when it is resolved.
    """

    def work(transaction: "GateTransaction") -> State:
        _refuse_while_applied(transaction.intents(), [branch])
        known = transaction.family("", branch.branch_id).get(branch.branch_id)
        return _file(transaction, known, branch).state

    return gate.store.transact(work)


def recover(gate: CommitGate) -> list[str]:
    """Finish the commits that a crash left undone; return their ids."""
    unfinished = [intent.commit_id for intent in gate.store.intents()]
    for commit_id in unfinished:
        finish(commit_id, gate.store, gate.resources)
    return unfinished


def _request(branch: Branch, commit_id: str, record: CommitRecord | None) -> Request:
    if record is not None:
        _check_record(record, branch)
    effects, data = effects_digest(branch), None if record is None else encode(record)
    named = commit_id or (record.commit_id if record else effects.removeprefix("sha256:")[:16])
    asked = digest([effects, data])
    return Request(commit_id=named, branch=branch, digest=asked, record=data)


def _check_record(record: CommitRecord, branch: Branch) -> None:
    """Raise InvalidRecordError for a score verdict's record that is about something else."""
    if record.winner not in (None, branch.branch_id):
        message = f"the commit record's winner is {record.winner!r}, not {branch.branch_id!r}"
        raise InvalidRecordError(f"{message}; commit the winner, or mend the record")
    if record.decision_id != branch.decision_id:
        message = f"the commit record is about decision {record.decision_id!r}"
        raise InvalidRecordError(f"{message}, the branch about {branch.decision_id!r}")
    if not record.committed:
        message = f"commit record {record.commit_id!r} is marked as not committed"
        raise InvalidRecordError(f"{message}; write one that is")


def _check_siblings(branch: Branch, filed: Iterable[Branch]) -> None:
    for other in filed:
        if other.decision_id != branch.decision_id:
            message = f"branch {other.branch_id!r} is of decision {other.decision_id!r}"
            raise InvalidRecordError(f"{message}, not {branch.decision_id!r}: it is no sibling")


def _attempt(
    gate: CommitGate, request: Request, filed: Iterable[Branch], *, again: bool
) -> Attempt:
    """Try until no unfinished commit is in the way; raise when the branch is refused."""
    branches = tuple(filed)
    for _ in range(NUM_ROUNDS):
        attempt = gate.store.transact(lambda t: _Try(t, gate, request).run(branches, again=again))
        for commit_id in attempt.unfinished:
            finish(commit_id, gate.store, gate.resources)
        if attempt.refusal is not None:
            raise refusal_error(attempt.refusal)
        if not attempt.unfinished:
            return attempt
    message = f"commit {request.commit_id!r}: {NUM_ROUNDS} unfinished commits were in the way"
    raise StoreError(f"{message}; try again")


class _Try:
    """One transaction of `commit_branch`."""

    def __init__(self, transaction: "GateTransaction", gate: CommitGate, request: Request) -> None:
        self._transaction, self._gate, self._request = transaction, gate, request

    def run(self, branches: tuple[Branch, ...], *, again: bool) -> Attempt:
        """Return how the attempt ends; what it moved is kept with the transaction."""
        transaction, request = self._transaction, self._request
        if (done := transaction.outcome(request.commit_id)) is not None:
            _same(done.request_digest, request)
            filed = transaction.family("", done.branch_id)[done.branch_id]
            if filed.state is State.ROLLED_BACK:  # "committed" would be the truth of yesterday
                move(filed.state, Event.COMMIT, done.branch_id)
            return Attempt(outcome=done)
        intents = transaction.intents()
        if own := [i for i in intents if i.commit_id == request.commit_id]:
            _same(own[0].request_digest, request)
            return Attempt(unfinished=(request.commit_id,))
        family = transaction.family(request.branch.decision_id, request.branch.branch_id)
        for name in {branch.branch_id for branch in branches} - {request.branch.branch_id}:
            if name not in family:  # new, or it stands under another decision
                family |= transaction.family("", name)
        if refusal := _refusal(family.get(request.branch.branch_id)):
            return Attempt(refusal=refusal)
        return self._decide(self._filed(family, branches, intents, again=again), intents)

    def _filed(
        self,
        family: dict[str, Filed],
        branches: tuple[Branch, ...],
        intents: list[Intent],
        *,
        again: bool,
    ) -> dict[str, Filed]:
        """File what is new in `branches`; all of it when it was verified again."""
        new = [
            branch
            for branch in branches
            if (known := family.get(branch.branch_id)) is None
            or (known.state in UNRESOLVED and (again or known.branch != branch))
        ]
        _refuse_while_applied(intents, new)
        filed = {b.branch_id: _file(self._transaction, family.get(b.branch_id), b) for b in new}
        return family | filed

    def _decide(self, family: dict[str, Filed], intents: list[Intent]) -> Attempt:
        mine = family[self._request.branch.branch_id]
        if refusal := _refusal(mine):
            return Attempt(refusal=refusal)
        if mine.state is not State.HELD:
            move(mine.state, Event.COMMIT, mine.branch.branch_id)
        siblings = siblings_of(mine.branch, family)
        needed = sorted({*union_of_reads([mine.branch, *siblings]), *mine.branch.write_set})
        if waiting := [i.commit_id for i in intents if not set(i.resources).isdisjoint(needed)]:
            return Attempt(unfinished=tuple(waiting))
        return self._rule(mine, siblings, World(self._transaction, self._gate.resources, needed))

    def _rule(self, mine: Filed, siblings: list[Branch], world: World) -> Attempt:
        replaced = world.snapshots(mine.branch.write_set)
        found = world.found({name: snapshot.token for name, snapshot in replaced.items()})
        ruling = rule(mine.branch, siblings, found)
        if ruling.refusal is not None:
            self._move(mine, Event.REFUSE, Detail(refusal=ruling.refusal))
            return Attempt(refusal=ruling.refusal)
        if mine.state is State.HELD:  # until it is verified again, whatever came back meanwhile
            return Attempt(stale=ruling.stale or mine.detail.stale)
        if ruling.stale:
            self._move(mine, Event.FIND_STALE, Detail(stale=ruling.stale))
            return Attempt(stale=ruling.stale)
        return self._commit(mine, world, replaced)

    def _commit(self, mine: Filed, world: World, replaced: Mapping[str, Snapshot]) -> Attempt:
        intent = Intent(
            commit_id=self._request.commit_id,
            branch_id=mine.branch.branch_id,
            request_digest=self._request.digest,
            record=self._request.record,
            writes=plan_writes(mine.branch, replaced),
            resources=tuple(sorted(world.heads)),
        )
        if all(world.is_inside(write.resource) for write in intent.writes):
            return Attempt(outcome=complete(self._transaction, intent, mine, world))
        self._transaction.put_intent(intent)
        return Attempt(unfinished=(intent.commit_id,))

    def _move(self, mine: Filed, event: Event, detail: Detail) -> None:
        self._transaction.move(mine, event, self._request.commit_id, detail)


def _file(transaction: "GateTransaction", known: Filed | None, branch: Branch) -> Filed:
    if known is not None and known.branch.decision_id != branch.decision_id:
        stands = f"branch {branch.branch_id!r} stands under decision {known.branch.decision_id!r}"
        raise InvalidRecordError(f"{stands}, not {branch.decision_id!r}; give it an id of its own")
    state = State.OPEN if known is None else known.state
    filed = Filed(branch=branch, state=state)
    if branch.verdict is None:
        return transaction.move(filed, Event.EXTEND)
    if branch.verdict.accepted:
        return transaction.move(filed, Event.ACCEPT)
    refusal = Refusal(
        branch_id=branch.branch_id, reason=RefusalReason.REJECTED, note=branch.verdict.note
    )
    return transaction.move(filed, Event.REJECT, detail=Detail(refusal=refusal))


def _refusal(filed: Filed | None) -> Refusal | None:
    return filed.detail.refusal if filed is not None and filed.state is State.REFUSED else None


def _refuse_while_applied(intents: Iterable[Intent], branches: Iterable[Branch]) -> None:
    """Raise IllegalMoveError when one of `branches` is just being committed."""
    applied = {intent.branch_id: intent.commit_id for intent in intents}
    for branch in branches:
        if branch.branch_id in applied:
            commit = f"commit {applied[branch.branch_id]!r} of it is unfinished"
            message = f"branch {branch.branch_id!r} cannot be filed: {commit}; finish that first"
            raise IllegalMoveError(message)


def _same(known: str, request: Request) -> None:
    if known != request.digest:
        message = f"commit_id {request.commit_id!r} already stands for other content"
        raise InvalidRecordError(f"{message}; give each commit its own id")


def _verified_again(
    gate: CommitGate, request: Request, stale: tuple[StaleRead, ...]
) -> tuple[Branch, ...]:
    """Have a held branch verified again; raise when it cannot be, or is given up."""
    name = request.branch.branch_id
    if gate.reverify is None:
        about = "; ".join(map(str, stale))
        advice = "verify it again at the versions found, or give the gate a verifier"
        raise ReverificationNeededError(f"branch {name!r} is held: {about}; {advice}")
    again = tuple(gate.reverify(request.branch, stale))
    mine = [branch for branch in again if branch.branch_id == name]
    if not mine:
        raise _given_up(gate, request, RefusalReason.REJECTED, stale)
    if effects_digest(mine[0]) != effects_digest(request.branch):
        message = f"branch {name!r} came back from its verifier with another write set"
        raise InvalidRecordError(f"{message}; give other effects another branch")
    _check_siblings(request.branch, again)
    return again


def _given_up(
    gate: CommitGate, request: Request, reason: RefusalReason, reads: tuple[StaleRead, ...]
) -> CommitRefusedError:
    """Refuse a held branch; return the error to raise."""
    name = request.branch.branch_id

    def work(transaction: "GateTransaction") -> Refusal:
        refusal = Refusal(branch_id=name, reason=reason, reads=reads)
        held = transaction.family("", name)[name]
        transaction.move(held, Event.REFUSE, request.commit_id, Detail(refusal=refusal))
        return refusal

    return refusal_error(gate.store.transact(work))
