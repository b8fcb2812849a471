"""Decides what follows from each event: which entries are evicted, which drafts are accepted.

Pure: no clock, no disk, no randomness. `refuse` says whether an event may happen now and changes
nothing; `knows` says whether it has happened already; `apply` lets it happen.

Rules kept here:

* facts about reads and writes are never refused for coming late: what comes of a dead branch is
  evicted at once, and every draft that a late edge reaches is decided again;
* what was computed from an evicted entry is evicted: evicted entries are closed under dependence;
* a sweep visits what depends on the dead branch, once, and nothing else.

It does not know what nobody reported: a read that is not recorded is not seen.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from harness.errors import IllegalMoveError
from harness.planner.ledger.branches import BranchEvent, BranchState
from harness.planner.ledger.budget import Budgets
from harness.planner.ledger.drafts import (
    Closure,
    Draft,
    DraftChange,
    DraftDecision,
    DraftState,
    Finding,
    VerifierScore,
    digest_of,
    next_state,
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
from harness.planner.ledger.keys import CacheKey
from harness.planner.ledger.lineage import Lineage
from harness.planner.ledger.promotion import publishes, refuse_promotion
from harness.records.document import Record

__all__ = ["Consequence", "LedgerState"]


class Consequence(Record, frozen=True, kw_only=True):
    """What an event made."""

    keys: tuple[CacheKey, ...] = ()
    """The entry of each write that was recorded."""
    changes: tuple[DraftChange, ...] = ()
    """The drafts that moved because a branch resolved."""


class _Standing(Record, frozen=True, kw_only=True):
    """A draft, its score and where it stands."""

    draft: Draft
    score: VerifierScore
    decision: DraftDecision


class LedgerState:
    """All that follows from the events so far."""

    def __init__(self) -> None:
        """Start with no events."""
        self.lineage = Lineage()
        self.budgets = Budgets()
        self._drafts: dict[str, _Standing] = {}
        self._draft_at: dict[CacheKey, str] = {}
        self._waiting: dict[str, dict[str, None]] = {}
        self._unswept: dict[str, None] = {}
        self._swept: dict[str, tuple[DraftChange, ...]] = {}

    def unfinished(self) -> Swept | None:
        """Return the second phase of the oldest rollback that lacks it."""
        return next((Swept(branch_id=branch_id) for branch_id in self._unswept), None)

    def refuse(self, event: Event) -> None:
        """Raise when `event` may not happen now; change nothing."""
        match event:
            case Opened():
                self._refuse_reopening(event)
            case Recorded(writes=writes):
                for write in writes:
                    self.lineage.state_of(write.branch_id)
                    self.lineage.refuse_unknown(write.reads)
            case Offered(draft=draft):
                self._refuse_draft(draft)
            case Promoted(branch_ids=branch_ids):
                refuse_promotion(self.lineage, branch_ids)
            case Spent():
                self._refuse_spend(event)
            case MarkedDead(branch_id=branch_id) | Swept(branch_id=branch_id):
                self.lineage.state_of(branch_id)
            case Funded():
                pass

    def knows(self, event: Event) -> bool:
        """Return whether `event`, which may happen, would change nothing."""
        known = False
        match event:
            case Opened(branch_id=branch_id):
                known = branch_id in self.lineage.branches
            case Recorded(writes=writes):
                known = all(self._knows_write(write) for write in writes)
            case Offered():
                known = self._knows_offer(event)
            case Promoted(branch_ids=branch_ids):
                known = not any(publishes(self.lineage, branch_id) for branch_id in branch_ids)
            case Spent():
                known = self.budgets.knows(event.branch_id, event.spend_id, event.cost)
            case MarkedDead(branch_id=branch_id):
                known = self.lineage.branches[branch_id] is BranchState.DEAD
            case Swept(branch_id=branch_id):
                known = branch_id not in self._unswept
            case Funded(limit=limit):
                known = limit == self.budgets.pool
        return known

    def apply(self, event: Event) -> Consequence:
        """Let `event`, which may happen, happen."""
        if isinstance(event, Recorded):
            return Consequence(keys=tuple(self._record(write) for write in event.writes))
        if self.knows(event):
            return Consequence()
        match event:
            case Opened(branch_id=branch_id):
                self.lineage.branches[branch_id] = BranchState.IN_FLIGHT
                self.budgets.open(branch_id, event.limit)
            case Offered():
                self._offer(event)
            case Promoted(branch_ids=branch_ids):
                return Consequence(changes=self._promote(branch_ids))
            case Spent():
                self.budgets.spend(event.branch_id, event.spend_id, event.cost)
            case MarkedDead(branch_id=branch_id):
                self._mark_dead(branch_id)
            case Swept(branch_id=branch_id):
                return Consequence(changes=self._sweep(branch_id))
            case Funded(limit=limit):
                self.budgets.pool = limit
        return Consequence()

    def closure(self, draft: Draft) -> Closure:
        """Return all that a draft depends on; it need not have been offered."""
        self.lineage.state_of(draft.branch_id)
        self.lineage.refuse_unknown(draft.reads)
        return self._closure((draft.key, *draft.reads))

    def decision(self, draft_id: str) -> DraftDecision:
        """Return where a draft stands, with its path to a dead branch when it is rejected."""
        if draft_id not in self._drafts:
            raise IllegalMoveError(f"draft {draft_id!r} was never offered; offer it first")
        standing = self._drafts[draft_id]
        if standing.decision.state is not DraftState.REJECTED:
            return standing.decision
        return replace(standing.decision, path=self.lineage.path_to_dead((standing.draft.key,)))

    def drafts(self) -> tuple[Draft, ...]:
        """Return every draft, in the order in which they were offered."""
        return tuple(standing.draft for standing in self._drafts.values())

    def changes(self, branch_id: str) -> tuple[DraftChange, ...]:
        """Return the drafts that moved when a branch was swept."""
        return self._swept[branch_id]

    # --- what may happen

    def _refuse_reopening(self, event: Opened) -> None:
        state = self.lineage.branches.get(event.branch_id, BranchState.IN_FLIGHT)
        known = event.branch_id in self.lineage.branches
        limit = self.budgets.account(event.branch_id).limit if known else event.limit
        if state is not BranchState.IN_FLIGHT or limit != event.limit:
            found = f"branch {event.branch_id!r} is {state} with a limit of {limit}"
            raise IllegalMoveError(f"{found}; give a new branch a new id")

    def _refuse_draft(self, draft: Draft) -> None:
        self.lineage.state_of(draft.branch_id)
        self.lineage.refuse_unknown(draft.reads)
        known = self._drafts.get(draft.draft_id)
        if known is not None and known.draft != draft:
            message = f"draft {draft.draft_id!r} was offered by another branch or with other reads"
            raise IllegalMoveError(f"{message}; give another draft another id")

    def _refuse_spend(self, event: Spent) -> None:
        if self.lineage.state_of(event.branch_id) is BranchState.DEAD:
            message = f"branch {event.branch_id!r} was rolled back and its cost returned"
            raise IllegalMoveError(f"{message}; stop what still spends for it")
        if not self.budgets.knows(event.branch_id, event.spend_id, event.cost):
            self.budgets.refuse_excess(event.branch_id, event.cost)

    # --- what has happened already

    def _knows_write(self, write: Write) -> bool:
        entries, graph = self.lineage.entries, self.lineage.graph
        clean = self.lineage.is_clean(write.branch_id, write.reads)
        key = entries.written(write.branch_id, write.name, write.version, clean=clean)
        return entries.has_version(key, write.version) and all(
            graph.has(key, source) for source in write.reads
        )

    def _knows_offer(self, event: Offered) -> bool:
        known = self._drafts.get(event.draft.draft_id)
        return known is not None and _counting(known, event.score) == known.score

    # --- what follows

    def _record(self, write: Write) -> CacheKey:
        self.lineage.admit(write.reads)
        clean = self.lineage.is_clean(write.branch_id, write.reads)
        entries = self.lineage.entries
        key = entries.write(write.branch_id, write.name, write.version, clean=clean)
        self._link(key, write.reads)
        return key

    def _offer(self, event: Offered) -> None:
        draft = event.draft
        self.lineage.admit((draft.key, *draft.reads))
        known = self._drafts.get(draft.draft_id, _unscored(event))
        self._drafts[draft.draft_id] = replace(known, score=_counting(known, event.score))
        self._draft_at[draft.key] = draft.draft_id
        self._link(draft.key, draft.reads)
        self._decide(draft.draft_id)

    def _promote(self, branch_ids: tuple[str, ...]) -> tuple[DraftChange, ...]:
        for branch_id in branch_ids:
            self.lineage.move(branch_id, BranchEvent.PROMOTE)
            for key in self.lineage.entries.unpromoted(branch_id):
                self.lineage.entries.promote(key)
        waiting = [self._waiting.pop(branch_id, {}) for branch_id in branch_ids]
        return self._decide_all(draft_id for drafts in waiting for draft_id in drafts)

    def _mark_dead(self, branch_id: str) -> None:
        self.lineage.move(branch_id, BranchEvent.ROLL_BACK)
        self.budgets.give_back(branch_id)
        self._unswept[branch_id] = None

    def _sweep(self, branch_id: str) -> tuple[DraftChange, ...]:
        del self._unswept[branch_id]
        self._waiting.pop(branch_id, None)
        self._swept[branch_id] = self._evict(self.lineage.entries.of(branch_id))
        return self._swept[branch_id]

    def _link(self, key: CacheKey, reads: tuple[CacheKey, ...]) -> None:
        """Add edges; evict or decide again whatever they reach."""
        grown = [self.lineage.graph.add(key, source) for source in reads]
        if not self.lineage.is_clean(key.branch_id, reads):
            self._evict((key,))
        elif any(grown):
            self._decide_all(self._drafts_among(self.lineage.dependents((key,))))

    def _evict(self, starts: Iterable[CacheKey]) -> tuple[DraftChange, ...]:
        """Evict all that depends on `starts`; reject the drafts among it."""
        touched = self.lineage.dependents(starts)
        self.lineage.entries.evicted.update(touched)
        drafts = self._drafts_among(touched)
        return tuple(change for one in drafts for change in self._settle(one, Finding.MEETS_DEAD))

    def _drafts_among(self, keys: Iterable[CacheKey]) -> list[str]:
        return [self._draft_at[key] for key in keys if key in self._draft_at]

    def _decide_all(self, draft_ids: Iterable[str]) -> tuple[DraftChange, ...]:
        distinct = dict.fromkeys(draft_ids)
        return tuple(change for one in distinct for change in self._decide(one))

    def _decide(self, draft_id: str) -> tuple[DraftChange, ...]:
        """Move a draft by what its closure meets now."""
        standing = self._drafts[draft_id]
        closure = self._closure((standing.draft.key,))
        finding, waits_for = self._met(closure, standing)
        for branch_id in waits_for:
            self._waiting.setdefault(branch_id, {})[draft_id] = None
        return self._settle(draft_id, finding, closure.digest, waits_for)

    def _met(self, closure: Closure, standing: _Standing) -> tuple[Finding, tuple[str, ...]]:
        """Return what a closure meets, and the branches in flight that hold the draft for it."""
        if any(self.lineage.is_dead(key) for key in closure.keys):
            return Finding.MEETS_DEAD, ()
        if standing.score.closure_digest != closure.digest:
            return Finding.SCORE_OF_OTHER_CLOSURE, ()
        own = (standing.draft.branch_id,)
        held_by = {key.branch_id for key in closure.keys if self.lineage.in_flight(key, own)}
        finding = Finding.MEETS_IN_FLIGHT if held_by else Finding.DISJOINT
        return finding, tuple(sorted(held_by))

    def _settle(
        self, draft_id: str, finding: Finding, digest: str = "", waits_for: tuple[str, ...] = ()
    ) -> tuple[DraftChange, ...]:
        standing = self._drafts[draft_id]
        before, after = standing.decision.state, next_state(standing.decision.state, finding)
        decision = replace(
            standing.decision,
            state=after,
            finding=finding,
            closure_digest=digest or standing.decision.closure_digest,
            waits_for=waits_for,
        )
        self._drafts[draft_id] = replace(standing, decision=decision)
        if before is after:
            return ()
        return (DraftChange(draft_id=draft_id, before=before, after=after),)

    def _closure(self, starts: tuple[CacheKey, ...]) -> Closure:
        keys = tuple(self.lineage.graph.closure(starts))
        return Closure(keys=keys, digest=digest_of(keys))


def _unscored(event: Offered) -> _Standing:
    """Return a draft as it stands before it is decided for the first time."""
    decision = DraftDecision(
        draft_id=event.draft.draft_id,
        state=DraftState.UNSCORED,
        finding=Finding.SCORE_OF_OTHER_CLOSURE,
        closure_digest="",
    )
    return _Standing(draft=event.draft, score=event.score, decision=decision)


def _counting(known: _Standing, score: VerifierScore) -> VerifierScore:
    """Return the score to keep: one that does not count never replaces one that does."""
    digest = known.decision.closure_digest
    keep = score.closure_digest != digest and known.score.closure_digest == digest
    return known.score if keep else score
