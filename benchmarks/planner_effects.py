"""How long classify_trajectory takes: ``python -m benchmarks.planner_effects [--num-steps N]``.

Prints one JSON object: wall and processor seconds, best of the repeats, for a store in memory and
one in SQLite, with the target for the store in memory; exit status 1 when that is missed. Nine of
ten steps are side effects with a token that holds, and the last one has none: no step is spared a
rule. The machine's own noise shows as wall far above processor seconds.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import insert

from harness.planner.database import in_transaction, open_database
from harness.planner.effects import (
    EffectStore,
    MemoryEffectStore,
    SideEffectStep,
    StepEffect,
    Trajectory,
    classify_trajectory,
    recorded_step,
)
from harness.planner.effects.sql_store import EFFECTS, SCHEMA, SqlEffectStore
from harness.planner.effects.store import stored_effect

NOW, LATER = "2026-01-01T00:00:00+00:00", "2026-06-01T00:00:00+00:00"
TARGET_S = 1.0
"""For 100,000 steps and a store in memory."""


def a_step(number: int) -> SideEffectStep:
    """Return one step; every tenth is a read."""
    is_read = number % 10 == 0
    return recorded_step(
        step_id=f"step-{number}",
        tool="order",
        arguments={"item": number, "count": 2, "to": "acct-7"},
        effect=StepEffect.READ_ONLY if is_read else StepEffect.SIDE_EFFECT,
        token=None if is_read else f"token-{number}",
        payload={"id": f"ord-{number}", "status": "created", "total": 12.5, "lines": ["a", "b"]},
        expires_at=LATER,
    )


def in_memory(steps: list[SideEffectStep]) -> EffectStore:
    """Return a store in memory that holds the steps."""
    store = MemoryEffectStore()
    for step in steps:
        store.put(step)
    return store


def in_sqlite(steps: list[SideEffectStep], folder: Path) -> SqlEffectStore:
    """Fill a database in one transaction: what is measured is reading it."""
    url = f"sqlite:///{folder / 'effects.db'}"
    engine = open_database(url, SCHEMA)
    rows = [asdict(stored_effect(step)) for step in steps]
    in_transaction(engine, lambda connection: connection.execute(insert(EFFECTS), rows))
    engine.dispose()
    return SqlEffectStore(url)


def measured(trajectory: Trajectory, store: EffectStore, num_repeats: int) -> dict[str, float]:
    """Return the best times of classifying, after checking what came out."""
    wall, processor = [], []
    for _ in range(num_repeats):
        started, used = time.perf_counter(), time.process_time()
        audit = classify_trajectory(trajectory, store, now=NOW)
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
        if audit.boundary_index != len(trajectory.steps) - 1:
            raise AssertionError(f"the boundary is at {audit.boundary_index}, not at the last step")
    return {"wall_s": round(min(wall), 4), "processor_s": round(min(processor), 4)}


def run(num_steps: int, num_repeats: int) -> dict[str, Any]:
    """Return the figures."""
    steps = [a_step(number) for number in range(1, num_steps + 1)]
    steps[-1] = replace(steps[-1], token=None, effect=StepEffect.SIDE_EFFECT)
    trajectory = Trajectory(source="benchmark", steps=tuple(steps))
    held = [step for step in steps if step.token is not None]
    memory = measured(trajectory, in_memory(held), num_repeats)
    with TemporaryDirectory() as folder:
        database = in_sqlite(held, Path(folder))
        sqlite = measured(trajectory, database, num_repeats)
        database.close()
    target_s = TARGET_S * num_steps / 100_000
    return {
        "benchmark": "classify_trajectory",
        "num_steps": num_steps,
        "num_repeats": num_repeats,
        "memory": memory,
        "sqlite": sqlite,
        "target_s": target_s,
        "met": memory["wall_s"] < target_s,
    }


def main() -> int:
    """Print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description="How long classify_trajectory takes.")
    parser.add_argument("--num-steps", type=int, default=100_000)
    parser.add_argument("--num-repeats", type=int, default=5)
    arguments = parser.parse_args()
    figures = run(arguments.num_steps, arguments.num_repeats)
    print(json.dumps(figures, indent=2))
    return 0 if figures["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
