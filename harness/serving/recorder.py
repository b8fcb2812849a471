"""Decides what a step's line says, from plain facts of the engine's scheduler.

Pure, but for what it remembers: the number of each request in flight and the tokens it has
generated, which a new file of the log repeats.
"""

from collections.abc import Iterable, Mapping, Sequence

from harness.records.document import Record
from harness.serving.log_lines import Admitted, LoggedSlot, StepLine

__all__ = ["Prompt", "RanStep", "Recorder", "ScheduledStep"]


class Prompt(Record, frozen=True, kw_only=True):
    """A request's prompt, told when it is first scheduled."""

    num_tokens: int
    """Its tokens."""
    digest: str
    """See `harness.serving.content`."""


class ScheduledStep(Record, frozen=True, kw_only=True):
    """What the scheduler decided about one step, by engine id."""

    num_tokens: Mapping[str, int]
    """Tokens of each request, in the scheduler's order."""
    num_computed_tokens: Mapping[str, int]
    """Tokens of each that were computed before."""
    prompts: Mapping[str, Prompt]
    """Of the requests that are scheduled for the first time."""
    preempted: Sequence[str] = ()
    """Requests that lost their cache, the first to lose it first."""
    finished: Iterable[str] = ()
    """Requests that have ended since the step before."""


class RanStep(Record, frozen=True, kw_only=True):
    """What came of it."""

    sampled: Mapping[str, Sequence[int]] = {}
    """Engine id -> tokens that came out."""
    rows: Sequence[str] = ()
    """Engine ids in the order of the model's rows; empty where the engine does not say."""


class Recorder:
    """Turns steps into lines."""

    def __init__(self) -> None:
        """Begin a run."""
        self._num_steps = 0
        self._num_requests = 0
        self._live: dict[str, _Live] = {}
        self._finished: list[int] = []

    def record(self, step: ScheduledStep, ran: RanStep) -> StepLine | None:
        """Return the line of a step whose results have come in; None if nothing ran."""
        gone = (self._live.pop(engine_id, None) for engine_id in step.finished)
        self._finished += [one.number for one in gone if one is not None]
        admitted = tuple(
            self._admit(engine_id, prompt)
            for engine_id, prompt in step.prompts.items()
            if engine_id not in self._live  # one that was preempted may be told again
        )
        if not step.num_tokens and not step.preempted:
            return None
        slots = self._slots(step, ran)
        line = StepLine(
            step=self._num_steps,
            slots=slots,
            rows=_rows(step.num_tokens, ran.rows),
            admitted=admitted,
            preempted=tuple(self._live[engine_id].number for engine_id in step.preempted),
            finished=tuple(self._finished),
        )
        self._finished = []
        self._num_steps += 1
        return line

    def live(self) -> tuple[Admitted, ...]:
        """Return the requests in flight, as the header of a new file names them."""
        return tuple(
            _admitted(engine_id, one, tuple(one.generated)) for engine_id, one in self._live.items()
        )

    def _admit(self, engine_id: str, prompt: Prompt) -> Admitted:
        new = self._live[engine_id] = _Live(self._num_requests, prompt)
        self._num_requests += 1
        return _admitted(engine_id, new)

    def _slots(self, step: ScheduledStep, ran: RanStep) -> tuple[LoggedSlot, ...]:
        live, computed, sampled = self._live, step.num_computed_tokens, ran.sampled
        slots = []
        for engine_id, num_tokens in step.num_tokens.items():
            one, out = live[engine_id], tuple(sampled.get(engine_id, ()))
            one.generated += out
            slots.append(LoggedSlot(one.number, num_tokens, computed[engine_id], out))
        return tuple(slots)


class _Live:
    """A request in flight."""

    __slots__ = ("generated", "number", "prompt")

    def __init__(self, number: int, prompt: Prompt) -> None:
        self.number, self.prompt = number, prompt
        self.generated: list[int] = []


def _rows(scheduled: Mapping[str, int], rows: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of what was scheduled, in row order; nothing where they ascend."""
    index = {engine_id: at for at, engine_id in enumerate(scheduled)}
    order = [index[engine_id] for engine_id in rows if engine_id in index]
    return tuple(order) if len(order) == len(index) and order != sorted(order) else ()


def _admitted(engine_id: str, one: _Live, generated: tuple[int, ...] = ()) -> Admitted:
    return Admitted(
        number=one.number,
        engine_id=engine_id,
        num_prompt_tokens=one.prompt.num_tokens,
        prompt_digest=one.prompt.digest,
        generated=generated,
    )
