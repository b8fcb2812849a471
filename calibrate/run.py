"""Runs a plan: fresh processes side by side, every score into the store, resumable at any time.

The store has one writer, this process; each condition's process is read by a thread that hands its
scores over a queue. What is stored is not computed again, and a process of which all is stored is
not started. An interrupt, or an error in one process, ends them all and keeps what is stored.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from queue import SimpleQueue
from typing import Protocol

from calibrate.compositions import Composition, batches_cost
from calibrate.config import CalibrationConfig
from calibrate.observations import ObservationStore, ProcessFacts, StoredRow
from calibrate.plan import ProcessPlan, plan_processes, process_compositions
from harness import machine
from harness.conditions.batching import Batch, RowShape
from harness.decisions import row_texts
from harness.errors import UnsupportedConditionError, WorkerError
from harness.messages import Scored
from harness.records.decision import Decision
from harness.records.document import Record
from harness.records.engine import Endpoint
from harness.records.verifier import Device
from harness.runner import ConditionProcess
from harness.verifiers import EncodedRow

__all__ = ["Progress", "run_plan", "run_processes", "shapes_of", "stored_rows"]

Stored = Mapping[str, int]
"""Composition -> how many of its batches are stored, for one process."""


class Progress(Protocol):
    """What a run tells a person while it goes on."""

    def planned(self, process_id: str, cost: int, done: int) -> None:
        """A process is ready: its work in padded tokens, and how much of it was stored before."""

    def advanced(self, process_id: str, cost: int) -> None:
        """Some padded tokens are done and stored."""


class _Planned(Record, frozen=True, kw_only=True):
    process_id: str
    facts: ProcessFacts
    rows: tuple[StoredRow, ...]
    compositions: tuple[Composition, ...]


class _Done(Record, frozen=True, kw_only=True):
    process_id: str
    composition: str
    number: int
    batch: Batch
    scored: Scored


class _Ended(Record, frozen=True, kw_only=True):
    process_id: str


_Message = _Planned | _Done | _Ended


def run_plan(
    config: CalibrationConfig,
    decisions: tuple[Decision, ...],
    store: ObservationStore,
    progress: Progress,
) -> None:
    """Run whatever the store does not hold yet of the planned processes; see `run_processes`."""
    run_processes(plan_processes(config, len(decisions)), config, decisions, store, progress)


def run_processes(
    plans: Sequence[ProcessPlan],
    config: CalibrationConfig,
    decisions: tuple[Decision, ...],
    store: ObservationStore,
    progress: Progress,
) -> None:
    """Run whatever the store does not hold yet of `plans`.

    Raises what a condition's process raises, and StoreError when the build has changed since the
    run was begun; all that was stored stays.
    """
    stored = {plan.process_id: store.num_batches(plan.process_id) for plan in plans}
    known = store.rows()
    open_plans = []
    for plan in plans:
        compositions = _known_compositions(config, plan, decisions, known)
        if compositions and _is_complete(compositions, stored[plan.process_id]):
            cost = _cost(compositions)
            progress.planned(plan.process_id, cost, cost)
        else:
            open_plans.append(plan)
    run = _Run(config, decisions, stored)
    with run.started(open_plans):
        for message in run.messages(len(open_plans)):
            _store(message, store, progress, stored)


def stored_rows(decisions: Sequence[Decision], rows: Sequence[EncodedRow]) -> tuple[StoredRow, ...]:
    """Return the rows with the decisions and branches they come from."""
    names = [(d.decision_id, b.branch_id) for d in decisions for b in d.branches]
    return tuple(
        StoredRow(
            decision_id=decision_id,
            branch_id=branch_id,
            num_tokens=len(row.token_ids),
            num_dropped=row.num_dropped,
            content_digest=row.content_digest,
        )
        for (decision_id, branch_id), row in zip(names, rows, strict=True)
    )


def shapes_of(rows: Sequence[StoredRow]) -> tuple[RowShape, ...]:
    """Return what a plan may know of the rows."""
    return tuple(RowShape(num_tokens=r.num_tokens, decision_id=r.decision_id) for r in rows)


def _known_compositions(
    config: CalibrationConfig,
    plan: ProcessPlan,
    decisions: Sequence[Decision],
    rows: Sequence[StoredRow],
) -> tuple[Composition, ...]:
    """Return what a process is to run, if enough rows are stored to tell, else nothing."""
    num_rows = sum(len(decision.branches) for decision in decisions[: plan.num_decisions])
    if len(rows) < num_rows:
        return ()
    return process_compositions(config, plan, shapes_of(rows[:num_rows]))


def _is_complete(compositions: Sequence[Composition], stored: Stored) -> bool:
    return all(stored.get(c.name, 0) == len(c.batches) for c in compositions)


def _cost(compositions: Sequence[Composition]) -> int:
    return sum(composition.cost for composition in compositions)


def _store(
    message: _Message, store: ObservationStore, progress: Progress, stored: Mapping[str, Stored]
) -> None:
    if isinstance(message, _Planned):
        store.settle_process(message.process_id, message.facts, message.rows)
        before = stored[message.process_id]
        done = sum(batches_cost(c.batches[: before.get(c.name, 0)]) for c in message.compositions)
        progress.planned(message.process_id, _cost(message.compositions), done)
    elif isinstance(message, _Done):
        rows = message.batch.rows
        store.append(message.process_id, message.composition, message.number, rows, message.scored)
        progress.advanced(message.process_id, batches_cost([message.batch]))


def num_processes(config: CalibrationConfig) -> int:
    """Return how many condition processes run side by side."""
    if isinstance(config.verifier.engine, Endpoint):
        return 1  # two would be in one server together
    if config.processes is not None:
        return config.processes
    if config.verifier.device is Device.CUDA:
        return 1
    threads = max(arm.reduction_order.num_threads or machine.num_cores() for arm in config.arms)
    return max(machine.num_cores() // threads, 1)


class _Run:
    """The threads that read the processes, and the queue they feed."""

    def __init__(
        self,
        config: CalibrationConfig,
        decisions: tuple[Decision, ...],
        stored: Mapping[str, Stored],
    ) -> None:
        self._config, self._decisions, self._stored = config, decisions, stored
        self._queue: SimpleQueue[_Message | BaseException] = SimpleQueue()
        self._stop = threading.Event()

    @contextmanager
    def started(self, plans: Sequence[ProcessPlan]) -> Iterator[None]:
        """Run `plans` in threads; on the way out stop them all and wait for them."""
        pool = ThreadPoolExecutor(num_processes(self._config))
        try:
            for plan in plans:
                pool.submit(self._serve, plan)
            yield
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)

    def messages(self, num_plans: int) -> Iterator[_Message]:
        """Yield what the processes send until all have ended; raise what one of them raised."""
        while num_plans:
            message = self._queue.get()
            if isinstance(message, BaseException):
                raise message
            num_plans -= isinstance(message, _Ended)
            yield message

    def _serve(self, plan: ProcessPlan) -> None:
        try:
            with suppress(UnsupportedConditionError) if plan.is_optional else nullcontext():
                self._score(plan)
            self._queue.put(_Ended(process_id=plan.process_id))
        except WorkerError as error:
            advice = "all that was scored is stored; run again to resume"
            problem = f"{plan.process_id}: {error}".rstrip()
            self._queue.put(WorkerError(f"{problem}\n{advice}"))
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            self._queue.put(error)

    def _score(self, plan: ProcessPlan) -> None:
        decisions = self._decisions[: plan.num_decisions]
        with ConditionProcess(
            self._config.verifier, plan.condition, row_texts(decisions)
        ) as process:
            ready = process.ready()
            rows = stored_rows(decisions, ready.rows)
            chosen = process_compositions(self._config, plan, shapes_of(rows))
            facts = ProcessFacts(build=ready.build, condition=ready.condition)
            self._queue.put(
                _Planned(process_id=plan.process_id, facts=facts, rows=rows, compositions=chosen)
            )
            for composition in chosen:
                self._score_composition(plan.process_id, composition, process)

    def _score_composition(
        self, process_id: str, composition: Composition, process: ConditionProcess
    ) -> None:
        start = self._stored[process_id].get(composition.name, 0)
        batches = composition.batches[start:]
        for number, (batch, scored) in enumerate(
            zip(batches, process.run(batches), strict=True), start
        ):
            if self._stop.is_set():
                raise InterruptedError(process_id)
            self._queue.put(
                _Done(
                    process_id=process_id,
                    composition=composition.name,
                    number=number,
                    batch=batch,
                    scored=scored,
                )
            )
