"""Decides whether a branch may be replayed as a counterfactual, replays it, and says what held.

A counterfactual is the recorded run up to one step, another step in its place, and then only what
the recorded run can still answer for. Rules kept here:

* it is admissible when the divergence lies strictly before the boundary and every earlier response
  can be had again; at or after the boundary there is state replay only, and nothing is called;
* a later step is reused only if it stands free of the divergence, and is labelled so; whatever
  depends on it is invalidated, and so is what depends on that;
* the replay stops at the boundary, whether or not a step behind it stands free;
* the branch is answered by a `ReplayGateway` that is made here: no caller can pass in another one;
* a contaminated branch raises, on this run and on every later one under the same id: there is no
  record that reports it as a counterfactual.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec.structs import replace

from harness.errors import CallerError, InvalidRecordError
from harness.planner.effects.auditability import Auditability, classify_trajectory
from harness.planner.effects.gateway import Answer, AnswerSource, Gateway, ReplayGateway
from harness.planner.effects.independence import Taint
from harness.planner.effects.instant import Clock
from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.store import EffectStore
from harness.planner.effects.trajectories.trajectory import Trajectory
from harness.records.document import Record

__all__ = [
    "BranchReplay",
    "Divergence",
    "Program",
    "ReplayKind",
    "ReplayedStep",
    "StepUse",
    "run_counterfactual_branch",
]

Program = Callable[[Gateway], object]
"""The planner's code, run from its beginning: every tool call that it makes goes to the gateway."""


class ReplayKind(StrEnum):
    """What a replay is evidence of."""

    COUNTERFACTUAL = "counterfactual"
    """What the run would have been, as far as its steps are marked as held."""
    STATE_REPLAY = "state_replay"
    """What the run was: recorded states, nothing re-issued, nothing said about another course."""


class StepUse(StrEnum):
    """What a replay made of one step of the trajectory."""

    REISSUED = "reissued"
    """A side effect, answered from the store after its token was verified again."""
    READ = "read"
    """A read-only step, answered from the record."""
    POSED = "posed"
    """The step that diverges: its call and its response are the experiment's premise."""
    REUSED_INDEPENDENT = "reused_independent"
    """A later step that stands free of the divergence, answered as recorded."""
    NOT_CALLED = "not_called"
    """A later step that stands free of the divergence, and that the branch did not take."""
    INVALIDATED = "invalidated"
    """A later step that depends on the divergence: its recorded response does not hold here."""
    BEYOND_BOUNDARY = "beyond_boundary"
    """At or behind the boundary, or what was not recorded: the replay has stopped."""
    STATE_ONLY = "state_only"
    """Shown as it was recorded, in a state replay."""


class Divergence(Record, frozen=True, kw_only=True):
    """Where a branch leaves the recorded run, and what it does there."""

    branch_id: str
    """Name of the branch; a name that was contaminated once is never good again."""
    index: int
    """Position of the step that is replaced, from 0."""
    step: SideEffectStep
    """The call and the response in its place. With a token, the response must be in the store:
    another branch really made that call; without one it is a hypothesis, and no call at all."""


class ReplayedStep(Record, frozen=True, kw_only=True):
    """What became of one step."""

    index: int
    """Position in the trajectory."""
    step_id: str
    """Name of the step."""
    use: StepUse
    """What the replay made of it."""
    detail: str = ""
    """Why, in words; empty where the use says it all."""


class BranchReplay(Record, frozen=True, kw_only=True):
    """A replay that was not contaminated."""

    branch_id: str
    """Name of the branch."""
    kind: ReplayKind
    """What it is evidence of."""
    divergence_index: int
    """Where the branch leaves the recorded run."""
    auditability: Auditability
    """The trajectory's class and boundary when the replay began."""
    steps: tuple[ReplayedStep, ...]
    """What became of each step of the trajectory, `[steps]`."""

    def __post_init__(self) -> None:
        """A counterfactual diverges where that is admissible."""
        admitted = self.auditability.admits_divergence_at(self.divergence_index)
        if self.kind is ReplayKind.COUNTERFACTUAL and not admitted:
            raise InvalidRecordError(
                f"branch {self.branch_id!r}: a divergence at {self.divergence_index} is no "
                f"counterfactual, the boundary is {self.auditability.boundary_index}"
            )


def run_counterfactual_branch(
    trajectory: Trajectory,
    divergence: Divergence,
    *,
    store: EffectStore,
    clock: Clock,
    program: Program | None = None,
) -> BranchReplay:
    """Replay `trajectory` with another step at `divergence.index`.

    `program` is the planner's code; without it, every step that can be taken is. In a state replay
    it is not run. Raises CallerError for a divergence that is none, ReplayContaminationError when a
    call would have reached a live gateway, and whatever `program` raises.
    """
    _check_divergence(trajectory, divergence)
    audit = classify_trajectory(trajectory, store, now=clock())
    admitted = audit.admits_divergence_at(divergence.index)
    plan = _branch(trajectory, divergence, audit) if admitted else _states(trajectory)
    answers = [planned.answer for planned in plan if planned.answer is not None]
    gateway = ReplayGateway(divergence.branch_id, answers, store=store, clock=clock)
    gateway.refuse_contaminated()
    if admitted:
        _run(program or _taking_every(answers), gateway)
    answered = gateway.finish()
    return BranchReplay(
        branch_id=divergence.branch_id,
        kind=ReplayKind.COUNTERFACTUAL if admitted else ReplayKind.STATE_REPLAY,
        divergence_index=divergence.index,
        auditability=audit,
        steps=tuple(_became(planned, answered) for planned in plan),
    )


class _Planned(Record, frozen=True, kw_only=True):
    """What a branch may make of one step, before it runs."""

    step: ReplayedStep
    answer: Answer | None = None


def _check_divergence(trajectory: Trajectory, divergence: Divergence) -> None:
    """The divergence stands in the trajectory, has a response, and differs from what is there."""
    where, num_steps = f"divergence at {divergence.index}", len(trajectory.steps)
    if not 0 <= divergence.index < num_steps:
        raise CallerError(f"{where}: {trajectory.source} has {num_steps} steps, counted from 0")
    posed, recorded = divergence.step, trajectory.steps[divergence.index]
    if not posed.is_recorded:
        raise CallerError(f"{where}: the step in its place has no response; pose one")
    same_call = posed.request_digest == recorded.request_digest
    if same_call and posed.payload_digest == recorded.payload_digest:
        raise CallerError(f"{where}: the same call with the same response; change one of them")


def _states(trajectory: Trajectory) -> list[_Planned]:
    return [
        _Planned(step=_made(at, step, StepUse.STATE_ONLY))
        for at, step in enumerate(trajectory.steps)
    ]


def _branch(trajectory: Trajectory, divergence: Divergence, audit: Auditability) -> list[_Planned]:
    """Return what the branch may make of each step."""
    steps, at = trajectory.steps, divergence.index
    stop = _stop(steps, at, audit)
    beyond = range(stop, len(steps))
    return [
        *(_before(index, steps[index]) for index in range(at)),
        _posed(divergence),
        *_after(steps[:stop], divergence),
        *(_Planned(step=_made(i, steps[i], StepUse.BEYOND_BOUNDARY)) for i in beyond),
    ]


def _stop(steps: tuple[SideEffectStep, ...], diverged: int, audit: Auditability) -> int:
    """Return the first position behind the divergence that the replay cannot reach."""
    end = len(steps) if audit.boundary_index is None else audit.boundary_index
    return next((at for at in range(diverged + 1, end) if not steps[at].is_recorded), end)


def _before(index: int, step: SideEffectStep) -> _Planned:
    use = StepUse.REISSUED if step.is_side_effect else StepUse.READ
    return _Planned(step=_made(index, step, use), answer=_answer(index, step))


def _posed(divergence: Divergence) -> _Planned:
    index, step = divergence.index, divergence.step
    source = AnswerSource.RECORD if step.token is None else None
    answer = _answer(index, step, source=source)
    detail = "a hypothesis" if answer.source is AnswerSource.RECORD else "made by another branch"
    return _Planned(step=_made(index, step, StepUse.POSED, detail), answer=answer)


def _after(steps: tuple[SideEffectStep, ...], divergence: Divergence) -> Iterator[_Planned]:
    """Yield the steps behind the divergence, sorted into those that stand free and the others."""
    taint = Taint(steps[divergence.index], divergence.step)
    for index in range(divergence.index + 1, len(steps)):
        step = steps[index]
        dependence = taint.reaches(step)
        if dependence is None:
            declared = "were" if step.dependencies is not None else "were not"
            detail = f"by its payloads; dependencies {declared} declared"
            made = _made(index, step, StepUse.REUSED_INDEPENDENT, detail)
            yield _Planned(step=made, answer=_answer(index, step, may_be_skipped=True))
        else:
            taint.add(step)
            yield _Planned(step=_made(index, step, StepUse.INVALIDATED, f"by its {dependence}"))


def _made(index: int, step: SideEffectStep, use: StepUse, detail: str = "") -> ReplayedStep:
    return ReplayedStep(index=index, step_id=step.step_id, use=use, detail=detail)


def _answer(
    index: int,
    step: SideEffectStep,
    *,
    source: AnswerSource | None = None,
    may_be_skipped: bool = False,
) -> Answer:
    usual = AnswerSource.STORE if step.is_side_effect else AnswerSource.RECORD
    return Answer(index=index, step=step, source=source or usual, may_be_skipped=may_be_skipped)


def _taking_every(answers: list[Answer]) -> Program:
    """Return the program that makes every call that the branch may make."""

    def program(gateway: Gateway) -> None:
        for answer in answers:
            step = answer.step
            gateway.call(step.tool, step.arguments, step.token)

    return program


def _run(program: Program, gateway: ReplayGateway) -> None:
    """Run the branch; a contamination is raised whatever the program made of its error."""
    with gateway.running():
        try:
            program(gateway)
        except Exception:
            gateway.refuse_contaminated()
            raise


def _became(planned: _Planned, answered: frozenset[int]) -> ReplayedStep:
    if planned.step.use is StepUse.REUSED_INDEPENDENT and planned.step.index not in answered:
        return replace(planned.step, use=StepUse.NOT_CALLED)
    return planned.step
