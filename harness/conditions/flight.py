"""How requests go through a serving engine together: what a batch is where an engine packs it.

Pure. A flight begins and ends with an empty engine. It says when requests come, not what a step
computes: that is the scheduler's, and is read back as `EngineStep`. Only a flight that is `pinned`
names the steps themselves.
"""

from harness.records.document import Record

__all__ = ["EngineStep", "Flight", "StepSlot"]


class StepSlot(Record, frozen=True, kw_only=True, array_like=True):
    """A request's part in a step."""

    request: int
    """Index into the flight's requests, or the plan's."""
    num_tokens: int
    """Tokens computed in it."""
    num_computed_tokens: int
    """Tokens computed before it."""


class EngineStep(Record, frozen=True, kw_only=True):
    """One step of an engine."""

    slots: tuple[StepSlot, ...]
    """Who was computed, in row order; of a plan, in the scheduler's order."""
    preempted: tuple[int, ...] = ()
    """Requests that lose their cache in it, the first to lose it first."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(slot.num_tokens for slot in self.slots)


class Flight(Record, frozen=True, kw_only=True):
    """Rules for some requests, from an empty engine to an empty engine."""

    arrivals: tuple[int, ...] = ()
    """`[requests]`: the step before which each comes, ascending; empty: all before the first."""
    token_budget: int | None = None
    """Most tokens of a step, where that is less than the engine's own limit."""
    is_warm: bool = False
    """Whether every prompt has been computed before, so that its first blocks are in the cache."""
    extra_tokens: int = 0
    """Tokens that each request goes on to generate when its score has been read."""
    preempt_before: int | None = None
    """The step before which every running request loses its cache; None for never."""
    pinned: tuple[EngineStep, ...] = ()
    """The steps that the engine is to run; empty: as it likes."""
