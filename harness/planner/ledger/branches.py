"""The states of a branch, as a table.

Rules kept here: a dead branch stays dead; a promoted branch can still be rolled back; what is
repeated changes nothing.

It does not know what follows for entries and drafts; the ledger does.
"""

from enum import StrEnum

__all__ = ["BRANCH_TABLE", "BranchEvent", "BranchState"]


class BranchState(StrEnum):
    """Where a branch stands."""

    IN_FLIGHT = "in_flight"
    """It may still be rolled back or promoted; only its own drafts may build on it."""
    PROMOTED = "promoted"
    """Its newest entries are visible to all."""
    DEAD = "dead"
    """Rolled back: nothing accepted may depend on it."""


class BranchEvent(StrEnum):
    """How a branch resolves."""

    PROMOTE = "promote"
    """The planner keeps it."""
    ROLL_BACK = "roll_back"
    """The planner gives it up."""


BRANCH_TABLE: dict[tuple[BranchState, BranchEvent], BranchState] = {
    (BranchState.IN_FLIGHT, BranchEvent.PROMOTE): BranchState.PROMOTED,
    (BranchState.IN_FLIGHT, BranchEvent.ROLL_BACK): BranchState.DEAD,
    (BranchState.PROMOTED, BranchEvent.PROMOTE): BranchState.PROMOTED,
    (BranchState.PROMOTED, BranchEvent.ROLL_BACK): BranchState.DEAD,
    (BranchState.DEAD, BranchEvent.ROLL_BACK): BranchState.DEAD,
}
"""No move leads out of DEAD: promoting a dead branch is refused."""
