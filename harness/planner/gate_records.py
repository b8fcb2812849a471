"""Decides what the gate's store keeps: branches as filed, writes, commits, intents, moves.

These are what the gate and its store exchange; neither tables nor rules stand here.
"""

from harness.planner.branch import Branch, ResourceVersion
from harness.planner.gate_table import Event, State
from harness.planner.ruling import Refusal, StaleRead
from harness.records.document import Document, Record

__all__ = [
    "CommitOutcome",
    "CommittedRead",
    "Detail",
    "Filed",
    "Head",
    "Intent",
    "Kept",
    "LoggedMove",
    "Planned",
    "RollbackReport",
    "Write",
]


class CommitOutcome(Record, frozen=True, kw_only=True):
    """A commit that was made."""

    commit_id: str
    """Its id; committing again under it returns this outcome."""
    branch_id: str
    """The branch."""
    request_digest: str
    """Digest of what was asked: the branch's effects and the score record."""
    versions: dict[str, ResourceVersion]
    """Resource id -> the version it now has, for each write."""


class Kept(Record, frozen=True, kw_only=True):
    """A write that a rollback left in place."""

    resource: str
    """Its id."""
    reason: str
    """Why, in words."""


class RollbackReport(Record, frozen=True, kw_only=True):
    """What a rollback did."""

    branch_id: str
    """The branch."""
    undone: dict[str, ResourceVersion] = {}
    """Resource id -> its new version, with the content from before the branch."""
    kept: tuple[Kept, ...] = ()
    """What could not be undone."""


class Detail(Record, frozen=True, kw_only=True):
    """What belongs to one move; at most one of these is set."""

    stale: tuple[StaleRead, ...] = ()
    """For FIND_STALE: what must be verified again."""
    refusal: Refusal | None = None
    """For REFUSE and REJECT: why."""
    rollback: RollbackReport | None = None
    """For ROLL_BACK: what it did."""


class Filed(Record, frozen=True, kw_only=True):
    """A branch as the store has it."""

    branch: Branch
    """As last filed."""
    state: State
    """Where it stands."""
    detail: Detail = Detail()
    """Of its last move."""


class Head(Record, frozen=True, kw_only=True):
    """A resource as the gate last left it."""

    generation: int = 0
    """Number of writes through the gate."""
    content_of: int = 0
    """The generation whose content stands there: an earlier one after a rollback."""
    branch_id: str = ""
    """Who made the last write."""


class Write(Record, frozen=True, kw_only=True):
    """One write through the gate."""

    resource: str
    """Its id."""
    generation: int
    """Its number for this resource, from 1 without gaps."""
    branch_id: str
    """Whose write it is, or whose write it takes back."""
    commit_id: str
    """Of the commit that wrote, or is taken back."""
    before: bytes | None
    """Content that it replaced; None when there was none."""
    before_token: str
    """Version that it replaced."""
    token: str
    """Version that it made."""
    content_of: int
    """Generation whose content it put there: its own, or an earlier one that it brought back."""
    replaced: int
    """Generation whose content it replaced; 0 is the content from before the gate."""


class CommittedRead(Record, frozen=True, kw_only=True):
    """One read that a commit rested on."""

    branch_id: str
    """The branch that was committed."""
    resource: str
    """What it had read."""
    generation: int
    """The generation it saw; it was current when the branch was committed."""
    token: str
    """The version it saw."""


class Planned(Record, frozen=True, kw_only=True):
    """One write of an intent."""

    resource: str
    """Its id."""
    content: bytes | None
    """What is to stand there; None deletes."""
    before: bytes | None
    """What stood there."""
    before_token: str
    """Version that is to be replaced."""


class Intent(Document, frozen=True, kw_only=True):
    """A commit that was decided and writes outside the gate's database, until it is done."""

    commit_id: str
    """Its id."""
    branch_id: str
    """The branch."""
    request_digest: str
    """Digest of what was asked."""
    record: bytes | None
    """The score verdict's commit record, as it will be kept."""
    writes: tuple[Planned, ...]
    """In the order in which they are applied."""
    resources: tuple[str, ...]
    """Everything that it reads or writes: no other commit may, before it is done."""


class LoggedMove(Record, frozen=True, kw_only=True):
    """One line of the gate's log."""

    position: int
    """Grows with time; gaps are allowed."""
    branch_id: str
    """The branch that moved."""
    event: Event
    """What happened."""
    state: State
    """Where it stood afterwards."""
    commit_id: str = ""
    """The commit that was tried, if one was."""
    detail: Detail = Detail()
    """What belongs to it."""
