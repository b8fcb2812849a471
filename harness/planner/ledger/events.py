"""What is written down of a ledger: facts in the order in which they were taken.

A ledger is the outcome of its events and of nothing else: whoever applies the same events in the
same order stands where their writer stood.

History of the format: 1, the first.
"""

from typing import TypeAlias

import msgspec

from harness.errors import InvalidRecordError
from harness.planner.ledger.drafts import Draft, VerifierScore
from harness.planner.ledger.keys import SHARED, CacheKey
from harness.records.document import Record

__all__ = [
    "Event",
    "Funded",
    "MarkedDead",
    "Offered",
    "Opened",
    "Promoted",
    "Recorded",
    "Spent",
    "Swept",
    "Write",
    "decode_event",
]


class Opened(Record, frozen=True, kw_only=True, tag="opened"):
    """A branch began."""

    branch_id: str
    """The branch; an id is never used again."""
    limit: int | None = None
    """Most that it may spend; None for no limit of its own."""

    def __post_init__(self) -> None:
        """The id is not empty, the limit not negative."""
        if self.branch_id == SHARED:
            raise InvalidRecordError("a branch needs an id: the empty one stands for no branch")
        _refuse_negative(self.limit, "a limit")


class Write(Record, frozen=True, kw_only=True):
    """A branch wrote an entry, computed from others."""

    branch_id: str
    """The branch that wrote."""
    name: str
    """The name in its namespace."""
    reads: tuple[CacheKey, ...] = ()
    """The entries it was computed from."""
    version: str = ""
    """Digest, or any mark, of the content; another mark is another entry. Empty: not known."""


class Recorded(Record, frozen=True, kw_only=True, tag="recorded"):
    """Writes that were reported together."""

    writes: tuple[Write, ...]
    """In their order."""


class Offered(Record, frozen=True, kw_only=True, tag="offered"):
    """A draft was put up for a decision."""

    draft: Draft
    """The draft."""
    score: VerifierScore
    """The score, and the closure that it was computed on."""


class Promoted(Record, frozen=True, kw_only=True, tag="promoted"):
    """Branches were promoted, together."""

    branch_ids: tuple[str, ...]
    """The branches; a later one of them takes a name from an earlier one only if built on it."""


class MarkedDead(Record, frozen=True, kw_only=True, tag="marked_dead"):
    """First phase of a rollback."""

    branch_id: str
    """The branch."""


class Swept(Record, frozen=True, kw_only=True, tag="swept"):
    """Second phase of a rollback: its dependents are evicted, and drafts on them demoted."""

    branch_id: str
    """The branch."""


class Spent(Record, frozen=True, kw_only=True, tag="spent"):
    """A branch spent something."""

    branch_id: str
    """The branch."""
    spend_id: str
    """Unique in the branch."""
    cost: int
    """Whole number >= 0."""

    def __post_init__(self) -> None:
        """The cost is not negative."""
        _refuse_negative(self.cost, "a cost")


class Funded(Record, frozen=True, kw_only=True, tag="funded"):
    """The pool of all branches was set."""

    limit: int | None
    """Most that all live branches may spend together; None for no limit."""

    def __post_init__(self) -> None:
        """The limit is not negative."""
        _refuse_negative(self.limit, "a limit")


Event: TypeAlias = Opened | Recorded | Offered | Promoted | MarkedDead | Swept | Spent | Funded

_DECODER = msgspec.json.Decoder(Event)


def decode_event(payload: bytes) -> Event:
    """Return the event; raise InvalidRecordError for bytes that are none."""
    try:
        return _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise InvalidRecordError(f"not a ledger event: {error}") from error


def _refuse_negative(value: int | None, what: str) -> None:
    if value is not None and value < 0:
        raise InvalidRecordError(f"{what} is a whole number >= 0, found {value!r}")
