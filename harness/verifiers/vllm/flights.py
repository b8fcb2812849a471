"""Takes requests through a vLLM engine in this process, one scheduler step a call.

Rules kept here:

* what ran is read back from the scheduler's own log, and never taken from what was asked;
* a flight begins with an empty engine and, unless it is warm, an empty prefix cache;
* whatever a flight sets in the scheduler is put back when it ends, however it ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.conditions.flight import EngineStep, Flight, StepSlot
from harness.errors import WorkerError
from harness.records.document import Record
from harness.serving.content import prompt_digest
from harness.serving.history import History, LoggedRequest, SeenStep
from harness.serving.pin import PinEnd
from harness.serving.pin_files import ask_for_pin, read_outcome
from harness.serving.pin_plan import PinPlan, PlannedRequest
from harness.serving.step_log import LogFollower

__all__ = ["Flights", "Flown"]

_MAX_SLOTS = 1 << 18
"""Slots of the newest steps that are remembered: many more than a flight has."""
_WAIT_S = 5.0
"""How long a pinned step may wait for a request that has ended or never came."""


class Flown(Record, frozen=True, kw_only=True, eq=False):
    """What came of a flight."""

    outputs: tuple[Any, ...]
    """vLLM's outputs, `[requests]`."""
    steps: tuple[EngineStep, ...]
    """The steps that ran, rows in the model's order."""
    generated: tuple[tuple[int, ...], ...]
    """`[requests]`: the tokens that came out."""
    note: str
    """Why a pin ended early; empty where it did not."""


class Flights:
    """One engine, and the log that its scheduler writes."""

    def __init__(self, engine: Any, folder: Path) -> None:
        """Take an in-process ``LLMEngine`` whose scheduler records to `folder`."""
        self._engine, self._folder = engine, folder
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._follower, self._history = LogFollower(folder), History(_MAX_SLOTS)
        self._num_flights = 0

    @property
    def facts(self) -> Mapping[str, object]:
        """The engine's facts, as its log has them."""
        return self._history.feed(self._follower.read_new()).facts

    def fly(self, prompts: Sequence[Sequence[int]], params: Any, flight: Flight) -> Flown:
        """Take one request a prompt through the engine; all have the same `params`."""
        self._engine.reset_prefix_cache()
        if flight.is_warm:
            self._run(self._names(len(prompts)), prompts, params, Flight())
        first = self._history.feed(self._follower.read_new()).num_steps
        names = self._names(len(prompts))
        if flight.pinned:
            self._ask_for_pin(names, prompts, flight.pinned)
        with self._limited(flight.token_budget):
            outputs = self._run(names, prompts, params, flight)
        history = self._history.feed(self._follower.read_new())
        requests = [history.request(name) for name in names]
        index = {id(one): at for at, one in enumerate(requests)}
        return Flown(
            outputs=tuple(outputs[name] for name in names),
            steps=tuple(
                _step(seen, index) for seen in history.between(first, history.num_steps - 1)
            ),
            generated=tuple(tuple(one.generated) for one in requests),
            note=self._note(names[0]) if flight.pinned else "",
        )

    def _names(self, count: int) -> list[str]:
        self._num_flights += 1
        return [f"f{self._num_flights}.{at}" for at in range(count)]

    def _run(
        self, names: Sequence[str], prompts: Sequence[Sequence[int]], params: Any, flight: Flight
    ) -> dict[str, Any]:
        engine, step = self._engine, 0
        found: dict[str, Any] = {}
        waiting = list(zip(flight.arrivals or [0] * len(names), names, prompts, strict=True))
        while waiting or engine.has_unfinished_requests():
            while waiting and (waiting[0][0] <= step or not engine.has_unfinished_requests()):
                _, name, tokens = waiting.pop(0)
                engine.add_request(name, {"prompt_token_ids": list(tokens)}, params)
            if step == flight.preempt_before:
                engine.reset_prefix_cache(reset_running_requests=True)
            found |= {one.request_id: one for one in engine.step() if one.finished}
            step += 1
        if missing := [name for name in names if name not in found]:
            raise WorkerError(f"the engine lost {len(missing)} of {len(names)} requests")
        return found

    @contextmanager
    def _limited(self, budget: int | None) -> Iterator[None]:
        limit = self._scheduler.max_num_scheduled_tokens
        if budget is not None:
            self._scheduler.max_num_scheduled_tokens = min(budget, limit)
        try:
            yield
        finally:
            self._scheduler.max_num_scheduled_tokens = limit

    def _ask_for_pin(
        self, names: Sequence[str], prompts: Sequence[Sequence[int]], steps: tuple[EngineStep, ...]
    ) -> None:
        requests = tuple(
            PlannedRequest(
                name=name, num_prompt_tokens=len(tokens), prompt_digest=prompt_digest(tokens)
            )
            for name, tokens in zip(names, prompts, strict=True)
        )
        plan = PinPlan(pin_id=_pin_id(names[0]), requests=requests, steps=steps, wait_s=_WAIT_S)
        ask_for_pin(self._folder, plan)

    def _note(self, name: str) -> str:
        outcome = read_outcome(self._folder, _pin_id(name))
        if outcome is None:
            return "the pin has not ended: the engine stopped before its last step"
        if outcome.end is PinEnd.COMPLETED:
            return ""
        return f"the pin ended early ({outcome.end}): {outcome.detail}"


def _pin_id(name: str) -> str:
    return name.replace(".", "-")


def _step(seen: SeenStep, index: Mapping[int, int]) -> EngineStep:
    return EngineStep(
        slots=tuple(
            StepSlot(
                request=_known(slot.request, index),
                num_tokens=slot.num_tokens,
                num_computed_tokens=slot.num_computed_tokens,
            )
            for slot in seen.rows
        ),
        preempted=tuple(_known(one, index) for one in seen.preempted),
    )


def _known(request: LoggedRequest, index: Mapping[int, int]) -> int:
    try:
        return index[id(request)]
    except KeyError as error:
        raise WorkerError(f"request {request.client.name!r} is of no flight") from error
