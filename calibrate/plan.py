"""Plans the processes of a run: which condition each runs, and which compositions.

Pure. An arm gets two processes, since one scores again, from a fresh start, what the other has
scored; one for the precision with which the guards compare it; and a small one in float64,
which scores rows alone, for the build's own rounding error. A fourth kind is planned when all these
are stored: an appeal, which runs in float64 those batches that hold the decisions named.
"""

from collections.abc import Sequence
from enum import StrEnum

from calibrate.compositions import REPEATS, Composition, plan_compositions
from calibrate.config import CalibrationConfig
from calibrate.flight_compositions import flight_traits
from harness.conditions.batching import RowShape
from harness.conditions.condition import Condition
from harness.records.document import Record
from harness.records.engine import Transformers
from harness.records.invocation import PrecisionName

__all__ = ["ProcessPlan", "Purpose", "plan_appeal", "plan_processes", "process_compositions"]


class Purpose(StrEnum):
    """What a process is for."""

    MEASURE = "measure"
    """One of the two shares of what is calibrated."""
    REFERENCE = "reference"
    """The precision that the guards compare with, a finer one where there is one, over the same
    compositions."""
    CONTROL = "control"
    """A batch-invariant arm's negative control: the vendor's order, over the same compositions."""
    EXACT = "exact"
    """float64, rows alone."""
    APPEAL = "appeal"
    """float64, the batches of some decisions, over the same compositions."""


class ProcessPlan(Record, frozen=True, kw_only=True):
    """One fresh process: a condition, and which of an arm's compositions it runs."""

    process_id: str
    """Unique in the run: arm, purpose, number."""
    arm: int
    """Index of the arm it serves."""
    condition: Condition
    """What it runs under."""
    purpose: Purpose
    """What it is for."""
    num_decisions: int
    """How many decisions its compositions hold, from the first."""
    share: int = 0
    """To measure: which of an arm's two shares it runs, 0 or 1."""
    decision_ids: tuple[str, ...] = ()
    """For an appeal: the decisions that are heard."""

    @property
    def is_optional(self) -> bool:
        """Whether a run goes on without it where its precision does not run the model."""
        return self.purpose in {Purpose.EXACT, Purpose.APPEAL}


def plan_processes(config: CalibrationConfig, num_decisions: int) -> tuple[ProcessPlan, ...]:
    """Return the processes of a run: three an arm, and a float64 one unless it has one already."""
    guards = min(config.guard_decisions, num_decisions)
    exact = min(config.exact_decisions, guards)
    plans = []
    for at, arm in enumerate(config.arms):
        for share in (0, 1):
            name = f"arm-{at}/{Purpose.MEASURE}-{share}"
            plans.append(
                ProcessPlan(
                    process_id=name,
                    arm=at,
                    condition=arm.condition,
                    purpose=Purpose.MEASURE,
                    num_decisions=num_decisions,
                    share=share,
                )
            )
        reference = arm.reference_on(config.verifier.engine)
        plans.append(_process(at, Purpose.REFERENCE, reference, guards))
        if arm.reduction_order.name == "batch_invariant":
            plans.append(_process(at, Purpose.CONTROL, arm.control, guards))
        runs_float64 = isinstance(config.verifier.engine, Transformers)
        if exact and runs_float64 and reference.precision is not PrecisionName.FLOAT64:
            plans.append(_process(at, Purpose.EXACT, arm.exact, exact))
    return tuple(plans)


def plan_appeal(
    config: CalibrationConfig, arm: int, num_decisions: int, decision_ids: Sequence[str]
) -> ProcessPlan:
    """Return the process that hears `decision_ids`, of the guards' decisions, in float64."""
    return ProcessPlan(
        process_id=f"arm-{arm}/{Purpose.APPEAL}",
        arm=arm,
        condition=config.arms[arm].exact,
        purpose=Purpose.APPEAL,
        num_decisions=min(config.guard_decisions, num_decisions),
        decision_ids=tuple(decision_ids),
    )


def process_compositions(
    config: CalibrationConfig, process: ProcessPlan, rows: Sequence[RowShape]
) -> tuple[Composition, ...]:
    """Return what `process` is to run over its `rows`, in order."""
    every = plan_compositions(
        rows, config.arms[process.arm], config.sweep, config.seed, flight_traits(config.verifier)
    )
    once = tuple(c for c in every if not c.name.startswith(REPEATS))
    if process.purpose in {Purpose.REFERENCE, Purpose.CONTROL}:
        return once
    if process.purpose is Purpose.EXACT:
        return (_alone(once),)
    if process.purpose is Purpose.APPEAL:
        mine = {at for at, row in enumerate(rows) if row.decision_id in process.decision_ids}
        return tuple(_holding(mine, composition) for composition in once)
    first = _first_share(every)
    return tuple(c for c in every if (c.name in first) == (process.share == 0))


def _process(arm: int, purpose: Purpose, condition: Condition, num_decisions: int) -> ProcessPlan:
    return ProcessPlan(
        process_id=f"arm-{arm}/{purpose}",
        arm=arm,
        condition=condition,
        purpose=purpose,
        num_decisions=num_decisions,
    )


def _alone(compositions: Sequence[Composition]) -> Composition:
    """Return the composition of single rows; it has another name only where it is the first."""
    return next((c for c in compositions if c.name == "solo"), compositions[0])


def _holding(rows: set[int], composition: Composition) -> Composition:
    """Return the batches of `composition` that hold one of `rows`, with all their companions."""
    batches = tuple(batch for batch in composition.batches if not rows.isdisjoint(batch.rows))
    return Composition(name=composition.name, batches=batches)


def _first_share(compositions: Sequence[Composition]) -> frozenset[str]:
    """Return the names of the first process's compositions: about half of the work.

    It holds the repeated composition and its repeat in the same process (``again-``); the repeat in
    a fresh process (``fresh-``) is in the other half.
    """
    again = next(c.name for c in compositions if c.name.startswith("again-"))
    pinned = {again, again.removeprefix("again-")}
    half = sum(c.cost for c in compositions) / 2
    chosen, cost = set(pinned), sum(c.cost for c in compositions if c.name in pinned)
    for composition in sorted(compositions, key=lambda c: (-c.cost, c.name)):
        fits = cost + composition.cost <= half
        if fits and composition.name not in pinned and not composition.name.startswith(REPEATS):
            chosen.add(composition.name)
            cost += composition.cost
    return frozenset(chosen)
