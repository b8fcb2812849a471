"""Decides how far a trajectory can be audited: its class, and the boundary where replay must stop.

The boundary is the first unverifiable side effect. It is not the first divergence and not the
first error: a failed call whose token holds is as good as any, and a call that went well without
a token is not. Beyond the boundary the recorded states can be shown, and nothing can be re-issued:
state-replayable is not effect-replayable.

It reads the store once, at one moment, and no clock: `now` is passed in. What it finds is true at
that moment; a replay verifies every step again before it is re-issued.
"""

from enum import StrEnum

from harness.planner.effects.instant import instant
from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.store import EffectStore
from harness.planner.effects.trajectories.trajectory import Trajectory
from harness.planner.effects.verification import StepReason, verify_step
from harness.records.document import Record

__all__ = ["Auditability", "AuditabilityClass", "StepFinding", "classify_trajectory"]


class AuditabilityClass(StrEnum):
    """How a trajectory can be replayed."""

    EFFECT_FREE = "effect_free"
    """No step is a side effect and every response was recorded: any point may be varied."""
    EFFECT_REPLAYABLE = "effect_replayable"
    """Every side effect is verifiable and every read was recorded: any point may be varied."""
    PREFIX_REPLAYABLE = "prefix_replayable"
    """A counterfactual may begin before the boundary, or before what was not recorded."""
    STATE_REPLAYABLE = "state_replayable"
    """The first step is the boundary: recorded states can be shown, nothing can be re-issued."""
    NOT_REPLAYABLE = "not_replayable"
    """The first step is the boundary, and some responses were not even recorded."""


class StepFinding(Record, frozen=True, kw_only=True):
    """What was found about one step."""

    index: int
    """Position in the trajectory, from 0."""
    step_id: str
    """Name of the step."""
    tool: str
    """Name of the tool that was called."""
    reason: StepReason
    """What verification found."""


class Auditability(Record, frozen=True, kw_only=True):
    """The class of a trajectory, with its evidence."""

    source: str
    """The trajectory's."""
    auditability: AuditabilityClass
    """How it can be replayed."""
    boundary_index: int | None
    """Position of the first unverifiable side effect; None where every one is verifiable."""
    gap_index: int | None
    """Position of the first step whose response was not recorded; None where all were."""
    judged_at: str
    """The instant at which tokens were verified, ISO 8601."""
    findings: tuple[StepFinding, ...]
    """What was found about each step, in order, `[steps]`."""

    def admits_divergence_at(self, index: int) -> bool:
        """Whether a counterfactual may diverge at step `index`.

        It may strictly before the boundary, once every earlier response can be had again.
        """
        before_boundary = self.boundary_index is None or index < self.boundary_index
        return before_boundary and (self.gap_index is None or index <= self.gap_index)


def classify_trajectory(trajectory: Trajectory, store: EffectStore, *, now: str) -> Auditability:
    """Return the class of a trajectory, given what `store` holds at `now` (ISO 8601).

    Raises InvalidRecordError when `now` is no instant with an offset.
    """
    steps, moment = trajectory.steps, instant(now, "now")
    held = store.effects(step.token for step in steps if step.token is not None)
    reasons = [verify_step(step, held.get(step.token or ""), moment) for step in steps]
    boundary = next((at for at, reason in enumerate(reasons) if reason.is_boundary), None)
    gap = next((at for at, step in enumerate(steps) if not step.is_recorded), None)
    return Auditability(
        source=trajectory.source,
        auditability=_class(steps, boundary, gap),
        boundary_index=boundary,
        gap_index=gap,
        judged_at=now,
        findings=tuple(
            StepFinding(index=at, step_id=step.step_id, tool=step.tool, reason=reason)
            for at, (step, reason) in enumerate(zip(steps, reasons, strict=True))
        ),
    )


def _class(
    steps: tuple[SideEffectStep, ...], boundary: int | None, gap: int | None
) -> AuditabilityClass:
    if boundary == 0:
        unrecorded = gap is not None
        return (
            AuditabilityClass.NOT_REPLAYABLE if unrecorded else AuditabilityClass.STATE_REPLAYABLE
        )
    if boundary is not None or gap is not None:
        return AuditabilityClass.PREFIX_REPLAYABLE
    if any(step.is_side_effect for step in steps):
        return AuditabilityClass.EFFECT_REPLAYABLE
    return AuditabilityClass.EFFECT_FREE
