"""The planner's names: record a verifier call, judge its replay, rank stably.

Imports neither torch nor numpy; running and calibrating a verifier stand in their own modules.
"""

from harness.commit_log import CommitLog, read_commits, read_replays
from harness.errors import (
    CorruptFileError,
    EvidenceError,
    InputFileError,
    InvalidRecordError,
    InvalidToleranceError,
    ReconstructionMismatchError,
    ReplayDivergenceError,
    SchemaVersionError,
    ScorepinError,
    StoreError,
)
from harness.judge.alarm import AlarmReport, DriftAlarm, alarm_over, observe
from harness.judge.classify import classify_replay, judge
from harness.judge.ranking import decision_impact, is_fragile, margin, stable_ranking
from harness.judge.tolerances import Tolerances
from harness.records import (
    BatchMembership,
    Build,
    CommitRecord,
    DecisionImpact,
    DifferingParameter,
    Invocation,
    Item,
    MembershipSource,
    Policy,
    PrecisionMode,
    PrecisionName,
    ReductionOrder,
    ReplayRecord,
    ScoreUnit,
    Slot,
    Step,
    Verdict,
    VerdictKind,
)
from harness.records.commit import commit_id_of
from harness.tolerance_file import load_tolerances

__all__ = [
    "AlarmReport",
    "BatchMembership",
    "Build",
    "CommitLog",
    "CommitRecord",
    "CorruptFileError",
    "DecisionImpact",
    "DifferingParameter",
    "DriftAlarm",
    "EvidenceError",
    "InputFileError",
    "InvalidRecordError",
    "InvalidToleranceError",
    "Invocation",
    "Item",
    "MembershipSource",
    "Policy",
    "PrecisionMode",
    "PrecisionName",
    "ReconstructionMismatchError",
    "ReductionOrder",
    "ReplayDivergenceError",
    "ReplayRecord",
    "SchemaVersionError",
    "ScoreUnit",
    "ScorepinError",
    "Slot",
    "Step",
    "StoreError",
    "Tolerances",
    "Verdict",
    "VerdictKind",
    "alarm_over",
    "classify_replay",
    "commit_id_of",
    "decision_impact",
    "is_fragile",
    "judge",
    "load_tolerances",
    "margin",
    "observe",
    "read_commits",
    "read_replays",
    "stable_ranking",
]
