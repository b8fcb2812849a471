"""Decides what an entry is worth: which branches its content comes from, and where those stand.

Rules kept here:

* a shared entry belongs to no branch: it is neither in flight nor dead;
* a branch or a generation that nobody knows is refused: what is reported about it is about nothing;
* an entry of a dead branch is evicted as soon as it is heard of.

It does not know drafts.
"""

from collections.abc import Iterable

from harness.errors import IllegalMoveError
from harness.planner.ledger.branches import BRANCH_TABLE, BranchEvent, BranchState
from harness.planner.ledger.dependencies import DependencyGraph
from harness.planner.ledger.keys import SHARED, CacheKey
from harness.planner.ledger.namespaces import Namespaces

__all__ = ["Lineage", "told"]


class Lineage:
    """Branches, their entries, and what was computed from what."""

    def __init__(self) -> None:
        """Start empty."""
        self.branches: dict[str, BranchState] = {}
        """Branch -> where it stands, in the order in which they were opened."""
        self.entries = Namespaces()
        """The entries of each branch."""
        self.graph = DependencyGraph()
        """What was computed from what."""

    def state_of(self, branch_id: str) -> BranchState:
        """Return where a branch stands; raise IllegalMoveError when it was not opened."""
        if branch_id not in self.branches:
            raise IllegalMoveError(f"branch {branch_id!r} is not in this ledger; open it first")
        return self.branches[branch_id]

    def refuse_unknown(self, keys: Iterable[CacheKey]) -> None:
        """Raise IllegalMoveError for an entry of a branch, or a generation, that nobody knows."""
        for key in keys:
            if key.branch_id != SHARED:
                self.state_of(key.branch_id)
            self.entries.refuse_unknown(key)

    def move(self, branch_id: str, event: BranchEvent) -> None:
        """Resolve a branch."""
        self.branches[branch_id] = BRANCH_TABLE[self.branches[branch_id], event]

    def admit(self, keys: Iterable[CacheKey]) -> None:
        """Take note of entries that were read, or are drafts."""
        for key in keys:
            self.entries.admit(key)
            if self.is_dead(key):
                self.entries.evicted.add(key)

    def is_dead(self, key: CacheKey) -> bool:
        """Return whether the branch that wrote `key` was rolled back."""
        return self.branches.get(key.branch_id) is BranchState.DEAD

    def in_flight(self, key: CacheKey, but: Iterable[str] = ()) -> bool:
        """Return whether the branch that wrote `key` is unresolved and none of `but`."""
        state = self.branches.get(key.branch_id)
        return state is BranchState.IN_FLIGHT and key.branch_id not in but

    def is_clean(self, branch_id: str, reads: Iterable[CacheKey]) -> bool:
        """Return whether what `branch_id` computes from `reads` depends on no dead branch."""
        if self.branches[branch_id] is BranchState.DEAD:
            return False
        return not any(key in self.entries.evicted or self.is_dead(key) for key in reads)

    def path_to_dead(self, starts: Iterable[CacheKey]) -> tuple[CacheKey, ...]:
        """Return a shortest path of keys to an entry of a dead branch; empty without one."""
        return self.graph.path(starts, self.is_dead)

    def dependents(self, starts: Iterable[CacheKey]) -> dict[CacheKey, None]:
        """Return what was computed from `starts`, themselves included, and is not evicted yet."""
        return self.graph.dependents(starts, self.entries.evicted)


def told(path: tuple[CacheKey, ...]) -> str:
    """Return a path of keys in words."""
    return " reads ".join(key.address for key in path)
