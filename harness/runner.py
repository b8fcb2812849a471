"""Runs one condition in a fresh process and hands back what it measured.

Every condition gets a process of its own, with the environment that its switches need, started
anew each time. A process that dies, fails, or answers with something else is an error with the end
of its standard error in the message: nothing it left unfinished counts.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import BinaryIO, NoReturn, Self, cast

from harness import errors
from harness.conditions.batching import Batch
from harness.conditions.condition import Condition, environment
from harness.messages import Failed, FromWorker, Job, Ready, Run, Scored, receive, send
from harness.records.verifier import VerifierSpec
from harness.verifiers.protocol import RowText

__all__ = ["ConditionProcess"]

_STDERR_TAIL_BYTES = 2000


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

    def __enter__(self) -> Self:
        """Start the process and send it its job."""
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environment,
        )
        try:
            send(self._requests, self._job)
        except BrokenPipeError:
            self._fail(None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process: by closing its input when all went well, else at once."""
        if kind is not None:
            self._process.kill()
        self._requests.close()
        status = self._process.wait()
        self._answers.close()
        try:
            if kind is None and status != 0:
                raise errors.WorkerError(
                    f"a condition's process ended with status {status}:\n{self._tail()}"
                )
        finally:
            self._stderr.close()

    def ready(self) -> Ready:
        """Wait until the model is loaded and the rows are encoded."""
        answer = self._next()
        if not isinstance(answer, Ready):
            self._fail(answer)
        return answer

    def score(self, batches: Sequence[Batch]) -> Iterator[tuple[float, ...]]:
        """Score `batches` in order; yield one tuple of scores a batch, as they are done."""
        send(self._requests, Run(batches=tuple(batches)))
        for batch in batches:
            answer = self._next()
            if not isinstance(answer, Scored) or len(answer.scores) != len(batch.rows):
                self._fail(answer)
            yield answer.scores

    @property
    def _requests(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdin)

    @property
    def _answers(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdout)

    def _next(self) -> FromWorker | None:
        return cast("FromWorker | None", receive(self._answers))

    def _fail(self, answer: FromWorker | None) -> NoReturn:
        if isinstance(answer, Failed):
            known = getattr(errors, answer.kind, None)
            if isinstance(known, type) and issubclass(known, errors.ScorepinError):
                raise known(answer.message)
            raise errors.WorkerError(
                f"a condition's process failed: {answer.kind}: {answer.message}\n{self._tail()}"
            )
        if answer is not None:
            raise errors.WorkerError(
                f"a condition's process answered out of turn: {type(answer).__name__}"
            )
        status = self._process.wait()
        raise errors.WorkerError(
            f"a condition's process died with status {status}:\n{self._tail()}"
        )

    def _tail(self) -> str:
        self._stderr.flush()
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - _STDERR_TAIL_BYTES, 0))
        return self._stderr.read().decode("utf-8", "replace")


def _environment(condition: Condition, verifier: VerifierSpec) -> dict[str, str]:
    """Return this process's environment, with the condition's variables set or unset."""
    merged: dict[str, str | None] = {**os.environ, **environment(condition, verifier.device)}
    return {name: value for name, value in merged.items() if value is not None}
