"""Decides whether branches may be promoted.

Rules kept here:

* a dead branch is never promoted, nor an entry that depends on one;
* what depends on a branch in flight is not promoted before that branch, but with it;
* the first promotion takes a name. A later one takes it over only with an entry that was built on
  the holder's or has the same content: else two siblings raced, and the second would silently
  replace what others may be reading.

It does not change anything.
"""

from harness.errors import BranchContaminationError, IllegalMoveError, VersionConflictError
from harness.planner.ledger.branches import BranchState
from harness.planner.ledger.keys import CacheKey
from harness.planner.ledger.lineage import Lineage, told

__all__ = ["publishes", "refuse_promotion"]


def refuse_promotion(lineage: Lineage, branch_ids: tuple[str, ...]) -> None:
    """Raise when these branches may not be promoted together."""
    for branch_id in branch_ids:
        if lineage.state_of(branch_id) is BranchState.DEAD:
            message = f"branch {branch_id!r} was rolled back and cannot be promoted"
            raise BranchContaminationError(f"{message}; open another branch")
    keys = [key for branch_id in branch_ids for key in lineage.entries.unpromoted(branch_id)]
    _refuse_contaminated(lineage, keys, branch_ids)
    _refuse_race(lineage, keys)


def publishes(lineage: Lineage, branch_id: str) -> bool:
    """Return whether promoting the branch, which is not dead, would change anything."""
    promoted = lineage.branches[branch_id] is BranchState.PROMOTED
    return not promoted or bool(lineage.entries.unpromoted(branch_id))


def _refuse_contaminated(
    lineage: Lineage, keys: list[CacheKey], branch_ids: tuple[str, ...]
) -> None:
    together = " and ".join(repr(branch_id) for branch_id in branch_ids)
    if path := lineage.path_to_dead(keys):
        advice = "write that entry again without it, or roll the branch back"
        message = f"{together} cannot be promoted: {told(path)}, which was rolled back"
        raise BranchContaminationError(f"{message}; {advice}")
    if path := lineage.graph.path(keys, lambda key: lineage.in_flight(key, branch_ids)):
        advice = f"resolve {path[-1].branch_id!r} first, or promote them together"
        message = f"{together} cannot be promoted: {told(path)}, which is in flight"
        raise IllegalMoveError(f"{message}; {advice}")


def _refuse_race(lineage: Lineage, keys: list[CacheKey]) -> None:
    claimed: dict[str, CacheKey] = {}
    for key in keys:
        holder = claimed.get(key.name) or lineage.entries.holder(key.name)
        claimed[key.name] = key
        if holder is None or _may_replace(lineage, key, holder):
            continue
        message = f"{key} was not built on {holder}, which was promoted under that name first"
        advice = "write it again, computed from what is there now, or roll the branch back"
        raise VersionConflictError(f"{message}; {advice}")


def _may_replace(lineage: Lineage, key: CacheKey, holder: CacheKey) -> bool:
    return (
        key.branch_id == holder.branch_id
        or lineage.entries.same_content(key, holder)
        or holder in lineage.graph.closure((key,))
    )
