"""The states of a draft, as a table, and the records that a draft is offered and decided in.

A draft is a step that some branch proposes. It is decided by what its dependency closure meets, in
this order: a dead branch; a score that was computed on another closure; a branch in flight; none
of these.

Rules kept here:

* a rejected draft stays rejected: dead branches stay dead and closures only grow;
* every other state follows from the last finding alone: a draft is never accepted on what was
  found earlier;
* a score that is not finite is no score.

It does not know how a closure is found.
"""

import hashlib
import math
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from harness.errors import IllegalMoveError, InvalidRecordError
from harness.planner.ledger.keys import CacheKey
from harness.records.document import Record

__all__ = [
    "DRAFT_TABLE",
    "Closure",
    "Draft",
    "DraftChange",
    "DraftDecision",
    "DraftState",
    "Finding",
    "VerifierScore",
    "diagram",
    "digest_of",
    "next_state",
]


class DraftState(StrEnum):
    """Where a draft stands."""

    UNSCORED = "unscored"
    """No score counts for its closure: verify it again and offer it with the new score."""
    HELD = "held"
    """It waits for branches in flight, and is decided when they resolve."""
    ACCEPTED = "accepted"
    """It depends on no dead branch and on no other branch in flight."""
    REJECTED = "rejected"
    """It depends on a dead branch. Final."""


class Finding(StrEnum):
    """What a draft's closure meets: the event that moves the draft."""

    MEETS_DEAD = "meets_dead"
    """An entry of a branch that was rolled back."""
    SCORE_OF_OTHER_CLOSURE = "score_of_other_closure"
    """No dead branch, and the score was computed on another closure."""
    MEETS_IN_FLIGHT = "meets_in_flight"
    """No dead branch, a score that counts, and another branch that has not resolved."""
    DISJOINT = "disjoint"
    """None of these."""


DRAFT_TABLE: dict[tuple[DraftState, Finding], DraftState] = {
    (DraftState.UNSCORED, Finding.MEETS_DEAD): DraftState.REJECTED,
    (DraftState.UNSCORED, Finding.SCORE_OF_OTHER_CLOSURE): DraftState.UNSCORED,
    (DraftState.UNSCORED, Finding.MEETS_IN_FLIGHT): DraftState.HELD,
    (DraftState.UNSCORED, Finding.DISJOINT): DraftState.ACCEPTED,
    (DraftState.HELD, Finding.MEETS_DEAD): DraftState.REJECTED,
    (DraftState.HELD, Finding.SCORE_OF_OTHER_CLOSURE): DraftState.UNSCORED,
    (DraftState.HELD, Finding.MEETS_IN_FLIGHT): DraftState.HELD,
    (DraftState.HELD, Finding.DISJOINT): DraftState.ACCEPTED,
    (DraftState.ACCEPTED, Finding.MEETS_DEAD): DraftState.REJECTED,
    (DraftState.ACCEPTED, Finding.SCORE_OF_OTHER_CLOSURE): DraftState.UNSCORED,
    (DraftState.ACCEPTED, Finding.DISJOINT): DraftState.ACCEPTED,
    (DraftState.REJECTED, Finding.MEETS_DEAD): DraftState.REJECTED,
}
"""What is not here cannot happen: no branch takes off again, so an accepted draft meets one in
flight only by a late edge, and then its score is of another closure."""


class VerifierScore(Record, frozen=True, kw_only=True):
    """A verifier's score, bound to the closure that it was computed on."""

    value: float
    """The score, finite, in the verifier's unit; the ledger does not judge it."""
    closure_digest: str
    """``sha256:<hex>`` of that closure: `Closure.digest`."""

    def __post_init__(self) -> None:
        """The value is finite."""
        if not math.isfinite(self.value):
            raise InvalidRecordError(f"a score is finite, found {self.value!r}")


class Draft(Record, frozen=True, kw_only=True):
    """A step that a branch proposes, and the entries it was drafted from."""

    draft_id: str
    """Unique in the ledger."""
    branch_id: str
    """The branch that proposes it. While that branch is in flight its own entries hold nothing."""
    reads: tuple[CacheKey, ...] = ()
    """Entries it was drafted from, as they were looked up when they were read."""

    @property
    def key(self) -> CacheKey:
        """The draft as an entry, for what is computed from it."""
        return CacheKey(branch_id=self.branch_id, name=f"draft:{self.draft_id}")


class Closure(Record, frozen=True, kw_only=True):
    """All that a draft depends on, transitively."""

    keys: tuple[CacheKey, ...]
    """The draft's own key first, then nearest first."""
    digest: str
    """``sha256:<hex>`` of the set of keys, whatever their order."""


class DraftDecision(Record, frozen=True, kw_only=True):
    """Where a draft stands and why."""

    draft_id: str
    """The draft."""
    state: DraftState
    """Where it stands."""
    finding: Finding
    """Why."""
    closure_digest: str
    """Digest of its closure, to which a score must be bound."""
    waits_for: tuple[str, ...] = ()
    """Branches in flight that hold it, sorted; empty unless it is held."""
    path: tuple[CacheKey, ...] = ()
    """Shortest path of keys from the draft to a dead branch; empty unless it is rejected."""


class DraftChange(Record, frozen=True, kw_only=True):
    """One draft that moved because a branch resolved."""

    draft_id: str
    """The draft."""
    before: DraftState
    """Where it stood."""
    after: DraftState
    """Where it stands."""


def next_state(state: DraftState, finding: Finding) -> DraftState:
    """Return where a draft goes; raise IllegalMoveError for a move that is not in the table."""
    try:
        return DRAFT_TABLE[state, finding]
    except KeyError as error:
        message = f"a draft that is {state} cannot go on with {finding}"
        raise IllegalMoveError(f"{message}; offer a new draft") from error


def digest_of(keys: Iterable[CacheKey]) -> str:
    """Return ``sha256:<hex>`` of a set of keys."""
    parts = sorted((key.branch_id, key.name, key.generation) for key in keys)
    return f"sha256:{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()}"


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    moves = [
        f"    {state} --> {after}: {finding}"
        for (state, finding), after in DRAFT_TABLE.items()
        if after is not state
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {DraftState.UNSCORED}", *moves])
