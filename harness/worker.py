"""The process of one condition: load, encode, score what is asked for, end.

Started by `harness.runner` as ``python -m harness.worker`` with its environment already set, since
half of the switches count only before a library starts. Speaks `harness.messages` on the standard
streams; whatever a library prints goes to standard error, and what it reads is empty. It ends when
its input does or nobody reads its answers, so it never outlives the process that started it.
"""

import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from harness.errors import ScorepinError
from harness.messages import Failed, Job, Ready, Run, Scored, receive, send
from harness.verifiers import open_verifier

__all__ = ["main"]


def main() -> int:
    """Serve one condition; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner is told; it closes our input
    requests, answers = _take_streams()
    try:
        _serve(requests, answers)
    except BrokenPipeError:
        return 1
    except Exception as error:
        send(answers, Failed(kind=type(error).__name__, message=str(error)))
        if not isinstance(error, ScorepinError):
            raise
        return 1
    return 0


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for messages alone: nothing else may read or print there."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    job = receive(requests)
    if not isinstance(job, Job):
        return
    verifier = open_verifier(job.verifier, job.condition)
    try:
        rows = verifier.encode(job.texts)
        build, condition = verifier.facts(), verifier.resolved()
        send(answers, Ready(build=build, condition=condition, rows=tuple(rows)))
        while isinstance(run := receive(requests), Run):
            for batch in run.batches:
                scores = verifier.score([rows[at] for at in batch.rows], batch.width, batch.side)
                send(answers, Scored(scores=tuple(scores)))
    finally:
        verifier.close()


if __name__ == "__main__":
    sys.exit(main())
