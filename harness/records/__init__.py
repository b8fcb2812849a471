"""The records: frozen values, checked once, that every other part exchanges.

They import nothing of ours but errors and the codec, since ids are digests.
"""

from harness.records.batching import (
    Batching,
    Companions,
    FixedWidth,
    Lane,
    Lanes,
    Order,
    Padded,
    PaddingSide,
    Solo,
)
from harness.records.build import Build
from harness.records.commit import CommitRecord, ReplayRecord, ScoreUnit
from harness.records.decision import Branch, Decision, Item
from harness.records.invocation import Invocation, PrecisionMode, PrecisionName, ReductionOrder
from harness.records.membership import BatchMembership, MembershipSource, Slot, Step
from harness.records.tolerance import (
    AxisFinding,
    AxisSearch,
    AxisStatus,
    Bound,
    CoveredBatches,
    Equivalence,
    GuardFinding,
    OwnError,
    Strata,
    Stratum,
    StratumAxis,
    Switch,
    Tolerance,
    ToleranceFile,
)
from harness.records.verdict import (
    DecisionImpact,
    DifferingParameter,
    Policy,
    Verdict,
    VerdictKind,
)
from harness.records.verifier import VerifierSpec

__all__ = [
    "AxisFinding",
    "AxisSearch",
    "AxisStatus",
    "BatchMembership",
    "Batching",
    "Bound",
    "Branch",
    "Build",
    "CommitRecord",
    "Companions",
    "CoveredBatches",
    "Decision",
    "DecisionImpact",
    "DifferingParameter",
    "Equivalence",
    "FixedWidth",
    "GuardFinding",
    "Invocation",
    "Item",
    "Lane",
    "Lanes",
    "MembershipSource",
    "Order",
    "OwnError",
    "Padded",
    "PaddingSide",
    "Policy",
    "PrecisionMode",
    "PrecisionName",
    "ReductionOrder",
    "ReplayRecord",
    "ScoreUnit",
    "Slot",
    "Solo",
    "Step",
    "Strata",
    "Stratum",
    "StratumAxis",
    "Switch",
    "Tolerance",
    "ToleranceFile",
    "Verdict",
    "VerdictKind",
    "VerifierSpec",
]
