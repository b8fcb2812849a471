"""Decides how far two score vectors are apart, or that they cannot be compared.

Rules kept here:

* the whole vector counts, not its best entry: the worst branch is the one that moved most, of
  equal ones the first by branch id;
* another branch set, or a replayed score that is no finite number, is never a small movement;
* bitwise equality is about bits: ``-0.0`` is not ``0.0``, though nothing moved.

Arithmetic is float64. It knows no tolerance.
"""

import math
from collections.abc import Mapping
from struct import pack

from harness.records.document import Record

__all__ = ["Incomparable", "Movement", "incomparable", "movement"]


class Movement(Record, frozen=True, kw_only=True):
    """How far the scores moved."""

    delta: float
    """Largest absolute movement; infinite when it is beyond the largest float."""
    worst_branch: str
    """The branch that moved by it."""
    bitwise_equal: bool
    """Whether every score has the same bits."""


class Incomparable(Record, frozen=True, kw_only=True):
    """Why no distance exists."""

    reason: str
    """In words, naming the branch."""
    branch_id: str
    """The first branch, by id, that has no counterpart or no finite score."""


def incomparable(commit: Mapping[str, float], replay: Mapping[str, float]) -> Incomparable | None:
    """Return why the replay's scores have no distance from the commit's, if they have none."""
    lost, added = sorted(commit.keys() - replay.keys()), sorted(replay.keys() - commit.keys())
    if lost or added:
        parts = [f"lacks {', '.join(map(repr, lost))}"] * bool(lost)
        parts += [f"adds {', '.join(map(repr, added))}"] * bool(added)
        return Incomparable(
            reason=f"the replay's branch set is another: it {' and '.join(parts)}",
            branch_id=min(lost + added),
        )
    for branch_id in sorted(replay):
        if not math.isfinite(replay[branch_id]):
            reason = f"the replayed score of branch {branch_id!r} is {replay[branch_id]}"
            return Incomparable(reason=reason, branch_id=branch_id)
    return None


def movement(commit: Mapping[str, float], replay: Mapping[str, float]) -> Movement:
    """Return how far the scores moved; both vectors are finite and hold the same branches."""
    deltas = {branch_id: abs(replay[branch_id] - commit[branch_id]) for branch_id in commit}
    worst = min(deltas, key=lambda branch_id: (-deltas[branch_id], branch_id))
    same = all(
        pack("<d", replay[branch_id]) == pack("<d", commit[branch_id]) for branch_id in commit
    )
    return Movement(delta=deltas[worst], worst_branch=worst, bitwise_equal=same)
