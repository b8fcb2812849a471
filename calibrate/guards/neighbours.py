"""Whether a neighbour's content moves scores at a fixed shape.

A coupling is marked, not refused: whether it is a bug is for `rounding` to say.
"""

from collections.abc import Sequence

from calibrate.guards.finding import GuardName
from calibrate.sensitivity import Indices, Pair, axis_finding
from harness.records import AxisFinding, AxisStatus, GuardFinding
from harness.records.document import Record

__all__ = ["NeighbourFinding", "neighbours"]


class NeighbourFinding(Record, frozen=True, kw_only=True):
    """Whether a neighbour's content moves scores at a fixed shape."""

    guard: GuardFinding
    """Passed, coupled or not: a coupled build is marked."""
    axis: AxisFinding
    """The comparison behind it."""

    @property
    def coupled(self) -> bool:
        """Whether a bit moved."""
        return self.axis.status is AxisStatus.MOVED


def neighbours(
    pairs: Sequence[Pair], decision_of_row: Indices, settings: Sequence[str], confidence: float
) -> NeighbourFinding:
    """Return whether scores moved when only the neighbours' content changed, at a fixed shape.

    The arguments are those of `axis_finding`. No pairs: passed and not exercised, so that
    membership equivalence stays exact.
    """
    axis = axis_finding("neighbour_content", pairs, decision_of_row, settings, confidence)
    finding = GuardFinding(guard=GuardName.NEIGHBOURS, passed=True, evidence=_coupling(axis))
    return NeighbourFinding(guard=finding, axis=axis)


def _coupling(axis: AxisFinding) -> str:
    if axis.status is AxisStatus.NOT_EXERCISED:
        return "not exercised: no pair differs in its neighbours' content only"
    if axis.status is AxisStatus.INVARIANT:
        return (
            f"no bit moved in {axis.num_scores} scores of {axis.num_decisions} decisions when "
            f"only the neighbours' content changed"
        )
    return (
        f"companion-coupled: {axis.num_scores_moved} of {axis.num_scores} scores, "
        f"{axis.num_decisions_moved} of {axis.num_decisions} decisions, moved by at most "
        f"{axis.max_movement:.3g} when only the neighbours' content changed"
    )
