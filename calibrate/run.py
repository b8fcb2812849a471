"""Runs a plan: fresh processes side by side, every score into the store, resumable at any time.

The store has one writer, this process; each condition's process is read by a thread that hands its
scores over a queue. What is stored is skipped when the run is started again. An interrupt stops the
processes at once and keeps what is stored.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from calibrate.config import CalibrationConfig
from calibrate.observations import ObservationStore, ProcessFacts, StoredRow
from calibrate.plan import Composition, ProcessPlan, plan_compositions, plan_processes
from harness import machine
from harness.conditions.batching import Batch, RowShape
from harness.decisions import row_texts
from harness.records.decision import Decision
from harness.records.document import Record
from harness.records.verifier import Device
from harness.runner import ConditionProcess
from harness.verifiers import EncodedRow

__all__ = ["Progress", "run_plan", "shapes_of", "stored_rows"]


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
    scores: tuple[float, ...]


class _Ended(Record, frozen=True, kw_only=True):
    process_id: str


_Message = _Planned | _Done | _Ended


def run_plan(
    config: CalibrationConfig,
    decisions: tuple[Decision, ...],
    store: ObservationStore,
    progress: Progress,
) -> None:
    """Run whatever the store does not hold yet.

    Raises what a condition's process raises, and StoreError when the build has changed since the
    run was begun; all that was stored stays.
    """
    plans = plan_processes(config, len(decisions))
    run = _Run(config, decisions, {p.process_id: store.num_batches(p.process_id) for p in plans})
    with run.started(plans, _num_processes(config)):
        for message in run.messages(len(plans)):
            _store(message, store, progress, run.done)


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


def _store(
    message: _Message, store: ObservationStore, progress: Progress, done: dict[str, dict[str, int]]
) -> None:
    if isinstance(message, _Planned):
        store.settle_rows(message.rows)
        store.settle_process(message.process_id, message.facts)
        before = done[message.process_id]
        stored = sum(_cost(c.batches[: before.get(c.name, 0)]) for c in message.compositions)
        progress.planned(message.process_id, sum(c.cost for c in message.compositions), stored)
    elif isinstance(message, _Done):
        rows = message.batch.rows
        store.append(message.process_id, message.composition, message.number, rows, message.scores)
        progress.advanced(message.process_id, _cost([message.batch]))


def _cost(batches: Sequence[Batch]) -> int:
    return sum(len(batch.rows) * batch.width for batch in batches)


def _num_processes(config: CalibrationConfig) -> int:
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
        done: dict[str, dict[str, int]],
    ) -> None:
        self.done = done
        self._config, self._decisions = config, decisions
        self._queue: queue.Queue[_Message | BaseException] = queue.Queue(maxsize=1000)
        self._stop = threading.Event()

    @contextmanager
    def started(self, plans: Sequence[ProcessPlan], num_processes: int) -> Iterator[None]:
        """Run `plans` in threads; on the way out stop them all and wait for them."""
        with ThreadPoolExecutor(num_processes) as pool:
            try:
                for plan in plans:
                    pool.submit(self._serve, plan)
                yield
            finally:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                self._drain(pool)

    def messages(self, num_plans: int) -> Iterator[_Message]:
        """Yield what the processes send until all have ended; raise what one of them raised."""
        while num_plans:
            message = self._queue.get()
            if isinstance(message, BaseException):
                raise message
            num_plans -= isinstance(message, _Ended)
            yield message

    def _drain(self, pool: ThreadPoolExecutor) -> None:
        """Let threads that wait for room in the queue see that they are to stop."""
        waiting = threading.Thread(target=pool.shutdown)
        waiting.start()
        while waiting.is_alive():
            while not self._queue.empty():
                self._queue.get_nowait()
            waiting.join(0.05)

    def _serve(self, plan: ProcessPlan) -> None:
        try:
            self._score(plan)
            self._queue.put(_Ended(process_id=plan.process_id))
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            self._queue.put(error)

    def _score(self, plan: ProcessPlan) -> None:
        decisions = self._decisions[: plan.num_decisions]
        texts = row_texts(decisions)
        with ConditionProcess(self._config.verifier, plan.condition, texts) as process:
            ready = process.ready()
            rows = stored_rows(decisions, ready.rows)
            arm = self._config.arms[plan.arm]
            every = plan_compositions(shapes_of(rows), arm, self._config.sweep, self._config.seed)
            chosen = plan.chosen(every)
            facts = ProcessFacts(build=ready.build, condition=ready.condition)
            self._put(plan, facts, rows, chosen)
            for composition in chosen:
                self._score_composition(plan.process_id, composition, process)

    def _put(
        self,
        plan: ProcessPlan,
        facts: ProcessFacts,
        rows: tuple[StoredRow, ...],
        compositions: tuple[Composition, ...],
    ) -> None:
        self._queue.put(
            _Planned(process_id=plan.process_id, facts=facts, rows=rows, compositions=compositions)
        )

    def _score_composition(
        self, process_id: str, composition: Composition, process: ConditionProcess
    ) -> None:
        start = self.done[process_id].get(composition.name, 0)
        batches = composition.batches[start:]
        for number, (batch, scores) in enumerate(
            zip(batches, process.score(batches), strict=True), start
        ):
            if self._stop.is_set():
                raise InterruptedError(process_id)
            self._queue.put(
                _Done(
                    process_id=process_id,
                    composition=composition.name,
                    number=number,
                    batch=batch,
                    scores=scores,
                )
            )
