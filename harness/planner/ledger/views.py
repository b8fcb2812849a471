"""What a person, or a tool, is shown of a ledger. No decision is taken here."""

from harness.planner.ledger.branches import BranchState
from harness.planner.ledger.budget import Account
from harness.planner.ledger.drafts import DraftChange, DraftDecision
from harness.planner.ledger.keys import CacheKey
from harness.planner.ledger.lineage import Lineage
from harness.records.document import Record

__all__ = [
    "BranchView",
    "EntryView",
    "KeyUse",
    "Resolution",
    "entries_of",
    "entry_of",
    "key_use",
]


class EntryView(Record, frozen=True, kw_only=True):
    """One cache entry and its direct neighbours."""

    key: CacheKey
    """The entry."""
    branch_state: BranchState | None
    """Where the branch that wrote it stands; None for a shared entry."""
    evicted: bool
    """Whether it is, or was computed from, content of a dead branch."""
    sources: tuple[CacheKey, ...]
    """What it was computed from."""
    readers: tuple[CacheKey, ...]
    """What was computed from it."""


class BranchView(Record, frozen=True, kw_only=True):
    """One branch."""

    branch_id: str
    """The branch."""
    state: BranchState
    """Where it stands."""
    account: Account
    """What it spent."""
    entries: tuple[EntryView, ...]
    """What it wrote, and its drafts, oldest first."""
    drafts: tuple[DraftDecision, ...]
    """The drafts that it proposed."""


class KeyUse(Record, frozen=True, kw_only=True):
    """Who wrote and who read a key, under whatever branch."""

    name: str
    """The key."""
    writers: tuple[str, ...]
    """Branches that wrote it, sorted."""
    readers: tuple[str, ...]
    """Branches that computed something from an entry of this name, sorted."""


class Resolution(Record, frozen=True, kw_only=True):
    """What followed when branches resolved."""

    branch_ids: tuple[str, ...]
    """The branches."""
    state: BranchState
    """How they resolved."""
    changes: tuple[DraftChange, ...]
    """The drafts that moved: held ones decided, accepted ones demoted."""


def entry_of(lineage: Lineage, key: CacheKey) -> EntryView:
    """Return an entry and its direct neighbours."""
    return EntryView(
        key=key,
        branch_state=lineage.branches.get(key.branch_id),
        evicted=key in lineage.entries.evicted,
        sources=lineage.graph.sources(key),
        readers=lineage.graph.readers(key),
    )


def entries_of(lineage: Lineage, branch_id: str) -> tuple[EntryView, ...]:
    """Return what a branch wrote, and its drafts, oldest first."""
    return tuple(entry_of(lineage, key) for key in lineage.entries.of(branch_id))


def key_use(lineage: Lineage, name: str) -> KeyUse:
    """Return which branches wrote `name`, and which computed something from it."""
    keys = list(lineage.entries.named(name, lineage.branches))
    writers = {key.branch_id for key in keys if lineage.entries.is_written(key)}
    readers = {one.branch_id for key in keys for one in lineage.graph.readers(key)}
    return KeyUse(name=name, writers=tuple(sorted(writers)), readers=tuple(sorted(readers)))
