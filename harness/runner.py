"""Runs one condition in a fresh process and hands back what it measured.

Every condition gets a process of its own, with the environment that its switches need, started
anew each time. A process that dies, fails, or answers with something else is an error with the end
of its standard error in the message: nothing it left unfinished counts. However the caller leaves,
the process is gone when the context manager is.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import BinaryIO, Self, TypeVar, cast

from harness import errors
from harness.conditions.batching import Batch
from harness.conditions.condition import Condition, environment
from harness.errors import ScorepinError, WorkerError
from harness.messages import (
    Failed,
    Job,
    Probe,
    Probed,
    Ready,
    Run,
    Scored,
    ToWorker,
    Trace,
    Traced,
    receive,
    send,
)
from harness.orders.fingerprint import OrderProbe
from harness.records.verifier import VerifierSpec
from harness.verifiers.divergence import Divergence
from harness.verifiers.protocol import RowText
from harness.verifiers.vllm.options import engine_environment

__all__ = ["ConditionProcess"]

A = TypeVar("A", Ready, Scored, Traced, Probed)

_STDERR_TAIL_BYTES = 2000
_GRACE_S = 5.0
"""How long a process may take to end once its pipes are closed; then it is killed."""


class ConditionProcess:
    """A context manager around the process of one condition.

    ``with ConditionProcess(spec, condition, texts) as process:`` then `ready()`, then `score()`.
    """

    def __init__(
        self, verifier: VerifierSpec, condition: Condition, texts: Sequence[RowText]
    ) -> None:
        """Describe the process; nothing is started yet."""
        self._job = Job(verifier=verifier, condition=condition, texts=tuple(texts))
        self._environment = _environment(condition, verifier)
        self._owed = 0

    def __enter__(self) -> Self:
        """Start the process and send it its job."""
        with ExitStack() as stack:
            self._stderr = stack.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=self._environment,
            )
            stack.callback(self._end)
            self._send(self._job)
            self._held = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process: by closing its input when all went well, else at once."""
        with self._held:
            if kind is None and not self._owed:
                self._finish()

    def ready(self) -> Ready:
        """Wait until the model is loaded and the rows are encoded."""
        return self._expect(Ready)

    def score(self, batches: Sequence[Batch]) -> Iterator[tuple[float, ...]]:
        """Score `batches` in order; yield one tuple of scores a batch. See `run`."""
        return (scored.scores for scored in self.run(batches))

    def run(self, batches: Sequence[Batch]) -> Iterator[Scored]:
        """Run `batches` in order; yield what each gave, as they are done.

        Read it to its end before the next call: what is left unread would answer that one.
        """
        if self._owed:
            raise WorkerError("the scores of an earlier call were not all read; read them first")
        self._send(Run(batches=tuple(batches)))
        self._owed = len(batches)
        for batch in batches:
            scored = self._expect(Scored)
            if len(scored.scores) != len(batch.rows):
                raise self._ended(f"gave {len(scored.scores)} scores for {len(batch.rows)} rows")
            self._owed -= 1
            yield scored

    def trace(self, left: Batch, right: Batch, row: int) -> Divergence:
        """Compare the computations of `row`, which is in both batches, module by module."""
        self._send(Trace(left=left, right=right, row=row))
        return self._expect(Traced).divergence

    def probe(self, batches: Sequence[Batch]) -> OrderProbe:
        """Measure the reduction orders, and look at the first row of each of `batches`."""
        self._send(Probe(batches=tuple(batches)))
        return self._expect(Probed).found

    @property
    def _requests(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdin)

    @property
    def _answers(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdout)

    def _send(self, message: ToWorker) -> None:
        try:
            send(self._requests, message)
        except BrokenPipeError as error:
            raise self._failure(self._receive()) from error  # its last words say why

    def _receive(self) -> object:
        try:
            return receive(self._answers)
        except WorkerError as error:
            raise self._ended(f"failed: {error}") from error

    def _expect(self, kind: type[A]) -> A:
        answer = self._receive()
        if not isinstance(answer, kind):
            raise self._failure(answer)
        return answer

    def _failure(self, answer: object) -> ScorepinError:
        """Return the error that `answer`, which was not hoped for, amounts to."""
        if answer is None:
            return self._ended("died")
        if not isinstance(answer, Failed):
            return self._ended(f"answered {type(answer).__name__} out of turn")
        known = getattr(errors, answer.kind, None)
        if isinstance(known, type) and issubclass(known, ScorepinError):
            return known(answer.message)
        return self._ended(f"failed: {answer.kind}: {answer.message}")

    def _ended(self, what: str) -> WorkerError:
        """Wait until the process has ended; return an error with its status and last words."""
        self._close_pipes()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = _status(self._process.wait())
        return WorkerError(f"a condition's process {what} ({status})\n{self._tail()}".rstrip())

    def _finish(self) -> None:
        self._close_pipes()
        if self._process.wait() != 0:
            raise self._ended("failed at its end")

    def _end(self) -> None:
        self._process.kill()
        self._close_pipes()
        self._process.wait()

    def _close_pipes(self) -> None:
        for stream in (self._requests, self._answers):
            with suppress(BrokenPipeError):  # a frame that nobody will read
                stream.close()

    def _tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - _STDERR_TAIL_BYTES, 0))
        return self._stderr.read().decode("utf-8", "replace")


def _status(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL; if memory ran out, use fewer processes or smaller batches"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


def _environment(condition: Condition, verifier: VerifierSpec) -> dict[str, str]:
    """Return this process's environment, with the condition's variables set or unset.

    The child imports from where this process does, wherever it was started.
    """
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    own = engine_environment(verifier.engine, condition)
    merged = {**os.environ, **path, **environment(condition, verifier.device), **own}
    return {name: value for name, value in merged.items() if value is not None}
