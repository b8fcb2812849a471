"""Decides what a replay says about a commit: the seven verdicts, and the published raising form.

Rules kept here, in this order:

1. a commit that is not usable, or a replay of another commit, is an error, never a verdict;
2. a commit that never crossed the boundary is plan noise;
3. parameters are compared before any replayed score is looked at: a difference is a
   reconstruction, whatever the scores;
4. without a tolerance for this build, condition and batch nothing is judged;
5. another branch set or a non-finite score is a divergence, with no distance needed;
6. then the worst movement of the whole vector decides, as ``delta <= bound``: NaN never passes.

It knows no files, clock or disk: `now` is passed in.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from harness.errors import (
    InvalidRecordError,
    ReconstructionMismatchError,
    ReplayDivergenceError,
)
from harness.judge.movement import Movement, incomparable, movement
from harness.judge.parameters import differing_parameters, not_the_same
from harness.judge.plain_record import differing_plain, plain_record
from harness.judge.ranking import decision_impact
from harness.judge.tolerances import NoTolerance, Tolerances, UsableTolerance, check_tolerance
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.scores import check_finite
from harness.records.verdict import DifferingParameter, Policy, Verdict, VerdictKind

__all__ = ["classify_replay", "judge"]

PlainMapping = Mapping[str, Any]


def judge(
    commit: CommitRecord,
    replay: ReplayRecord,
    tolerances: Tolerances,
    *,
    policy: Policy = Policy.DEFAULT,
    now: str | None = None,
) -> Verdict:
    """Return the verdict on one replay.

    `now` is the time, ISO 8601, UTC; without it a tolerance that can expire is not used. Raises
    InvalidRecordError for an unusable commit and for a replay of another commit or decision.
    """
    _check_usable(commit, replay)
    if not commit.committed:
        reason = "the commit never crossed the boundary: kept for calibration"
        return _verdict(commit, replay, VerdictKind.PLAN_NOISE, reason)
    found = tolerances.lookup(commit, now)
    equivalence = found.equivalence_for(replay.invocation.batch_membership)
    differing = differing_parameters(commit.invocation, replay.invocation, equivalence)
    if differing:
        reason = not_the_same(differing)
        return _verdict(commit, replay, VerdictKind.RECONSTRUCTION, reason, differing=differing)
    if isinstance(found, NoTolerance):
        return _verdict(commit, replay, VerdictKind.UNJUDGED, found.reason)
    return _judge_scores(commit, replay, found, policy)


def classify_replay(
    commit_record: CommitRecord | PlainMapping,
    replay_record: ReplayRecord | PlainMapping,
    calibrated_tolerance: float,
) -> Literal["replay_consistent"]:
    """Return ``"replay_consistent"`` when the replay is the same computation within tolerance.

    Takes two plain mappings (see `harness.judge.plain_record`) or a commit and a replay record, and
    a tolerance in the scores' unit; a movement equal to the tolerance passes. Raises
    InvalidToleranceError, InvalidRecordError, ReconstructionMismatchError when a parameter
    differs, ReplayDivergenceError when the branch sets differ or a score moved too far.
    """
    tolerance = check_tolerance(calibrated_tolerance)
    if isinstance(commit_record, CommitRecord) and isinstance(replay_record, ReplayRecord):
        _check_usable(commit_record, replay_record)
        _check_committed(commit_record)
        _refuse_other(differing_parameters(commit_record.invocation, replay_record.invocation))
        scores = commit_record.scores, replay_record.numeric_scores()
    else:
        commit = plain_record(commit_record, "commit record")
        replay = plain_record(replay_record, "replay record")
        committed_scores = commit.finite_scores()
        _refuse_other(differing_plain(commit, replay))
        scores = committed_scores, replay.numeric_scores()
    _refuse_divergence(*scores, tolerance)
    return "replay_consistent"


def _check_usable(commit: CommitRecord, replay: ReplayRecord) -> None:
    """Scores are checked again here: a mapping inside a frozen record can still be changed."""
    for field in ("commit_id", "decision_id"):
        committed, replayed = getattr(commit, field), getattr(replay, field)
        if committed != replayed:
            raise InvalidRecordError(
                f"the replay is of {field} {replayed!r} and the commit is {committed!r}; pair each "
                "replay with the commit it names"
            )
    check_finite(commit.scores)


def _check_committed(commit: CommitRecord) -> None:
    if not commit.committed:
        raise InvalidRecordError(
            f"commit {commit.commit_id!r} never crossed the boundary, so it cannot be at fault; "
            "`judge` takes it as plan noise"
        )


def _judge_scores(
    commit: CommitRecord, replay: ReplayRecord, found: UsableTolerance, policy: Policy
) -> Verdict:
    scores = replay.numeric_scores()
    used = {
        "tolerance_id": found.tolerance_id,
        "floor": found.tolerance.floor.value,
        "envelope": found.envelope,
    }
    broken = incomparable(commit.scores, scores)
    if broken is not None:
        used["worst_branch"] = broken.branch_id
        return _verdict(commit, replay, VerdictKind.DIVERGENCE, broken.reason, fault=True, **used)
    moved = movement(commit.scores, scores)
    kind = _kind(moved, found)
    return _verdict(
        commit,
        replay,
        kind,
        _reason(kind, moved, found),
        fault=_is_fault(kind, policy),
        delta=moved.delta if math.isfinite(moved.delta) else None,
        worst_branch=moved.worst_branch if moved.delta else None,
        impact=decision_impact(commit.scores, scores, found.envelope),
        **used,
    )


def _kind(moved: Movement, found: UsableTolerance) -> VerdictKind:
    if moved.bitwise_equal:
        return VerdictKind.EXACT
    if moved.delta <= found.tolerance.floor.value:
        return VerdictKind.CONSISTENT
    if moved.delta <= found.envelope:
        return VerdictKind.DRIFT
    return VerdictKind.DIVERGENCE


def _is_fault(kind: VerdictKind, policy: Policy) -> bool:
    drift_counts = policy is Policy.STRICT and kind is VerdictKind.DRIFT
    return kind is VerdictKind.DIVERGENCE or drift_counts


def _reason(kind: VerdictKind, moved: Movement, found: UsableTolerance) -> str:
    floor, envelope = found.tolerance.floor.value, f"{found.envelope!r}{_of_stratum(found)}"
    far = f"branch {moved.worst_branch!r} moved by {moved.delta!r}"
    return {
        VerdictKind.EXACT: "every score has the same bits",
        VerdictKind.CONSISTENT: f"{far}, within the floor of {floor!r}",
        VerdictKind.DRIFT: f"{far}, beyond the floor of {floor!r}, within the envelope of "
        f"{envelope}",
        VerdictKind.DIVERGENCE: f"{far}, beyond the envelope of {envelope}",
    }[kind]


def _of_stratum(found: UsableTolerance) -> str:
    if found.stratum is None:
        return ""
    axis = next(one.axis for one in found.tolerance.strata if found.stratum in one.strata)
    return f" for a {axis} of {found.stratum.lower} to {found.stratum.upper}"


def _verdict(
    commit: CommitRecord, replay: ReplayRecord, kind: VerdictKind, reason: str, **facts: Any
) -> Verdict:
    return Verdict(
        commit_id=commit.commit_id,
        decision_id=commit.decision_id,
        replica=replay.replica,
        kind=kind,
        reason=reason,
        **{"fault": False, **facts},
    )


def _refuse_other(differing: tuple[DifferingParameter, ...]) -> None:
    if differing:
        raise ReconstructionMismatchError(not_the_same(differing))


def _refuse_divergence(
    commit: Mapping[str, float], replay: Mapping[str, float], tolerance: float
) -> None:
    broken = incomparable(commit, replay)
    if broken is not None:
        raise ReplayDivergenceError(f"{broken.reason} (tolerance {tolerance!r})")
    moved = movement(commit, replay)
    if not moved.delta <= tolerance:
        raise ReplayDivergenceError(
            f"branch {moved.worst_branch!r} moved by {moved.delta!r}, beyond the tolerance of "
            f"{tolerance!r}"
        )
