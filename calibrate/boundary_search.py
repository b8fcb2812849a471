"""Runs the boundary searches of a run: one fresh process an arm, before anything is planned.

What a search found is stored whole, so one that was cut short is done again and one that is stored
is not. The process settles its build and its rows in the store like any other of the run.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from calibrate.boundaries import is_searchable, search_arm
from calibrate.config import CalibrationConfig
from calibrate.observations import ObservationStore, ProcessFacts, StoredRow
from calibrate.run import num_processes, shapes_of, stored_rows
from harness.conditions.batching import Batch
from harness.decisions import row_texts
from harness.errors import WorkerError
from harness.records.decision import Decision
from harness.records.document import Record
from harness.records.tolerance import AxisSearch
from harness.runner import ConditionProcess

__all__ = ["run_searches", "searches_by_arm"]


class _Searched(Record, frozen=True, kw_only=True):
    process_id: str
    facts: ProcessFacts
    rows: tuple[StoredRow, ...]
    found: tuple[AxisSearch, ...]


def run_searches(
    config: CalibrationConfig, decisions: tuple[Decision, ...], store: ObservationStore
) -> None:
    """Search every arm that the store has no search of, and store what was found.

    Raises what a condition's process raises, and StoreError when the build has changed since the
    run was begun.
    """
    known = store.searches()
    arms = [at for at, name in _searched_arms(config).items() if name not in known]
    with _started(config, decisions, arms) as searches:
        for search in as_completed(searches):
            searched = search.result()
            store.settle_process(searched.process_id, searched.facts, searched.rows)
            store.append_search(searched.process_id, searched.found)


def searches_by_arm(
    config: CalibrationConfig, store: ObservationStore
) -> dict[int, tuple[AxisSearch, ...]]:
    """Return arm -> what its search found, of those that are stored."""
    known = store.searches()
    return {at: known[name] for at, name in _searched_arms(config).items() if name in known}


def _searched_arms(config: CalibrationConfig) -> dict[int, str]:
    """Return arm -> the process that searches it."""
    arms = enumerate(config.arms if config.sweep.search else ())
    return {at: f"arm-{at}/search" for at, arm in arms if is_searchable(arm)}


@contextmanager
def _started(
    config: CalibrationConfig, decisions: tuple[Decision, ...], arms: Sequence[int]
) -> Iterator[list[Future[_Searched]]]:
    """Search `arms` in threads; on the way out stop them all and wait for them."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(num_processes(config))
    try:
        yield [pool.submit(_search, config, decisions, at, stop) for at in arms]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _search(
    config: CalibrationConfig, decisions: tuple[Decision, ...], at: int, stop: threading.Event
) -> _Searched:
    arm, process_id = config.arms[at], _searched_arms(config)[at]
    try:
        with ConditionProcess(config.verifier, arm.condition, row_texts(decisions)) as process:
            ready = process.ready()

            def score(batches: Sequence[Batch]) -> list[tuple[float, ...]]:
                if stop.is_set():
                    raise InterruptedError(process_id)
                return list(process.score(batches))

            rows = stored_rows(decisions, ready.rows)
            return _Searched(
                process_id=process_id,
                facts=ProcessFacts(build=ready.build, condition=ready.condition),
                rows=rows,
                found=search_arm(shapes_of(rows), arm, config.sweep, score),
            )
    except WorkerError as error:
        raise WorkerError(f"{process_id}: {error}\nrun again to resume") from error
