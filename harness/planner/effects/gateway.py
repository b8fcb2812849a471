"""The two ways a tool call can be answered: by the world, or by what was recorded.

`LiveGateway` sends, and records each answer under its token. `ReplayGateway` has nothing to send
with: it holds the steps that a branch may take and a store, no callable and no connection, so a
call that these do not answer cannot leave. Such a call is a hard abort: the branch is marked as
contaminated in the store before the error is raised, and from then on the gateway answers nothing,
whether or not the caller swallows the error.

While a replay runs, a `LiveGateway` reached in the same context aborts it in the same way. What
this file cannot see is code that opens a connection of its own, without any gateway, or that calls
a live gateway from a thread it starts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Protocol

from harness.codec import canonical_bytes, parse
from harness.errors import ReplayContaminationError
from harness.planner.effects.instant import Clock, instant
from harness.planner.effects.step import SideEffectStep, recorded_step, request_digest
from harness.planner.effects.store import EffectStore
from harness.planner.effects.verification import StepReason, verify_step
from harness.records.document import Record

__all__ = ["Answer", "AnswerSource", "Gateway", "LiveGateway", "ReplayGateway", "Send"]

Send = Callable[[str, Any, str | None], Any]
"""Really calls a tool: (tool, arguments, idempotency token) -> response."""


class Gateway(Protocol):
    """Where a planner's tool calls go."""

    def call(self, tool: str, arguments: Any, token: str | None = None) -> Any:
        """Return the response, any JSON value."""


class LiveGateway:
    """Sends every call, and records its response when it has a token."""

    def __init__(self, send: Send, store: EffectStore) -> None:
        """Send with `send`; record in `store`."""
        self._send, self._store = send, store

    def call(self, tool: str, arguments: Any, token: str | None = None) -> Any:
        """Return the world's response.

        Raises ReplayContaminationError while a replay runs, and InvalidRecordError when the token
        already stands for another call or response.
        """
        replay = _running.get()
        if replay is not None:
            raise replay.contaminate(f"{tool!r} was called on a live gateway")
        payload = self._send(tool, arguments, token)
        if token is not None:
            step = recorded_step(
                step_id=token, tool=tool, arguments=arguments, token=token, payload=payload
            )
            self._store.put(step)
        return payload


class AnswerSource(StrEnum):
    """Where an answer of a replay comes from."""

    STORE = "store"
    """The effect store, its token verified again at the moment of the call."""
    RECORD = "record"
    """The trajectory: a read-only step, or the response that the experiment poses."""


class Answer(Record, frozen=True, kw_only=True):
    """A call that a branch may make, and what answers it."""

    index: int
    """Position of the step in the trajectory."""
    step: SideEffectStep
    """The call and its recorded response."""
    source: AnswerSource
    """Where the response is taken from."""
    may_be_skipped: bool = False
    """Whether the branch may leave the call out: after the divergence it may, before it not."""

    def answers(self, asked: str, token: str | None) -> bool:
        """Whether this answers the call with request digest `asked`.

        The token matters where the store is asked; to a read or a hypothesis it means nothing.
        """
        same_token = self.source is AnswerSource.RECORD or self.step.token == token
        return same_token and self.step.request_digest == asked


class ReplayGateway:
    """Answers the calls of one branch, in order, from the store and the record; nothing else."""

    __slots__ = (
        "_answered",
        "_answers",
        "_branch_id",
        "_by_token",
        "_clock",
        "_contamination",
        "_next",
        "_store",
    )

    def __init__(
        self, branch_id: str, answers: Sequence[Answer], *, store: EffectStore, clock: Clock
    ) -> None:
        """Answer the calls in `answers`; mark `branch_id` in `store` if another one comes."""
        self._branch_id, self._answers = branch_id, tuple(answers)
        self._store, self._clock = store, clock
        self._next, self._contamination = 0, store.contamination(branch_id)
        self._answered: list[int] = []
        self._by_token: dict[str, Answer] = {}

    def call(self, tool: str, arguments: Any, token: str | None = None) -> Any:
        """Return the response to a call of the branch.

        Raises ReplayContaminationError when it has none: from the first such call on, to every one.
        """
        self.refuse_contaminated()
        try:
            return self._payload(self._answer(tool, arguments, token))
        except ReplayContaminationError:
            raise
        except Exception as error:  # else a program that swallows it would go on without an answer
            raise self.contaminate(f"{tool!r} could not be answered ({error})") from error

    def finish(self) -> frozenset[int]:
        """Say that the branch makes no more calls; return the positions of the steps answered.

        Raises ReplayContaminationError if it left out one that it must make.
        """
        self._contamination = self._contamination or self._store.contamination(self._branch_id)
        self.refuse_contaminated()
        self._refuse_skipping(self._answers[self._next :], "the branch ended")
        return frozenset(self._answered)

    def refuse_contaminated(self) -> None:
        """Raise ReplayContaminationError if the branch is contaminated."""
        if self._contamination is not None:
            raise ReplayContaminationError(self._words(self._contamination))

    def contaminate(self, reason: str) -> ReplayContaminationError:
        """Mark the branch as contaminated, here and in the store; return the error to raise."""
        self._contamination = self._contamination or reason
        self._store.contaminate(self._branch_id, reason)
        return ReplayContaminationError(self._words(self._contamination))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make every live gateway that is reached in this context abort this replay."""
        before = _running.set(self)
        try:
            yield
        finally:
            _running.reset(before)

    def _answer(self, tool: str, arguments: Any, token: str | None) -> Answer:
        """Return what answers the call: the next step that does, or one that is asked again."""
        named = f"{tool!r} with {'no token' if token is None else f'token {token!r}'}"
        asked = request_digest(tool, arguments)
        for at in range(self._next, len(self._answers)):
            answer = self._answers[at]
            if answer.answers(asked, token):
                self._refuse_skipping(self._answers[self._next : at], f"{named} was called")
                self._next = at + 1
                self._answered.append(answer.index)
                if token is not None:
                    self._by_token[token] = answer
                return answer
        again = self._by_token.get(token or "")
        if again is not None and again.step.request_digest == asked:
            return again
        raise self.contaminate(
            f"{named} was called; no step of the branch answers that, only the world could"
        )

    def _payload(self, answer: Answer) -> Any:
        """Return the response as a value of its own: changing it changes no record."""
        from_store = answer.source is AnswerSource.STORE
        payload = self._verified(answer) if from_store else canonical_bytes(answer.step.payload)
        return parse(payload, f"step {answer.step.step_id!r}")

    def _verified(self, answer: Answer) -> bytes:
        """Return the stored response of a side effect, after verifying its token once more."""
        step = answer.step
        stored = self._store.effects([step.token or ""]).get(step.token or "")
        reason = verify_step(step, stored, instant(self._clock(), "now"))
        if reason is not StepReason.VERIFIED or stored is None or stored.payload is None:
            raise self.contaminate(f"step {step.step_id!r} cannot be re-issued: {reason}")
        return stored.payload

    def _refuse_skipping(self, skipped: Sequence[Answer], when: str) -> None:
        """The branch is the recorded run up to the divergence: it leaves out none of these."""
        missed = next((answer for answer in skipped if not answer.may_be_skipped), None)
        if missed is not None:
            step = missed.step
            raise self.contaminate(
                f"{when} before step {missed.index} ({step.step_id!r}), which the run took"
            )

    def _words(self, reason: str) -> str:
        advice = "it is no counterfactual; begin another branch under another id"
        return f"branch {self._branch_id!r} is contaminated: {reason}; {advice}"


_running: ContextVar[ReplayGateway | None] = ContextVar("scorepin_replay", default=None)
"""The replay that runs in this context."""
