"""Effect replay: how far a recorded run can be audited, and where a counterfactual must stop.

Needs the standard library only; the store in a database stands in `sql_store`.
"""

from harness.planner.effects.auditability import (
    Auditability,
    AuditabilityClass,
    StepFinding,
    classify_trajectory,
)
from harness.planner.effects.counterfactual import (
    BranchReplay,
    Divergence,
    ReplayedStep,
    ReplayKind,
    StepUse,
    run_counterfactual_branch,
)
from harness.planner.effects.gateway import Gateway, LiveGateway, ReplayGateway
from harness.planner.effects.memory_store import MemoryEffectStore
from harness.planner.effects.step import SideEffectStep, StepEffect, recorded_step
from harness.planner.effects.store import EffectStore, StoredEffect
from harness.planner.effects.trajectories import Trajectory, TrajectoryFormat, read_trajectory
from harness.planner.effects.verification import StepReason

__all__ = [
    "Auditability",
    "AuditabilityClass",
    "BranchReplay",
    "Divergence",
    "EffectStore",
    "Gateway",
    "LiveGateway",
    "MemoryEffectStore",
    "ReplayGateway",
    "ReplayKind",
    "ReplayedStep",
    "SideEffectStep",
    "StepEffect",
    "StepFinding",
    "StepReason",
    "StepUse",
    "StoredEffect",
    "Trajectory",
    "TrajectoryFormat",
    "classify_trajectory",
    "read_trajectory",
    "recorded_step",
    "run_counterfactual_branch",
]
