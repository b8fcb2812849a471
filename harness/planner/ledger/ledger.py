"""The branch ledger: what a planner calls to keep dead branches out of accepted drafts.

Token-level rollback forgets a branch's tokens; it does not see what others computed from the
branch's cache entries. The ledger does, from what is reported to it: who wrote which entry,
computed from which others.

Rules kept here:

* what is decided is written first: an answer that was returned survives a crash;
* several processes may share a journal: each catches up before it decides, and none decides
  anything while a rollback lacks its second phase, which whoever comes next finishes;
* repeating a call changes nothing and gives the same answer, so a call whose outcome is unknown
  may be repeated.

It does not decide what follows from an event (`state` does), nor where events are kept (a journal).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Self

from harness.errors import BranchContaminationError
from harness.planner.ledger.branches import BranchEvent, BranchState
from harness.planner.ledger.budget import Account
from harness.planner.ledger.drafts import (
    Closure,
    Draft,
    DraftDecision,
    DraftState,
    VerifierScore,
)
from harness.planner.ledger.events import (
    Event,
    Funded,
    MarkedDead,
    Offered,
    Opened,
    Promoted,
    Recorded,
    Spent,
    Swept,
    Write,
)
from harness.planner.ledger.journal import Journal, Log, Unwritten
from harness.planner.ledger.keys import CacheKey
from harness.planner.ledger.lineage import told
from harness.planner.ledger.state import Consequence, LedgerState
from harness.planner.ledger.views import (
    BranchView,
    EntryView,
    KeyUse,
    Resolution,
    entries_of,
    entry_of,
    key_use,
)

__all__ = ["BranchLedger"]


class BranchLedger:
    """One ledger, in memory, kept by a journal; safe to share between threads."""

    def __init__(self, journal: Journal | None = None) -> None:
        """Catch up with `journal` and finish what a crash cut short; None: keep nothing."""
        self._journal = journal or Unwritten()
        self._state = LedgerState()
        self._seen = 0
        self._lock = RLock()
        self.refresh()

    def __enter__(self) -> Self:
        """Return the ledger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ledger."""
        self.close()

    def close(self) -> None:
        """Let go of the journal; nothing is lost."""
        self._journal.close()

    def refresh(self) -> None:
        """Catch up with what other processes have written, and finish their rollbacks."""
        with self._lock:
            self._absorb(self._journal.read(self._seen))
            while unfinished := self._state.unfinished():
                self._do(unfinished)

    # --- branches

    def open_branch(self, branch_id: str, *, limit: int | None = None) -> None:
        """Begin a branch that may spend at most `limit` (None: no limit of its own).

        Raises IllegalMoveError for an id that was used before, but for an equal repeat.
        """
        self._do(Opened(branch_id=branch_id, limit=limit))

    def promote(self, *branch_ids: str) -> Resolution:
        """Let all see the newest entries of these branches; decide the drafts held for them.

        All are promoted together or none is. Promoting again publishes what was written since.
        Raises BranchContaminationError for a branch that is dead or builds on a dead one,
        IllegalMoveError for one that builds on a branch in flight outside the group,
        VersionConflictError when another branch was promoted under one of its names first.
        """
        changes = self._do(Promoted(branch_ids=branch_ids)).changes
        return Resolution(branch_ids=branch_ids, state=BranchState.PROMOTED, changes=changes)

    def rollback(self, branch_id: str) -> Resolution:
        """Mark a branch dead, then evict all that depends on it and demote the drafts among it.

        A promoted branch can be rolled back too: its entries are withdrawn from all who saw them.
        What its drafts did outside the cache is not undone; the commit gate does that.
        """
        with self._lock:
            self._do(MarkedDead(branch_id=branch_id))
            self._do(Swept(branch_id=branch_id))
            changes = self._state.changes(branch_id)
        return Resolution(branch_ids=(branch_id,), state=BranchState.DEAD, changes=changes)

    def resolve(self, branch_id: str, event: BranchEvent) -> Resolution:
        """Promote or roll back a branch, as `event` says."""
        if event is BranchEvent.PROMOTE:
            return self.promote(branch_id)
        return self.rollback(branch_id)

    # --- entries

    def visible(self, branch_id: str, name: str) -> CacheKey:
        """Return the entry that `branch_id` means by `name` now: look it up when you read it.

        Its own, else the promoted one, else the shared one; never an unpromoted sibling's.
        """
        with self._current() as state:
            state.lineage.state_of(branch_id)
            return state.lineage.entries.visible(branch_id, name)

    def record_dependency(
        self, branch_id: str, name: str, *, reads: Iterable[CacheKey] = (), version: str = ""
    ) -> CacheKey:
        """Record that `branch_id` wrote `name`, computed from `reads`; return the entry.

        `version` is a digest, or any mark, of the content: under another version the name is
        another entry. Without versions a repeated write adds to what the entry was computed from.
        """
        write = Write(branch_id=branch_id, name=name, reads=tuple(reads), version=version)
        return self.record_dependencies((write,))[0]

    def record_dependencies(self, writes: Iterable[Write]) -> tuple[CacheKey, ...]:
        """Record writes in one transaction; return their entries, in order."""
        return self._do(Recorded(writes=tuple(writes))).keys

    # --- drafts

    def closure(self, draft: Draft) -> Closure:
        """Return all that `draft` depends on, transitively, offered or not."""
        with self._current() as state:
            return state.closure(draft)

    def path_to_branch(self, draft: Draft, branch_id: str) -> tuple[CacheKey, ...]:
        """Return a shortest path of keys from a draft to a branch; empty without one."""
        with self._current() as state:
            graph = state.lineage.graph
            return graph.path((draft.key,), lambda key: key.branch_id == branch_id)

    def accept_draft(self, draft: Draft, score: VerifierScore) -> DraftDecision:
        """Decide a draft: accepted, held for branches in flight, or unscored.

        A score that was computed on another closure does not count: the draft is unscored until
        it is offered again with one that does. A held draft is decided when those branches
        resolve; see `decision`. Raises BranchContaminationError, naming a shortest path of keys,
        for a draft that depends on a dead branch.
        """
        with self._lock:
            self._do(Offered(draft=draft, score=score))
            decision = self._state.decision(draft.draft_id)
        if decision.state is DraftState.REJECTED:
            raise BranchContaminationError(_rejection(decision))
        return decision

    def decision(self, draft_id: str) -> DraftDecision:
        """Return where a draft stands now; raise IllegalMoveError when it was never offered."""
        with self._current() as state:
            return state.decision(draft_id)

    # --- cost

    def set_pool(self, limit: int | None) -> None:
        """Bound what all live branches may spend together; None for no bound."""
        self._do(Funded(limit=limit))

    def spend(self, branch_id: str, spend_id: str, cost: int) -> Account:
        """Count `cost` for a branch, once for each `spend_id`; return its account.

        Raises BudgetExceededError when it is more than is left, IllegalMoveError for a dead branch.
        """
        with self._lock:
            self._do(Spent(branch_id=branch_id, spend_id=spend_id, cost=cost))
            return self._state.budgets.account(branch_id)

    def spent(self) -> int:
        """Return what all branches have spent and no rollback has returned."""
        with self._current() as state:
            return state.budgets.net

    # --- views

    def branch(self, branch_id: str) -> BranchView:
        """Return a branch with its entries, drafts and account."""
        with self._current() as state:
            return BranchView(
                branch_id=branch_id,
                state=state.lineage.state_of(branch_id),
                account=state.budgets.account(branch_id),
                entries=entries_of(state.lineage, branch_id),
                drafts=tuple(
                    state.decision(one.draft_id)
                    for one in state.drafts()
                    if one.branch_id == branch_id
                ),
            )

    def branches(self) -> dict[str, BranchState]:
        """Return every branch and where it stands, in the order in which they were opened."""
        with self._current() as state:
            return dict(state.lineage.branches)

    def drafts(self) -> tuple[Draft, ...]:
        """Return every draft, in the order in which they were offered."""
        with self._current() as state:
            return state.drafts()

    def entry(self, key: CacheKey) -> EntryView:
        """Return an entry and its direct neighbours."""
        with self._current() as state:
            return entry_of(state.lineage, key)

    def use_of(self, name: str) -> KeyUse:
        """Return which branches wrote `name`, and which computed something from it."""
        with self._current() as state:
            return key_use(state.lineage, name)

    # --- events

    @contextmanager
    def _current(self) -> Iterator[LedgerState]:
        """Give the state that follows from all events so far, with no rollback half done."""
        with self._lock:
            self.refresh()
            yield self._state

    def _do(self, event: Event) -> Consequence:
        """Write `event` and let it happen, after whatever must be finished first."""
        with self._lock:
            while True:
                written = self._journal.write(partial(self._write, event))
                if written is None:
                    return self._state.apply(event)
                self._seen += 1
                consequence = self._state.apply(written)
                if written is event:
                    return consequence

    def _write(self, event: Event, log: Log) -> Event | None:
        """Write what must happen next: a sweep that is owed, else `event`, else nothing new."""
        self._absorb(log.after(self._seen))
        following = self._state.unfinished() or event
        self._state.refuse(following)
        if self._state.knows(following):
            return None
        log.append(self._seen + 1, following)
        return following

    def _absorb(self, events: Iterable[Event]) -> None:
        for event in events:
            self._state.apply(event)
            self._seen += 1


def _rejection(decision: DraftDecision) -> str:
    dead = decision.path[-1].branch_id
    path = f"{told(decision.path)}, and branch {dead!r} was rolled back"
    advice = "draft it again, without what depends on that branch"
    return f"draft {decision.draft_id!r} is rejected: {path}; {advice}"
