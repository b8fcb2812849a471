"""Guards: whether a build's movement is rounding, and its scores evidence at all.

Each guard takes arrays and returns a finding; `refuse_if_failed` reports all failed ones together.
Not known here: a fault that is the same in every composition, load and precision, since nothing
moves.
"""

from calibrate.guards.distinct_arms import Arm, distinct_arms
from calibrate.guards.finding import GuardName
from calibrate.guards.finite import finite
from calibrate.guards.live_head import HeadEvidence, live_head
from calibrate.guards.neighbours import NeighbourFinding, neighbours
from calibrate.guards.refusal import refuse_if_failed
from calibrate.guards.rounding import (
    RoundingEvidence,
    ShrinkEstimate,
    rounding,
    shrink_estimate,
)

__all__ = [
    "Arm",
    "GuardName",
    "HeadEvidence",
    "NeighbourFinding",
    "RoundingEvidence",
    "ShrinkEstimate",
    "distinct_arms",
    "finite",
    "live_head",
    "neighbours",
    "refuse_if_failed",
    "rounding",
    "shrink_estimate",
]
