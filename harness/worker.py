"""The process of one condition: load, encode, score what is asked for, end.

Started by `harness.runner` as ``python -m harness.worker`` with its environment already set, since
half of the switches count only before a library starts. Speaks `harness.messages` on the standard
streams; whatever a library prints goes to standard error, and what it reads is empty. It ends when
its input does or nobody reads its answers, so it never outlives the process that started it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from harness.conditions.batching import Batch
from harness.errors import ScorepinError, UnsupportedConditionError
from harness.messages import (
    Failed,
    Job,
    Probe,
    Probed,
    Ready,
    Run,
    Scored,
    Trace,
    Traced,
    receive,
    send,
)
from harness.orders.fingerprint import OrderProbe
from harness.records.engine import Transformers
from harness.verifiers import (
    EncodedRow,
    EngineVerifier,
    Verifier,
    open_engine,
    open_verifier,
)
from harness.verifiers.divergence import Divergence

if TYPE_CHECKING:
    from harness.orders.model_orders import Probeable
    from harness.verifiers.trace import Traceable

__all__ = ["main"]

AnyVerifier = Verifier | EngineVerifier


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
    is_engine = not isinstance(job.verifier.engine, Transformers)
    verifier: AnyVerifier = (open_engine if is_engine else open_verifier)(
        job.verifier, job.condition
    )
    try:
        rows = verifier.encode(job.texts)
        build, condition = verifier.facts(), verifier.resolved()
        send(answers, Ready(build=build, condition=condition, rows=tuple(rows)))
        while isinstance(request := receive(requests), Run | Trace | Probe):
            if isinstance(request, Probe):
                send(answers, Probed(found=_probe(verifier, rows, request)))
                continue
            if isinstance(request, Trace):
                send(answers, Traced(divergence=_trace(verifier, rows, request)))
                continue
            for batch in request.batches:
                send(answers, _run(verifier, [rows[at] for at in batch.rows], batch))
    finally:
        verifier.close()


def _run(verifier: AnyVerifier, rows: Sequence[EncodedRow], batch: Batch) -> Scored:
    if batch.flight is None:
        scores = cast("Verifier", verifier).score(rows, batch.width, batch.side, batch.num_rows)
        return Scored(scores=tuple(scores))
    if not hasattr(verifier, "serve"):
        advice = "take an engine that schedules by itself, as engine: {name: vllm}"
        raise UnsupportedConditionError(f"batching in_flight: no scheduler runs here; {advice}")
    served = cast("EngineVerifier", verifier).serve(rows, batch.flight)
    return Scored(
        scores=served.scores, steps=served.steps, generated=served.generated, note=served.note
    )


def _probe(verifier: AnyVerifier, rows: Sequence[EncodedRow], request: Probe) -> OrderProbe:
    if not hasattr(verifier, "orders"):
        what = "the sums of this verifier cannot be probed"
        raise UnsupportedConditionError(f"{what}: only models of transformers can")
    return cast("Probeable", verifier).orders.probe(rows, request.batches)


def _trace(verifier: AnyVerifier, rows: Sequence[EncodedRow], request: Trace) -> Divergence:
    from harness.verifiers.trace import RowInBatch, trace  # noqa: PLC0415 - rarely asked for

    if not hasattr(verifier, "watched"):
        what = "this verifier cannot be watched module by module"
        raise UnsupportedConditionError(f"{what}: only models of transformers can")
    sides = [
        RowInBatch(batch, [rows[at] for at in batch.rows], batch.rows.index(request.row))
        for batch in (request.left, request.right)
    ]
    return trace(cast("Traceable", verifier), *sides)


if __name__ == "__main__":
    sys.exit(main())
