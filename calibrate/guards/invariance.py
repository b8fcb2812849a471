"""Whether a batch-invariant order is one: nothing moves in it, and the vendor's order does move.

Not known here: whether compositions that were not scored would move either.
"""

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of, some_of
from calibrate.sensitivity import Scores
from harness.records import GuardFinding
from harness.records.document import Record

__all__ = ["InvarianceEvidence", "invariance"]


class InvarianceEvidence(Record, frozen=True, kw_only=True, eq=False):
    """Movements in a batch-invariant order and, in the same run, in the vendor's."""

    implementation: str
    """What ran: ``fixed_order``, ``vllm X.Y``; empty where none is read back."""
    movements: Scores
    """`[decisions]`: in the batch-invariant order."""
    control_movements: Scores
    """`[decisions]`: in the vendor's order, the first of the same decisions."""
    names: tuple[str, ...] = ()
    """Decision ids; empty to number them."""


def invariance(evidence: InvarianceEvidence) -> GuardFinding:
    """Return whether the batch-invariant order moved nothing, beside its negative control.

    A control that does not move either shows nothing, and the evidence says so; it is no failure,
    since a build may be invariant by itself.
    """
    own, control = evidence.movements, evidence.control_movements
    if not own.size or not control.size:
        return finding(GuardName.INVARIANCE, [NOTHING_COMPARED], "")
    problems = [problem for problem in (_not_run(evidence), _moved(evidence)) if problem]
    summary = (
        f"vendor moved {_counted(control)}, batch_invariant ({evidence.implementation or 'none'}) "
        f"{_counted(own)}"
    )
    shown = "" if control.any() else "; not shown: vendor did not move either"
    return finding(GuardName.INVARIANCE, problems, summary + shown)


def _not_run(evidence: InvarianceEvidence) -> str | None:
    if evidence.implementation:
        return None
    return "no batch-invariant implementation is read back: the vendor's order ran in its place"


def _moved(evidence: InvarianceEvidence) -> str | None:
    moved = np.flatnonzero(evidence.movements != 0)  # a NaN counts as moved
    if not moved.size:
        return None
    worst_first = moved[np.argsort(-evidence.movements[moved], kind="stable")]
    named = some_of(
        f"decision {name_of(at, evidence.names)} by {evidence.movements[at]:.3g}"
        for at in worst_first
    )
    return f"batch_invariant is not invariant: {named}"


def _counted(movements: Scores) -> str:
    moved = int(np.count_nonzero(movements))
    size = f" by at most {movements.max():.3g}" if moved else ""
    return f"{moved} of {movements.size} decisions{size}"
