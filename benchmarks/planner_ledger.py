"""How the branch ledger scales: ``python -m benchmarks.planner_ledger [--num-dependencies N]``.

Prints one JSON object; exit status 1 when a target is missed. Times are wall seconds; where it is
said, processor seconds, which other work on the machine does not stretch.

The ledger holds plans: a plan is 8 decisions in a row, a decision 4 branches of 16 steps, and a
step reads the two steps before it, the step that was promoted last, and a shared prompt. A plan's
last draft so depends on 8 x 16 steps in a chain: that is the typical depth.
Rollbacks are timed on hubs: one entry from which n others were computed, in layers of 100.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import insert

from harness.codec import canonical_bytes
from harness.planner.database import in_transaction, open_database
from harness.planner.ledger import (
    SHARED,
    BranchLedger,
    CacheKey,
    Closure,
    Draft,
    VerifierScore,
    Write,
)
from harness.planner.ledger.events import Event
from harness.planner.ledger.journal import Unwritten
from harness.planner.ledger.store import EVENTS, SCHEMA, open_ledger

NUM_DECISIONS, NUM_BRANCHES, NUM_STEPS = 8, 4, 16
PER_PLAN = NUM_DECISIONS * NUM_BRANCHES * (2 + 3 + 4 * (NUM_STEPS - 2))
"""Dependencies: a branch's first step has no step before it, its second has one."""
CLOSURE_TARGET_S = 1e-3
"""For the median of closure queries at typical depth."""
EXPONENTS = 0.8, 1.2
"""Within these, time ~ touched ** exponent counts as linear."""
LAYER = 100
FIRST = CacheKey(branch_id=SHARED, name="task")
PROMPT = CacheKey(branch_id=SHARED, name="prompt")
"""Read by every step: not one of its 10**5 readers may slow a query down."""


def branch_id(plan: int, decision: int, branch: int) -> str:
    """Return the name of a branch."""
    return f"p{plan}.d{decision}.b{branch}"


def step_key(plan: int, decision: int, branch: int, step: int) -> CacheKey:
    """Return the entry that a step wrote."""
    name = f"p{plan}.d{decision}.step-{step}"
    return CacheKey(branch_id=branch_id(plan, decision, branch), name=name)


def plan_writes(plan: int, decision: int, branch: int) -> Iterator[Write]:
    """Yield the writes of one branch."""
    before = step_key(plan, decision - 1, 0, NUM_STEPS - 1) if decision else FIRST
    for step in range(NUM_STEPS):
        recent = [step_key(plan, decision, branch, at) for at in (step - 1, step - 2) if at >= 0]
        reads = (*recent, before, PROMPT)
        key = step_key(plan, decision, branch, step)
        yield Write(branch_id=key.branch_id, name=key.name, reads=reads)


def fill(ledger: BranchLedger, num_plans: int) -> float:
    """Fill a ledger with plans; return the seconds that it took."""
    started = time.perf_counter()
    for plan in range(num_plans):
        for decision in range(NUM_DECISIONS):
            for branch in range(NUM_BRANCHES):
                ledger.open_branch(branch_id(plan, decision, branch))
            writes = [plan_writes(plan, decision, branch) for branch in range(NUM_BRANCHES)]
            ledger.record_dependencies(write for steps in writes for write in steps)
            ledger.promote(branch_id(plan, decision, 0))
    return time.perf_counter() - started


def last_draft(plan: int) -> Draft:
    """Return the draft at the end of a plan."""
    last = step_key(plan, NUM_DECISIONS - 1, 0, NUM_STEPS - 1)
    return Draft(draft_id=f"draft-{plan}", branch_id=last.branch_id, reads=(last,))


def timed_queries(ledger: BranchLedger, plans: list[int]) -> dict[str, Any]:
    """Return what a closure query and a decision take."""
    closures: list[Closure] = []
    queries, decisions = [], []
    for plan in plans:
        started = time.perf_counter()
        closures.append(ledger.closure(last_draft(plan)))
        queries.append(time.perf_counter() - started)
        score = VerifierScore(value=1.0, closure_digest=closures[-1].digest)
        started = time.perf_counter()
        ledger.accept_draft(last_draft(plan), score)
        decisions.append(time.perf_counter() - started)
    sizes = {len(closure.keys) for closure in closures}
    if sizes != {NUM_DECISIONS * NUM_STEPS + 3}:
        raise AssertionError(f"closures of {sizes} keys")
    return {
        "num_queries": len(plans),
        "num_keys": sizes.pop(),
        "closure_median_s": statistics.median(queries),
        "closure_p99_s": statistics.quantiles(queries, n=100)[98],
        "accept_draft_median_s": statistics.median(decisions),
    }


def hub_writes(name: str, num_dependents: int) -> Iterator[Write]:
    """Yield an entry and all that is computed from it, layer by layer."""
    hub = CacheKey(branch_id=name, name="hub")
    yield Write(branch_id=name, name="hub")
    for at in range(num_dependents):
        above = CacheKey(branch_id=f"{name}-reader", name=f"e{at - LAYER}")
        reads = (hub,) if at < LAYER else (above,)
        yield Write(branch_id=f"{name}-reader", name=f"e{at}", reads=reads)


def timed_sweep(ledger: BranchLedger, num_dependents: int) -> float:
    """Return the processor seconds of a rollback that evicts `num_dependents` entries."""
    name = f"hub-{num_dependents}"
    ledger.open_branch(name)
    ledger.open_branch(f"{name}-reader")
    for writes in batched_writes(hub_writes(name, num_dependents)):
        ledger.record_dependencies(writes)
    gc.collect()
    started = time.process_time()
    ledger.rollback(name)
    took = time.process_time() - started
    last = CacheKey(branch_id=f"{name}-reader", name=f"e{num_dependents - 1}")
    if not ledger.entry(last).evicted:
        raise AssertionError(f"the last of {num_dependents} dependents was not evicted")
    return took


def batched_writes(writes: Iterator[Write]) -> Iterator[tuple[Write, ...]]:
    """Yield writes by the thousand."""
    while batch := tuple(islice(writes, 1000)):
        yield batch


def exponent(times: dict[int, float]) -> float:
    """Return the slope of log(time) over log(size): 1 for linear."""
    sizes, seconds = [math.log(n) for n in times], [math.log(t) for t in times.values()]
    return statistics.linear_regression(sizes, seconds).slope


class Remembered(Unwritten):
    """A journal in memory, from which a database is filled at once."""

    def __init__(self) -> None:
        """Start empty."""
        self.events: list[Event] = []

    def append(self, number: int, event: Event) -> None:  # noqa: ARG002 - the protocol's
        """Keep the event."""
        self.events.append(event)


def timed_store(num_plans: int) -> dict[str, float]:
    """Return what opening a ledger in SQLite, and one durable write to it, take."""
    journal = Remembered()
    fill(BranchLedger(journal), num_plans)
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'ledger.db'}"
        insert_all(url, journal.events)
        started, used = time.perf_counter(), time.process_time()
        with open_ledger(url) as ledger:
            open_s, open_cpu_s = time.perf_counter() - started, time.process_time() - used
            writes = []
            for at in range(200):
                started = time.perf_counter()
                ledger.record_dependency(branch_id(0, 0, 1), f"single-{at}")
                writes.append(time.perf_counter() - started)
    return {
        "open_s": open_s,
        "open_processor_s": open_cpu_s,
        "one_durable_write_median_s": statistics.median(writes),
    }


def insert_all(url: str, events: list[Event]) -> None:
    """Fill a database in one transaction: what is measured is opening it."""
    rows = [
        {"ledger_id": "main", "number": number, "payload": canonical_bytes(event).decode()}
        for number, event in enumerate(events, start=1)
    ]
    engine = open_database(url, SCHEMA)
    in_transaction(engine, lambda connection: connection.execute(insert(EVENTS), rows))
    engine.dispose()


def run(num_dependencies: int, sweep_sizes: list[int]) -> dict[str, Any]:
    """Return the figures."""
    num_plans = max(2, math.ceil(num_dependencies / PER_PLAN))
    small, large = BranchLedger(), BranchLedger()
    fill(small, max(2, num_plans // 10))
    fill_s = fill(large, num_plans)
    plans = list(range(0, num_plans, max(1, num_plans // 400)))
    queries = timed_queries(large, plans)
    sweeps = {size: timed_sweep(large, size) for size in sweep_sizes}
    in_small = {size: timed_sweep(small, size) for size in sweep_sizes}
    slope = exponent(sweeps)
    del small, large
    met = {
        "closure": queries["closure_median_s"] < CLOSURE_TARGET_S,
        "sweep_is_linear": EXPONENTS[0] <= slope <= EXPONENTS[1],
    }
    return {
        "benchmark": "branch_ledger",
        "num_dependencies": num_plans * PER_PLAN,
        "fill_s": fill_s,
        "queries": queries,
        "closure_target_s": CLOSURE_TARGET_S,
        "sweep_processor_s": sweeps,
        "sweep_processor_s_in_a_tenth_of_the_ledger": in_small,
        "sweep_exponent": slope,
        "sqlite": timed_store(num_plans),
        "met": met,
    }


def main() -> int:
    """Print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description="How the branch ledger scales.")
    parser.add_argument("--num-dependencies", type=int, default=1_000_000)
    sizes = [1000, 3000, 10_000, 30_000, 100_000, 300_000]
    parser.add_argument("--sweep-sizes", type=int, nargs="+", default=sizes)
    arguments = parser.parse_args()
    figures = run(arguments.num_dependencies, arguments.sweep_sizes)
    print(json.dumps(figures, indent=2))
    return 0 if all(figures["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
