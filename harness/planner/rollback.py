"""Decides what of a branch can be undone, and undoes that: compensation, never time travel.

Rules kept here:

* a write is undone by a new write that brings the earlier content back, at a new version and a new
  generation: whoever saw either of the earlier ones is stale;
* only where nobody built on it: no later write stands on it, no other committed branch read it,
  and nobody outside the gate has changed it since. A later branch that was itself undone does not
  count;
* what is left in place is reported, with the reason;
* rolling back again returns the first report. After a crash between an outside write and the end of
  the transaction, the write is found done and not done twice.

Branches that only read what was undone are not touched here: the gate finds them stale.
"""

from typing import TYPE_CHECKING

from harness.errors import StoreError, VersionConflictError
from harness.planner.branch import Branch, ResourceVersion
from harness.planner.gate import CommitGate
from harness.planner.gate_records import Detail, Filed, Kept, RollbackReport, Write
from harness.planner.gate_table import Event, State
from harness.planner.intent import finish, undoing
from harness.planner.observation import World

if TYPE_CHECKING:
    from harness.planner.commit_store import GateTransaction

__all__ = ["rollback_branch"]

NUM_ROUNDS = 64
"""Unfinished commits of others that one rollback will finish before it gives up."""


def rollback_branch(branch: Branch, gate: CommitGate) -> RollbackReport:
    """Give a branch up, undo what it wrote as far as nobody built on it, and report.

    Raises IllegalMoveError when it was refused: it wrote nothing. StoreError when a store fails;
    calling again goes on from there.
    """
    for _ in range(NUM_ROUNDS):
        result = gate.store.transact(lambda transaction: _roll_back(transaction, branch, gate))
        if isinstance(result, RollbackReport):
            return result
        for commit_id in result:
            finish(commit_id, gate.store, gate.resources)
    message = f"branch {branch.branch_id!r}: {NUM_ROUNDS} unfinished commits were in the way"
    raise StoreError(f"{message}; try again")


def _roll_back(
    transaction: "GateTransaction", branch: Branch, gate: CommitGate
) -> RollbackReport | list[str]:
    """Return the report, or the ids of the commits that must be finished first."""
    name = branch.branch_id
    filed = transaction.family("", name).get(name) or Filed(branch=branch, state=State.OPEN)
    if filed.state is State.ROLLED_BACK and filed.detail.rollback is not None:
        return filed.detail.rollback
    writes = transaction.writes_of(name) if filed.state is State.COMMITTED else []
    resources = {write.resource for write in writes}
    if waiting := [
        intent.commit_id
        for intent in transaction.intents()
        if intent.branch_id == name or not resources.isdisjoint(intent.resources)
    ]:
        return waiting
    report = _undo(transaction, name, writes, World(transaction, gate.resources, resources))
    transaction.move(filed, Event.ROLL_BACK, detail=Detail(rollback=report))
    return report


def _undo(
    transaction: "GateTransaction", name: str, writes: list[Write], world: World
) -> RollbackReport:
    undone: dict[str, ResourceVersion] = {}
    kept: list[Kept] = []
    for write in writes:
        if reason := _built_on(transaction, write, world):
            kept.append(Kept(resource=write.resource, reason=reason))
            continue
        result = _compensate(transaction, write, world)
        if isinstance(result, Kept):
            kept.append(result)
        else:
            undone[write.resource] = result
    return RollbackReport(branch_id=name, undone=undone, kept=tuple(kept))


def _built_on(transaction: "GateTransaction", write: Write, world: World) -> str:
    """Say who built on a write; empty when nobody did."""
    head = world.heads[write.resource]
    if head.content_of != write.generation:
        return f"branch {head.branch_id!r} has written it since"
    readers = transaction.readers(write.resource, write.generation, write.branch_id)
    return f"committed branch {readers[0]!r} rests on it" if readers else ""


def _compensate(
    transaction: "GateTransaction", write: Write, world: World
) -> ResourceVersion | Kept:
    latest = transaction.write_at(write.resource, world.heads[write.resource].generation)
    resource = world.handle(write.resource)
    now = resource.read()
    if now.token == latest.token:
        try:
            token = resource.write(write.before, latest.token)
        except VersionConflictError as error:
            return Kept(resource=write.resource, reason=f"changed outside the gate ({error})")
    elif (
        now.token is not None
        and now.content == write.before
        and not world.is_inside(write.resource)
    ):
        token = now.token  # an earlier try, before a crash
    else:
        reason = f"changed outside the gate: expected {latest.token}, found {now.token}"
        return Kept(resource=write.resource, reason=reason)
    undo = undoing(write, latest, now.content, token)
    transaction.put_write(undo)
    return ResourceVersion(token=token, generation=undo.generation)
