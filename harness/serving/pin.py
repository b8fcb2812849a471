"""Decides, step by step, what a pinned engine may compute, and when the pin ends.

The engine asks `decide` before each step and tells `observe` what it then scheduled. Pure: time and
the engine's state are handed in.

Rules kept here:

* a pin begins on an engine that computes nothing else: until then what runs is let run, and nothing
  new begins;
* a step runs when every request that it names has come, the first, as a rule, when every request
  of the plan has; until then nothing runs;
* whatever cannot be pinned ends the pin, with a reason, and the engine goes on unpinned. A pin
  never waits longer than its plan allows, and never raises into the engine;
* a pin that has ended stays ended.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from harness.conditions.flight import EngineStep, StepSlot
from harness.errors import IllegalMoveError
from harness.records.document import Record
from harness.serving.pin_plan import PinPlan

__all__ = [
    "MOVES",
    "Allowed",
    "EngineRequest",
    "Pin",
    "PinEnd",
    "PinOutcome",
    "PinState",
    "Scheduled",
]


class PinState(StrEnum):
    """Where a pin stands."""

    DRAINING = "draining"
    """The engine still computes what it began before."""
    PINNED = "pinned"
    """The engine computes the plan, or waits for a request of it."""
    ENDED = "ended"
    """The engine is free."""


class PinEnd(StrEnum):
    """Why a pin ended."""

    COMPLETED = "completed"
    """Every step ran as planned."""
    ENGINE_BUSY = "engine_busy"
    """The engine did not become free of other requests in time."""
    MISSING_REQUEST = "missing_request"
    """A planned request did not come in time; a closed-loop client may be waiting for another."""
    REQUEST_GONE = "request_gone"
    """A planned request ended before its last planned step: aborted, or it generated less."""
    CONTENT_DIFFERS = "content_differs"
    """A planned request came with another prompt."""
    CACHE_STATE = "cache_state"
    """A request's cached tokens are not as recorded: prefix cache, or an earlier preemption."""
    SCHEDULE_REFUSED = "schedule_refused"
    """The engine scheduled something else: its allocator, its limits or its chunking differ."""
    SUPERSEDED = "superseded"
    """Another pin was asked for."""
    UNSUPPORTED = "unsupported"
    """This engine's scheduling policy cannot be pinned."""
    FAILED = "failed"
    """The pin's own code failed; the engine's log has the trace."""


class PinEvent(StrEnum):
    """What moves a pin."""

    DRAINED = "drained"
    """The engine computes nothing else any more."""
    END = "end"
    """A reason to end was found."""


MOVES: dict[tuple[PinState, PinEvent], PinState] = {
    (PinState.DRAINING, PinEvent.DRAINED): PinState.PINNED,
    (PinState.DRAINING, PinEvent.END): PinState.ENDED,
    (PinState.PINNED, PinEvent.END): PinState.ENDED,
}
"""All the moves there are."""


class EngineRequest(Record, frozen=True, kw_only=True):
    """A request in the engine now."""

    engine_id: str
    """The engine's id."""
    name: str
    """The client's id."""
    num_prompt_tokens: int
    """Tokens of its prompt."""
    prompt_digest: str
    """Digest of its prompt."""


class Allowed(Record, frozen=True, kw_only=True):
    """What the next step may compute."""

    engine_ids: tuple[str, ...] = ()
    """Requests to show to the scheduler, in this order; all others are hidden."""
    num_tokens: int | None = None
    """The step's token budget; None for the engine's own."""


class Scheduled(Record, frozen=True, kw_only=True):
    """What the scheduler decided."""

    num_tokens: Mapping[str, int]
    """Engine id -> tokens, in order."""
    num_computed_tokens: Mapping[str, int]
    """Engine id -> tokens computed before."""
    preempted: Sequence[str]
    """The first to lose its cache first."""


class PinOutcome(Record, frozen=True, kw_only=True):
    """How a pin ended."""

    pin_id: str
    """Which."""
    end: PinEnd
    """Why."""
    detail: str
    """The same in words: which request, which step."""
    num_steps_done: int
    """Steps that ran as planned."""
    num_steps: int
    """Steps planned."""


class Pin:
    """One plan being carried out."""

    def __init__(self, plan: PinPlan, now_s: float) -> None:
        """Begin to drain the engine."""
        self.plan = plan
        self.state = PinState.DRAINING
        self.outcome: PinOutcome | None = None
        self._at = 0
        self._progress_s = now_s
        self._index = {request.name: at for at, request in enumerate(plan.requests)}
        self._engine_ids: dict[int, str] = {}

    def is_planned(self, name: str) -> bool:
        """Whether a client's id is one of the plan's."""
        return name in self._index

    def arrived(self, request: EngineRequest, now_s: float) -> None:
        """Take note of a request that came to the engine; ends the pin if it is a wrong one."""
        index = self._index.get(request.name)
        if index is None or self.state is PinState.ENDED:
            return
        planned = self.plan.requests[index]
        differs = planned.prompt_digest not in (None, request.prompt_digest)
        if differs or planned.num_prompt_tokens not in (None, request.num_prompt_tokens):
            self.end(PinEnd.CONTENT_DIFFERS, f"request {request.name!r} has another prompt")
        self._engine_ids[index] = request.engine_id
        self._progress_s = now_s

    def decide(
        self, computed: Mapping[str, int], running: Sequence[str], now_s: float
    ) -> Allowed | None:
        """Return what the next step may compute; None once the pin has ended.

        `computed` has the tokens computed of every request in the engine, by engine id; `running`
        are those that hold a place in it.
        """
        if self.state is PinState.DRAINING:
            allowed = self._drain(running, now_s)
            if allowed is not None or self.outcome is not None:
                return allowed
        if self.state is PinState.ENDED:
            return None
        if self._at == len(self.plan.steps):
            self.end(PinEnd.COMPLETED, "every step ran as planned")
            return None
        return self._next(self.plan.steps[self._at], computed, now_s)

    def observe(self, scheduled: Scheduled, now_s: float) -> None:
        """Compare what was scheduled with the plan; ends the pin where they differ."""
        if self.state is not PinState.PINNED or not (scheduled.num_tokens or scheduled.preempted):
            return
        step = self.plan.steps[self._at]
        planned = [self._triple(slot) for slot in step.slots]
        found = [
            (one, num_tokens, scheduled.num_computed_tokens[one])
            for one, num_tokens in scheduled.num_tokens.items()
        ]
        preempted = [self._engine_ids.get(at, "") for at in step.preempted]
        if list(scheduled.preempted) != preempted or _counts(found) != _counts(planned):
            told = f"step {self._at}: planned {_told(planned)}, the engine scheduled {_told(found)}"
            self.end(PinEnd.SCHEDULE_REFUSED, told)
        elif found != planned:
            self.end(PinEnd.CACHE_STATE, f"step {self._at} found other tokens in the cache")
        else:
            self._at, self._progress_s = self._at + 1, now_s
            if self._at == len(self.plan.steps):
                self.end(PinEnd.COMPLETED, "every step ran as planned")

    def end(self, reason: PinEnd, detail: str) -> None:
        """End the pin, if it has not ended."""
        if self.state is PinState.ENDED:
            return
        self._move(PinEvent.END)
        self.outcome = PinOutcome(
            pin_id=self.plan.pin_id,
            end=reason,
            detail=detail,
            num_steps_done=self._at,
            num_steps=len(self.plan.steps),
        )

    def _move(self, event: PinEvent) -> None:
        if (self.state, event) not in MOVES:
            raise IllegalMoveError(f"a pin that is {self.state} has no move for {event}")
        self.state = MOVES[self.state, event]

    def _drain(self, running: Sequence[str], now_s: float) -> Allowed | None:
        if not running:
            self._move(PinEvent.DRAINED)
            self._progress_s = now_s
            return None
        if self._is_late(now_s):
            self.end(PinEnd.ENGINE_BUSY, f"{len(running)} other requests are running")
            return None
        return Allowed(engine_ids=tuple(running))

    def _next(self, step: EngineStep, computed: Mapping[str, int], now_s: float) -> Allowed | None:
        needed = [*(slot.request for slot in step.slots), *reversed(step.preempted)]
        names = self.plan.requests
        awaited = range(len(names)) if self.plan.gather and self._at == 0 else needed
        missing = [names[at].name for at in awaited if at not in self._engine_ids]
        if missing:
            if not self._is_late(now_s):
                return Allowed()
            waited = f"step {self._at} waited {self.plan.wait_s:g} s for {missing[0]!r}"
            self.end(PinEnd.MISSING_REQUEST, waited)
            return None
        for at in needed:
            if self._engine_ids[at] not in computed:
                self.end(PinEnd.REQUEST_GONE, f"step {self._at}: {names[at].name!r} has ended")
                return None
        for slot in step.slots:
            there = computed[self._engine_ids[slot.request]]
            # None computed yet: whether the prefix cache has some is seen when it is scheduled.
            if there not in (0, slot.num_computed_tokens):
                told = f"step {self._at}: {names[slot.request].name!r} is at token {there}, not"
                self.end(PinEnd.CACHE_STATE, f"{told} {slot.num_computed_tokens}")
                return None
        engine_ids = tuple(self._engine_ids[at] for at in needed)
        # A preemption is found while the scheduler still has a token to give.
        budget = None if step.preempted else step.num_tokens
        return Allowed(engine_ids=engine_ids, num_tokens=budget)

    def _is_late(self, now_s: float) -> bool:
        return now_s - self._progress_s > self.plan.wait_s

    def _triple(self, slot: StepSlot) -> tuple[str, int, int]:
        engine_id = self._engine_ids.get(slot.request, "")
        return engine_id, slot.num_tokens, slot.num_computed_tokens


def _counts(slots: Sequence[tuple[str, int, int]]) -> list[tuple[str, int]]:
    return [(engine_id, num_tokens) for engine_id, num_tokens, _ in slots]


def _told(slots: Sequence[tuple[str, int, int]]) -> str:
    return f"{len(slots)} requests of {[num_tokens for _, num_tokens, _ in slots]} tokens"
