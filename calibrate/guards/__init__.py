"""Guards: whether a build's movement is rounding, and its scores evidence at all.

Each guard takes arrays and returns a finding; `refuse_if_failed` reports all failed ones together.
Not known here: a fault that is the same in every composition, load and precision, since nothing
moves.
"""

from calibrate.guards.canary import CanaryEvidence, DetectionLimit, canary, detection_limit
from calibrate.guards.distinct_arms import Arm, distinct_arms
from calibrate.guards.finding import GuardName
from calibrate.guards.finite import finite
from calibrate.guards.invariance import InvarianceEvidence, invariance
from calibrate.guards.live_head import HeadEvidence, live_head
from calibrate.guards.movements import RoundingEvidence
from calibrate.guards.neighbours import NeighbourFinding, neighbours
from calibrate.guards.own_error import (
    OwnErrorEvidence,
    own_error,
    own_error_of,
    own_error_unmeasured,
)
from calibrate.guards.refusal import refuse_if_failed
from calibrate.guards.rounding import Appeal, allowed_movements, decisions_beyond, rounding
from calibrate.guards.shrink import Reading, ShrinkEstimate, shrink_estimate

__all__ = [
    "Appeal",
    "Arm",
    "CanaryEvidence",
    "DetectionLimit",
    "GuardName",
    "HeadEvidence",
    "InvarianceEvidence",
    "NeighbourFinding",
    "OwnErrorEvidence",
    "Reading",
    "RoundingEvidence",
    "ShrinkEstimate",
    "allowed_movements",
    "canary",
    "decisions_beyond",
    "detection_limit",
    "distinct_arms",
    "finite",
    "invariance",
    "live_head",
    "neighbours",
    "own_error",
    "own_error_of",
    "own_error_unmeasured",
    "refuse_if_failed",
    "rounding",
    "shrink_estimate",
]
