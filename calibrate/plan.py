"""Plans the processes of a run: which condition each runs, and which compositions.

Pure. An arm gets two processes, since one scores again, from a fresh start, what the other has
scored, and one more for the finer precision against which the guards judge it.
"""

from collections.abc import Sequence

from calibrate.compositions import REPEATS, Composition, plan_compositions
from calibrate.config import CalibrationConfig
from harness.conditions.batching import RowShape
from harness.conditions.condition import Condition
from harness.records.document import Record

__all__ = ["ProcessPlan", "plan_processes", "process_compositions"]


class ProcessPlan(Record, frozen=True, kw_only=True):
    """One fresh process: a condition, and which share of an arm's compositions it runs."""

    process_id: str
    """Unique in the run: arm, purpose, number."""
    arm: int
    """Index of the arm it serves."""
    condition: Condition
    """What it runs under."""
    is_reference: bool
    """Whether it is the guard's reference precision."""
    num_decisions: int
    """How many decisions it scores, from the first."""
    share: int
    """Which of an arm's two shares it runs: 0 or 1."""

    def chosen(self, compositions: Sequence[Composition]) -> tuple[Composition, ...]:
        """Return the compositions that this process runs, in order."""
        if self.is_reference:
            return tuple(c for c in compositions if not c.name.startswith(REPEATS))
        first = _first_share(compositions)
        return tuple(c for c in compositions if (c.name in first) == (self.share == 0))


def plan_processes(config: CalibrationConfig, num_decisions: int) -> tuple[ProcessPlan, ...]:
    """Return the processes of a run: two an arm, and one for its reference precision."""
    guards = min(config.guard_decisions, num_decisions)
    return tuple(
        plan
        for at, arm in enumerate(config.arms)
        for plan in (
            _process(at, "measure-0", arm.condition, num_decisions, 0),
            _process(at, "measure-1", arm.condition, num_decisions, 1),
            _process(at, "reference", arm.reference, guards, 0, is_reference=True),
        )
    )


def process_compositions(
    config: CalibrationConfig, process: ProcessPlan, rows: Sequence[RowShape]
) -> tuple[Composition, ...]:
    """Return what `process` is to run over its `rows`, in order."""
    arm = config.arms[process.arm]
    return process.chosen(plan_compositions(rows, arm, config.sweep, config.seed))


def _process(  # noqa: PLR0913 - the fields of a plan
    arm: int,
    purpose: str,
    condition: Condition,
    num_decisions: int,
    share: int,
    *,
    is_reference: bool = False,
) -> ProcessPlan:
    return ProcessPlan(
        process_id=f"arm-{arm}/{purpose}",
        arm=arm,
        condition=condition,
        is_reference=is_reference,
        num_decisions=num_decisions,
        share=share,
    )


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
