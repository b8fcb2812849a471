"""Decides which moves a branch can make at the gate: one table of states and events.

Rules kept here:

* a move that is not in the table raises `IllegalMoveError` and changes nothing;
* a branch is committed only from VERIFIED: one that was held commits after it was verified again,
  though the old versions should come back meanwhile;
* REFUSED and ROLLED_BACK are final: fork a new branch.

The diagram in docs/planner.md is `diagram()`; ``python -m scripts.regenerate_gate_diagram`` writes
it. This file does not know why an event comes.
"""

from enum import StrEnum

from harness.errors import IllegalMoveError

__all__ = ["MOVES", "UNRESOLVED", "Event", "State", "diagram", "move"]


class State(StrEnum):
    """Where a branch stands."""

    OPEN = "open"
    """Still growing, or not yet verified."""
    VERIFIED = "verified"
    """Its verifier accepted it at the versions in its read set."""
    HELD = "held"
    """Something it, or a sibling, read has moved: it waits to be verified again."""
    COMMITTED = "committed"
    """Its writes are in the world."""
    REFUSED = "refused"
    """It will never be committed; the refusal says why."""
    ROLLED_BACK = "rolled_back"
    """Given up, or committed and undone as far as its report says."""


class Event(StrEnum):
    """What can happen to a branch."""

    EXTEND = "extend"
    """It was filed without a verdict: new steps, which nobody has verified."""
    ACCEPT = "accept"
    """Its verifier accepted it."""
    REJECT = "reject"
    """Its verifier did not."""
    FIND_STALE = "find_stale"
    """The gate found a stale read of a resource that the branch does not write."""
    COMMIT = "commit"
    """The gate found every version current, and wrote."""
    REFUSE = "refuse"
    """The gate refused it for good."""
    ROLL_BACK = "roll_back"
    """The planner gave it up."""


UNRESOLVED = (State.OPEN, State.VERIFIED, State.HELD)
"""States of a sibling whose reads still count."""

MOVES: dict[tuple[State, Event], State] = {
    (State.OPEN, Event.EXTEND): State.OPEN,
    (State.OPEN, Event.ACCEPT): State.VERIFIED,
    (State.OPEN, Event.REJECT): State.REFUSED,
    (State.OPEN, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.VERIFIED, Event.EXTEND): State.OPEN,
    (State.VERIFIED, Event.ACCEPT): State.VERIFIED,
    (State.VERIFIED, Event.REJECT): State.REFUSED,
    (State.VERIFIED, Event.FIND_STALE): State.HELD,
    (State.VERIFIED, Event.COMMIT): State.COMMITTED,
    (State.VERIFIED, Event.REFUSE): State.REFUSED,
    (State.VERIFIED, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.HELD, Event.EXTEND): State.OPEN,
    (State.HELD, Event.ACCEPT): State.VERIFIED,
    (State.HELD, Event.REJECT): State.REFUSED,
    (State.HELD, Event.REFUSE): State.REFUSED,
    (State.HELD, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.COMMITTED, Event.ROLL_BACK): State.ROLLED_BACK,
}


def move(state: State, event: Event, branch_id: str) -> State:
    """Return the state after `event`; raise IllegalMoveError when the table has no such move."""
    if (state, event) not in MOVES:
        possible = ", ".join(str(e) for s, e in MOVES if s is state) or "nothing: it is final"
        message = f"branch {branch_id!r} is {state}: it cannot {event}; possible: {possible}"
        raise IllegalMoveError(message)
    return MOVES[state, event]


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    arrows = [f"    {state} --> {after}: {event}" for (state, event), after in MOVES.items()]
    ends = [f"    {s} --> [*]" for s in State if not any(state is s for state, _ in MOVES)]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.OPEN}", *arrows, *ends]) + "\n"
