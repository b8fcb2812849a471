"""Guarantees for a planner that forks branches: commit gate, branch ledger, effect replay.

The names most used; `harness.planner.ledger` and `harness.planner.effects` have the rest of theirs.
Imports neither torch nor numpy nor SQLAlchemy. What keeps state stands in modules of its own, which
need ``pip install "scorepin[planner]"``: `harness.planner.commit_store`, `harness.planner.database`
and `harness.planner.resources.row`.
"""

from harness.errors import (
    BranchContaminationError,
    CommitRefusedError,
    IllegalMoveError,
    ReplayContaminationError,
    ReverificationNeededError,
    StaleVerificationError,
    VersionConflictError,
)
from harness.planner.branch import (
    Branch,
    BranchVerdict,
    ResourceVersion,
    Step,
    StepKind,
)
from harness.planner.effects import (
    AuditabilityClass,
    SideEffectStep,
    classify_trajectory,
    run_counterfactual_branch,
)
from harness.planner.gate import CommitGate, commit_branch, file_branch, recover
from harness.planner.gate_records import CommitOutcome, RollbackReport
from harness.planner.gate_table import Event, State
from harness.planner.ledger import BranchLedger
from harness.planner.observation import Pinned, pin
from harness.planner.resources import FileResource, HttpResource, Resource, S3Object, by_id
from harness.planner.rollback import rollback_branch
from harness.planner.ruling import Found, Refusal, RefusalReason, Ruling, StaleRead, rule

__all__ = [
    "AuditabilityClass",
    "Branch",
    "BranchContaminationError",
    "BranchLedger",
    "BranchVerdict",
    "CommitGate",
    "CommitOutcome",
    "CommitRefusedError",
    "Event",
    "FileResource",
    "Found",
    "HttpResource",
    "IllegalMoveError",
    "Pinned",
    "Refusal",
    "RefusalReason",
    "ReplayContaminationError",
    "Resource",
    "ResourceVersion",
    "ReverificationNeededError",
    "RollbackReport",
    "Ruling",
    "S3Object",
    "SideEffectStep",
    "StaleRead",
    "StaleVerificationError",
    "State",
    "Step",
    "StepKind",
    "VersionConflictError",
    "by_id",
    "classify_trajectory",
    "commit_branch",
    "file_branch",
    "pin",
    "recover",
    "rollback_branch",
    "rule",
    "run_counterfactual_branch",
]
