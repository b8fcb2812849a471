"""Workers forked from one process that has imported the libraries already.

The same worker, fresh each time and under the environment of its condition, without the seconds of
import: for tests that start many. It imports little, since every fork imports it.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import pytest

from harness import runner, worker

_LOCK = threading.Lock()  # a start looks after every child, and a status can be read only once
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "tests.calibrate.forked_workers",
        "harness.verifiers.transformers",
        "transformers.models.llama.modeling_llama",
        "transformers.models.mixtral.modeling_mixtral",
        "transformers.models.auto.modeling_auto",
    ]
)


class ForkedWorker:
    """A worker's process, as `harness.runner` uses one of `subprocess`."""

    def __init__(
        self, args: list[str], *, stdin: int, stdout: int, stderr: Any, env: dict[str, str]
    ) -> None:
        assert args[-1] == "harness.worker"
        assert stdin == stdout == subprocess.PIPE
        requests, mine = _FORKS.Pipe(duplex=False)
        answers, theirs = _FORKS.Pipe(duplex=False)
        errors = Connection(os.dup(stderr.fileno()))
        self._process = _FORKS.Process(target=_serve, args=(requests, theirs, errors, env))
        with _LOCK:
            self._process.start()
        self.stdin = os.fdopen(os.dup(mine.fileno()), "wb")
        self.stdout = os.fdopen(os.dup(answers.fileno()), "rb")
        for end in (requests, mine, answers, theirs, errors):
            end.close()

    def wait(self, timeout: float | None = None) -> int:
        ended = wait([self._process.sentinel], timeout)
        with _LOCK:
            status = self._process.exitcode
        if not ended or status is None:
            raise subprocess.TimeoutExpired("harness.worker", timeout or 0)
        return status

    def kill(self) -> None:
        self._process.kill()


def _serve(
    requests: Connection, answers: Connection, errors: Connection, env: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(env)
    for number, stream in enumerate((requests, answers, errors)):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.exit(worker.main())


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `harness.runner` fork its workers."""
    likeness = SimpleNamespace(
        Popen=ForkedWorker, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(runner, "subprocess", likeness)
