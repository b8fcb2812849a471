"""Whether two arms that claim different precisions ran different computations."""

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding
from calibrate.sensitivity import Scores, moved_bits
from harness.records import GuardFinding, PrecisionMode
from harness.records.document import Record
from harness.records.switches import differing_switches

__all__ = ["Arm", "distinct_arms"]


class Arm(Record, frozen=True, kw_only=True, eq=False):
    """Scores with the precision that they claim."""

    name: str
    """Name for the evidence."""
    precision: PrecisionMode
    """As requested and resolved."""
    scores: Scores
    """`[rows]` or `[compositions, rows]`."""


def distinct_arms(left: Arm, right: Arm) -> GuardFinding:
    """Return whether two arms that claim different precisions ran different computations."""
    if left.scores.size == 0 or left.scores.shape != right.scores.shape:
        shapes = f"{left.scores.shape} and {right.scores.shape}"
        return finding(GuardName.DISTINCT_ARMS, [f"{NOTHING_COMPARED}: shapes {shapes}"], "")
    num_moved = int(moved_bits(left.scores, right.scores).sum())
    differing = differing_switches(left.precision.resolved, right.precision.resolved)
    problems = []
    if left.scores is right.scores or np.shares_memory(left.scores, right.scores):
        problems.append(f"{left.name!r} and {right.name!r} are the same array")
    if left.precision.name is right.precision.name:
        problems.append(f"{left.name!r} and {right.name!r} both claim {left.precision.name}")
    if not num_moved:
        problems.append(
            f"{left.name!r} ({left.precision.name}) and {right.name!r} ({right.precision.name}) "
            f"gave the same bits in all {left.scores.size} scores: both are the same path"
        )
    if not differing:
        problems.append(
            f"{left.name!r} and {right.name!r} resolved to the same dtypes and switches"
        )
    summary = (
        f"{left.precision.name} against {right.precision.name}: {num_moved} of "
        f"{left.scores.size} scores differ; resolved values that differ: {', '.join(differing)}"
    )
    return finding(GuardName.DISTINCT_ARMS, problems, summary)
