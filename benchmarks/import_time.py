"""How much longer the planner's import takes than a bare Python: prints JSON.

Run it with ``python -m benchmarks.import_time``. Fresh processes in alternation, so that a busy
machine slows both alike; byte code is cached, as it is after an install. What the import costs is
the median of the differences within pairs; `extra_cpu_ms` is the same in processor time, which
other work on the machine hardly changes.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

BUDGET_MS = 60.0
"""What the planner's import may take more than a bare Python."""


@dataclass(frozen=True, kw_only=True)
class _Took:
    wall_ms: float
    cpu_ms: float


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="pairs of processes to time")
    num_pairs = parser.parse_args().pairs
    for statement in ("pass", "import harness"):
        _start(statement)  # writes the byte code
    pairs = [(_start("pass"), _start("import harness")) for _ in range(num_pairs)]
    wall = [with_import.wall_ms - bare.wall_ms for bare, with_import in pairs]
    cpu = [with_import.cpu_ms - bare.cpu_ms for bare, with_import in pairs]
    bare_ms = statistics.median(bare.wall_ms for bare, _ in pairs)
    planner_ms = statistics.median(with_import.wall_ms for _, with_import in pairs)
    result = {
        "bare_ms": round(bare_ms, 1),
        "budget_ms": BUDGET_MS,
        "extra_cpu_ms": round(statistics.median(cpu), 1),
        "extra_ms": round(statistics.median(wall), 1),
        "num_pairs": num_pairs,
        "planner_ms": round(planner_ms, 1),
        "ratio": round(planner_ms / bare_ms, 2),
    }
    print(json.dumps(result, indent=2))


def _start(statement: str) -> _Took:
    """Run `statement` in a fresh process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start, before = time.perf_counter(), _children_cpu_s()
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    wall_s, cpu_s = time.perf_counter() - start, _children_cpu_s() - before
    return _Took(wall_ms=1000 * wall_s, cpu_ms=1000 * cpu_s)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
