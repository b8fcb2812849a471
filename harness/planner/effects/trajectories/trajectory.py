"""A trajectory: the steps of one run, in the order they were taken.

Rules kept here: a step id stands for one step, and a step is built only on earlier ones.
"""

from harness.errors import InvalidRecordError
from harness.planner.effects.step import SideEffectStep
from harness.records.document import Record

__all__ = ["Trajectory"]


class Trajectory(Record, frozen=True, kw_only=True):
    """The recorded steps of one run."""

    source: str
    """Where it was read from; begins every error message about it."""
    steps: tuple[SideEffectStep, ...]
    """In the order they were taken, `[steps]`."""

    def __post_init__(self) -> None:
        """Ids are unique, and dependencies name earlier steps."""
        earlier: set[str] = set()
        for at, step in enumerate(self.steps):
            where = f"{self.source}: step {at} ({step.step_id!r})"
            if step.step_id in earlier:
                raise InvalidRecordError(f"{where}: the id stands for an earlier step already")
            for name in step.dependencies or ():
                if name not in earlier:
                    raise InvalidRecordError(f"{where}: depends on {name!r}, which is not earlier")
            earlier.add(step.step_id)
