"""How long the reduction orders of a model take to measure: ``python -m benchmarks.probe``.

Prints one JSON object: wall and processor seconds for the full set of shapes of a config's first
arm, in a process of its own with the condition's environment, and what was found; exit status 1
when the budget is missed in processor seconds, which other work on the machine does not stretch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from calibrate.config import load_config
from harness.conditions.condition import environment
from harness.decisions import read_decisions, row_texts
from harness.verifiers.transformers import TransformersVerifier

BUDGET_S = 30.0
"""For the demo's full set of shapes."""


def main() -> None:
    """Measure in a fresh process, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(_measured(given.config)))
        return
    config = load_config(given.config)
    changed = environment(config.arms[0].condition, config.verifier.device)
    with tempfile.TemporaryDirectory() as cache:
        merged = {**os.environ, **changed, "SCOREPIN_CACHE": cache}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.probe", "--inside", "--config", str(given.config)],
            env={name: value for name, value in merged.items() if value is not None},
            capture_output=True,
            text=True,
            check=True,
        )
    result = json.loads(done.stdout)
    print(json.dumps(result, indent=2))
    sys.exit(result["processor_s"] > BUDGET_S)


def _measured(path: Path) -> dict[str, Any]:
    config = load_config(path)
    verifier = TransformersVerifier(config.verifier, config.arms[0].condition)
    rows = verifier.encode(row_texts(read_decisions(config.decisions, 1)))
    started, used = time.perf_counter(), time.process_time()
    orders = verifier.orders.probe(rows, []).orders
    wall_s, processor_s = time.perf_counter() - started, time.process_time() - used
    verifier.close()
    rungs = [rung for one in orders.classes for rung in one.rungs]
    return {
        "budget_s": BUDGET_S,
        "num_classes": len(orders.classes),
        "num_refused": sum(bool(rung.refused) for rung in rungs),
        "num_shapes": len(rungs),
        "num_trees": len({tree.tree for rung in rungs for tree in rung.trees}),
        "num_unmeasured": len(orders.unmeasured),
        "processor_s": round(processor_s, 2),
        "wall_s": round(wall_s, 2),
    }


if __name__ == "__main__":
    main()
