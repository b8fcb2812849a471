"""What invariance costs: batching modes and reduction orders side by side, in one run.

Run ``python -m benchmarks.batching``; with ``--device cuda`` on a GPU. Each mode has a fresh
process that holds the same model and scores the same rows through the harness; the modes take
turns, in another order each round, so that a busy machine slows all of them, and ratios are of
times of one round. Beside each stands how far its scores move: the range of a row's score over
several memberships of that mode, shuffled and part-full ones among them.

* ``dynamic``: sorted by length, each batch padded to its longest row: the throughput to compare to;
* ``lanes``: planned from the same lengths;
* ``solo``: each row alone;
* ``split_k``, ``batch_invariant``: the batches of ``dynamic`` under another reduction order.
"""

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from calibrate.config import load_config
from calibrate.lanes import plan_lanes
from calibrate.run import shapes_of, stored_rows
from harness import machine
from harness.conditions.batching import Batch, RowShape, plan_batches
from harness.conditions.condition import Condition
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.decisions import read_decisions, row_texts
from harness.errors import UnsupportedConditionError
from harness.records.batching import Batching, Lanes, Order, Padded, Solo
from harness.records.document import Record
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device
from harness.runner import ConditionProcess

REFERENCE = "dynamic"
NUM_SHUFFLES = 2


class Mode(Record, frozen=True, kw_only=True):
    """A batching mode under a reduction order."""

    name: str
    """What it is called."""
    batching: Batching
    """The batches that are timed."""
    order: ReductionOrderSpec
    """The order of summation."""


class Timed(Record, frozen=True, kw_only=True):
    """A mode that runs, and how long it took."""

    mode: Mode
    """Which."""
    process: Any
    """Its `ConditionProcess`."""
    batches: tuple[Batch, ...]
    """What is timed."""
    seconds: list[float]
    """One a round."""


def main(  # noqa: PLR0913 - options
    *,
    config: Annotated[Path, typer.Option(help="Verifier, decisions, first arm's order.")] = Path(
        "configs/demo.yaml"
    ),
    model: Annotated[str | None, typer.Option(help="Another model: folder or hub name.")] = None,
    device: Annotated[Device | None, typer.Option(help="Another device.")] = None,
    precision: Annotated[PrecisionName, typer.Option(help="Precision mode.")] = (
        PrecisionName.BFLOAT16
    ),
    num_decisions: Annotated[int, typer.Option("--decisions", help="Decisions to score.")] = 100,
    rounds: Annotated[int, typer.Option(help="Turns of each mode.")] = 7,
    max_rows: Annotated[int, typer.Option(help="Rows in a batch and in a lane.")] = 32,
    max_lanes: Annotated[int, typer.Option(help="Lanes at most.")] = 8,
    only: Annotated[list[str] | None, typer.Option(help="These modes; default all.")] = None,
) -> None:
    """Print throughput and movement of each mode as JSON."""
    loaded = load_config(config)
    verifier = replace(
        loaded.verifier,
        model=model or loaded.verifier.model,
        device=device or loaded.verifier.device,
    )
    decisions = read_decisions(loaded.decisions, num_decisions)
    vendor, skipped = loaded.arms[0].reduction_order, dict[str, str]()
    with ExitStack() as stack:

        def start(order: ReductionOrderSpec) -> tuple[ConditionProcess, tuple[RowShape, ...]]:
            condition = Condition(precision=precision, reduction_order=order)
            process = ConditionProcess(verifier, condition, row_texts(decisions))
            found = stored_rows(decisions, stack.enter_context(process).ready().rows)
            return process, shapes_of(found)

        reference, rows = start(vendor)
        timed = []
        for mode in _modes(rows, vendor, max_rows, max_lanes):
            if only and mode.name not in {REFERENCE, *only}:
                continue
            try:
                process = reference if mode.name == REFERENCE else start(mode.order)[0]
            except UnsupportedConditionError as error:
                skipped[mode.name] = str(error)
                continue
            batches = plan_batches(rows, mode.batching, 0)
            timed.append(Timed(mode=mode, process=process, batches=batches, seconds=[]))
        found = _measure(timed, rows, rounds)
    facts = machine.device_facts(verifier.device)
    about = {"model": verifier.model, "precision": precision, "device": facts.name}
    typer.echo(json.dumps({**about, **found, "skipped": skipped}, indent=2))


def _modes(
    rows: Sequence[RowShape], vendor: ReductionOrderSpec, max_rows: int, max_lanes: int
) -> list[Mode]:
    plan = plan_lanes([row.num_tokens for row in rows], rows=max_rows, max_lanes=max_lanes)
    dynamic = Padded(max_rows=max_rows, order=Order.LENGTH)
    split, invariant = (
        replace(vendor, name="split_k", split_k=4),
        replace(vendor, name="batch_invariant"),
    )
    return [
        Mode(name=REFERENCE, batching=dynamic, order=vendor),
        Mode(name="lanes", batching=Lanes(lanes=plan.lanes), order=vendor),
        Mode(name="solo", batching=Solo(), order=vendor),
        Mode(name="split_k", batching=dynamic, order=split),
        Mode(name="batch_invariant", batching=dynamic, order=invariant),
    ]


def _measure(timed: Sequence[Timed], rows: Sequence[RowShape], rounds: int) -> dict[str, Any]:
    movements = [_movement(one.process, one.mode.batching, rows) for one in timed]
    for number in range(rounds + 1):  # the first warms up
        turn = number % len(timed)
        for one in (*timed[turn:], *timed[:turn]):
            one.seconds.append(_seconds(one.process, one.batches))
    return _report(timed, movements, rows)


def _seconds(process: ConditionProcess, batches: Sequence[Batch]) -> float:
    start = time.perf_counter()
    for _ in process.score(batches):
        pass
    return time.perf_counter() - start


def _movement(
    process: ConditionProcess, batching: Batching, rows: Sequence[RowShape]
) -> dict[str, Any]:
    """Return the largest range of a row's score over memberships of one mode."""
    lowest, highest = [float("inf")] * len(rows), [float("-inf")] * len(rows)
    memberships = list(_memberships(batching, rows))
    for batches in memberships:
        for batch, scores in zip(batches, process.score(batches), strict=True):
            for row, score in zip(batch.rows, scores, strict=True):
                lowest[row] = min(lowest[row], score)
                highest[row] = max(highest[row], score)
    moved = [high - low for low, high in zip(lowest, highest, strict=True)]
    return {
        "largest": max(moved),
        "num_rows_moved": sum(by > 0 for by in moved),
        "num_memberships": len(memberships),
    }


def _memberships(batching: Batching, rows: Sequence[RowShape]) -> Iterator[tuple[Batch, ...]]:
    """Yield the timed batches, shuffled ones, and part-full ones of a third of the rows."""
    timed = plan_batches(rows, batching, 0)
    yield timed
    if isinstance(batching, Solo):
        yield tuple(random.Random(0).sample(timed, len(timed)))  # noqa: S311 - no secret
        return
    for seed in range(NUM_SHUFFLES):
        yield plan_batches(rows, replace(batching, order=Order.SHUFFLED), seed)
    rows_a_batch = batching.max_rows or max(len(batch.rows) for batch in timed)
    fewer = replace(batching, order=Order.SHUFFLED, max_rows=max(rows_a_batch // 3, 1))
    yield plan_batches(rows, fewer, NUM_SHUFFLES)


def _report(
    timed: Sequence[Timed], movements: Sequence[dict[str, Any]], rows: Sequence[RowShape]
) -> dict[str, Any]:
    num_tokens = sum(row.num_tokens for row in rows)
    reference = next(one.seconds[1:] for one in timed if one.mode.name == REFERENCE)
    modes: dict[str, Any] = {}
    for one, movement in zip(timed, movements, strict=True):
        seconds = one.seconds[1:]
        ratios = sorted(theirs / own for own, theirs in zip(seconds, reference, strict=True))
        modes[one.mode.name] = {
            "rows_per_s": round(len(rows) / statistics.median(seconds), 1),
            "tokens_per_s": round(num_tokens / statistics.median(seconds), 1),
            "throughput_ratio_median": round(statistics.median(ratios), 4),
            "throughput_ratio_lowest": round(ratios[0], 4),
            "throughput_ratio_highest": round(ratios[-1], 4),
            "padding_share": round(1 - num_tokens / sum(b.num_tokens for b in one.batches), 4),
            "num_shapes": len({(b.num_rows or len(b.rows), b.width) for b in one.batches}),
            "movement": movement,
        }
    return {"num_rows": len(rows), "num_tokens": num_tokens, "modes": modes}


if __name__ == "__main__":
    typer.run(main)
