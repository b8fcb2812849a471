"""What recording costs a vLLM engine: time against the stock scheduler, and bytes on the disk.

Run ``scripts/vllm && .venv-vllm/bin/python -m benchmarks.serving``. Two engines in one process hold
the same model, one with vLLM's own scheduler and one with the recording one. In turns each serves
64 requests at once; the turns alternate, and each is measured in this thread's processor seconds,
so a busy machine touches neither more than the other. ``inside`` is the share of the recording
engine's time that its scheduler adds to vLLM's own, measured in place, without the model's noise.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from harness.serving.history import History
from harness.serving.step_log import read_log
from tests.serving.engines import Asked, asked, generate, make_engine, write_model

NUM_REQUESTS = 64
WORK = {"generate": (32, 64), "score": (1, 64)}
"""Tokens generated, and the longest prompt."""


def main(
    rounds: Annotated[int, typer.Option(help="Turns of each engine.")] = 9,
    width: Annotated[int, typer.Option(help="Inner width of the model's layers.")] = 3072,
) -> None:
    """Print the figures as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model", width)
        stock = make_engine(model, folder / "none", scheduler_cls=None, additional_config={})
        settings = {"scorepin": {"log": str(folder / "log")}}
        recording = make_engine(model, folder / "log", additional_config=settings)
        found = {
            work: _measure(stock, recording, folder / "log" / "engine-0", work, rounds)
            for work in WORK
        }
        typer.echo(json.dumps({"num_concurrent": NUM_REQUESTS, **found}, indent=2))


def _measure(stock: Any, recording: Any, log: Path, work: str, rounds: int) -> dict[str, float]:
    num_tokens, longest = WORK[work]
    requests = asked(1, NUM_REQUESTS, num_tokens=(num_tokens,), longest=longest)
    engines = {"stock": stock, "recording": recording}
    times: dict[str, list[float]] = {name: [] for name in engines}
    before = _size(log)
    with _Inside() as inside:
        for turn in range(rounds + 1):
            for name in list(engines) if turn % 2 else list(reversed(engines)):
                times[name].append(_seconds(engines[name], requests, f"{work}-{turn}."))
    num_slots, num_bytes = (now - then for now, then in zip(_size(log), before, strict=True))
    ratios = [
        one / other for one, other in zip(times["recording"][1:], times["stock"][1:], strict=True)
    ]  # the first turn warms up
    return {
        "cost_median": round(statistics.median(ratios) - 1, 4),
        "cost_lowest": round(min(ratios) - 1, 4),
        "cost_highest": round(max(ratios) - 1, 4),
        "inside": round(inside.seconds / sum(times["recording"]), 4),
        "inside_us_per_step": round(1e6 * inside.seconds / inside.num_steps, 1),
        "stock_requests_per_s": round(NUM_REQUESTS / statistics.median(times["stock"]), 1),
        "bytes_per_request_step": round(num_bytes / num_slots, 1),
        "num_request_steps": num_slots,
    }


def _seconds(engine: Any, requests: dict[str, Asked], prefix: str) -> float:
    start = time.thread_time()
    generate(engine, requests, [(0, name) for name in requests], prefix=prefix)
    return time.thread_time() - start


def _size(log: Path) -> tuple[int, int]:
    """Return the slots in a log, and its bytes."""
    history = History().feed(read_log(log))
    steps = history.between(0, history.num_steps - 1)
    num_bytes = sum(path.stat().st_size for path in log.glob("steps-*.log"))
    return sum(len(step.slots) for step in steps), num_bytes


class _Inside:
    """Counts, while it is entered, the seconds that a recording scheduler adds to its base's."""

    def __init__(self) -> None:
        self.seconds, self.num_steps = 0.0, 0

    def __enter__(self) -> Self:
        from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - after its settings

        from harness.serving.scheduler import RecordingScheduler  # noqa: PLC0415

        self._undo: list[tuple[Any, str, Any]] = []
        for name in ("schedule", "update_from_output"):
            self._time(RecordingScheduler.__mro__[1], RecordingScheduler, name, +1)
            self._time(Scheduler, RecordingScheduler, name, -1)
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, real in self._undo:
            setattr(owner, name, real)

    def _time(self, owner: Any, counted: type, name: str, sign: int) -> None:
        real = getattr(owner, name)

        def timed(scheduler: Any, *args: Any) -> Any:
            start = time.thread_time()
            try:
                return real(scheduler, *args)
            finally:
                if isinstance(scheduler, counted):
                    self.seconds += sign * (time.thread_time() - start)
                    self.num_steps += sign > 0 and name == "schedule"

        self._undo.append((owner, name, real))
        setattr(owner, name, timed)


if __name__ == "__main__":
    typer.run(main)
