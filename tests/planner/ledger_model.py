"""What the ledger's tests hold it against: a model without any cleverness.

The model keeps bare facts and computes every answer anew by brute force: closures by repeating
"add what it reads" until nothing is added, no index, no sweep, no flag kept between steps.
`contaminated` needs no model at all: it looks at a ledger through its public views only.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from harness.planner.ledger import (
    BranchLedger,
    BranchState,
    CacheKey,
    Closure,
    Draft,
    DraftDecision,
    DraftState,
    VerifierScore,
)
from harness.planner.ledger.events import Event, Swept
from harness.planner.ledger.journal import Log

T = TypeVar("T")
Keys = frozenset[CacheKey]


class CrashError(Exception):
    """Stands for a process that ended."""


class SharedList:
    """A journal in a list, that several ledgers share; it can crash before a second phase."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.crash_before_sweep = False

    def read(self, after: int) -> Sequence[Event]:
        return self.events[after:]

    def write(self, work: Callable[[Log], T]) -> T:
        return work(self)

    def close(self) -> None:
        pass

    def after(self, number: int) -> Sequence[Event]:
        return self.events[number:]

    def append(self, number: int, event: Event) -> None:
        assert number == len(self.events) + 1
        if self.crash_before_sweep and isinstance(event, Swept):
            raise CrashError
        self.events.append(event)


def scored(closure: Closure, value: float = 1.0) -> VerifierScore:
    """Return a score bound to `closure`."""
    return VerifierScore(value=value, closure_digest=closure.digest)


def offer(ledger: BranchLedger, draft: Draft) -> DraftDecision:
    """Offer a draft with a score that counts."""
    return ledger.accept_draft(draft, scored(ledger.closure(draft)))


def contaminated(ledger: BranchLedger) -> list[str]:
    """Return the accepted drafts from which content of a dead branch can be reached."""
    return [
        draft.draft_id
        for draft in ledger.drafts()
        if ledger.decision(draft.draft_id).state is DraftState.ACCEPTED
        and _reaches_dead(ledger, draft.key)
    ]


def _reaches_dead(ledger: BranchLedger, start: CacheKey) -> bool:
    seen, todo = {start}, [start]
    while todo:
        entry = ledger.entry(todo.pop())
        if entry.branch_state is BranchState.DEAD:
            return True
        todo += [key for key in entry.sources if key not in seen]
        seen.update(entry.sources)
    return False


class Model:
    """The facts, and brute force."""

    def __init__(self) -> None:
        self.branches: dict[str, BranchState] = {}
        self.reads: dict[CacheKey, set[CacheKey]] = {}
        self.versions: dict[CacheKey, str] = {}
        self.promoted: list[CacheKey] = []
        self.drafts: dict[str, Draft] = {}
        self.scores: dict[str, Keys] = {}
        self.spent: dict[str, int] = {}

    def closure(self, *starts: CacheKey) -> Keys:
        found = set(starts)
        while True:
            more = {source for key in found for source in self.reads.get(key, ())} - found
            if not more:
                return frozenset(found)
            found |= more

    def dead(self, keys: Iterable[CacheKey]) -> set[str]:
        return {k.branch_id for k in keys if self.branches.get(k.branch_id) is BranchState.DEAD}

    def in_flight(self, keys: Iterable[CacheKey], but: Iterable[str]) -> set[str]:
        live = {k for k, state in self.branches.items() if state is BranchState.IN_FLIGHT}
        return {key.branch_id for key in keys} & live - set(but)

    def evicted(self, key: CacheKey) -> bool:
        return bool(self.dead(self.closure(key)))

    def generations(self, branch_id: str, name: str) -> list[CacheKey]:
        of = [k for k in self.versions if (k.branch_id, k.name) == (branch_id, name)]
        return sorted(of)

    def write(self, branch_id: str, name: str, reads: Sequence[CacheKey], version: str) -> CacheKey:
        old = self.generations(branch_id, name)
        key = old[-1] if old else CacheKey(branch_id=branch_id, name=name)
        dirty = self.branches[branch_id] is BranchState.DEAD or self.dead(self.closure(*reads))
        moved_on = self.versions.get(key, version) != version
        if moved_on or (self.evicted(key) and not dirty):
            key = CacheKey(branch_id=branch_id, name=name, generation=key.generation + 1)
        self.versions[key] = version
        self.reads.setdefault(key, set()).update(reads)
        return key

    def holder(self, name: str) -> CacheKey | None:
        holds = [k for k in self.promoted if k.name == name and not self.evicted(k)]
        return holds[-1] if holds else None

    def visible(self, branch_id: str, name: str) -> CacheKey:
        own = self.generations(branch_id, name)[-1:]
        if own and not self.evicted(own[0]):
            return own[0]
        return self.holder(name) or CacheKey(branch_id="", name=name)

    def unpromoted(self, branch_ids: Iterable[str]) -> list[CacheKey]:
        newest = [
            self.generations(branch_id, name)[-1]
            for branch_id in branch_ids
            for name in dict.fromkeys(k.name for k in self.versions if k.branch_id == branch_id)
        ]
        return [key for key in newest if key not in self.promoted]

    def may_promote(self, branch_ids: Sequence[str]) -> bool:
        keys = self.unpromoted(branch_ids)
        dead = any(self.branches[one] is BranchState.DEAD for one in branch_ids)
        reached = self.closure(*keys)
        if dead or self.dead(reached) or self.in_flight(reached, branch_ids):
            return False
        holders: dict[str, CacheKey | None] = {key.name: self.holder(key.name) for key in keys}
        for key in keys:
            holder, holders[key.name] = holders[key.name], key
            if holder is not None and not self.may_replace(key, holder):
                return False
        return True

    def may_replace(self, key: CacheKey, holder: CacheKey) -> bool:
        same = self.versions[key] == self.versions[holder] != ""
        return same or holder.branch_id == key.branch_id or holder in self.closure(key)

    def promote(self, branch_ids: Sequence[str]) -> None:
        self.promoted += self.unpromoted(branch_ids)
        self.branches.update(dict.fromkeys(branch_ids, BranchState.PROMOTED))

    def offer(self, draft: Draft, score: Keys) -> None:
        known = draft.draft_id in self.drafts
        counted = known and self.scores[draft.draft_id] == self.closure(draft.key)
        self.drafts[draft.draft_id] = draft
        self.reads.setdefault(draft.key, set()).update(draft.reads)
        if not counted:
            self.scores[draft.draft_id] = score

    def state(self, draft_id: str) -> DraftState:
        draft = self.drafts[draft_id]
        closure = self.closure(draft.key)
        if self.dead(closure):
            return DraftState.REJECTED
        if self.scores[draft_id] != closure:
            return DraftState.UNSCORED
        held = self.in_flight(closure, [draft.branch_id])
        return DraftState.HELD if held else DraftState.ACCEPTED

    def distance_to_dead(self, start: CacheKey) -> int:
        """Return how many keys a shortest path to a dead branch has, by growing circles."""
        circle, length = {start}, 1
        while not self.dead(circle):
            circle |= {source for key in circle for source in self.reads.get(key, ())}
            length += 1
        return length
