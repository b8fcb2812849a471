"""What the demo takes: wall time and memory of ``scripts/demo``, installation apart.

Run ``python -m benchmarks.demo`` after one ``scripts/demo`` has installed everything; arguments go
to ``scripts/demo``. The run goes to a folder of its own, so nothing is resumed. Memory is the sum
of all processes' proportional set sizes, sampled five times a second.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PERIOD_S = 0.2


def main() -> None:
    """Print the figures as JSON on standard output; the demo's output goes to standard error."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["scripts/demo", *sys.argv[1:], "--run", folder]
        start, peak = time.monotonic(), 0
        process = subprocess.Popen(command, stdout=sys.stderr)
        while process.poll() is None:
            peak = max(peak, _pss_bytes(process.pid))
            time.sleep(PERIOD_S)
        wall_s = time.monotonic() - start
    figures = {"wall_s": round(wall_s, 1), "peak_mib": peak >> 20, "status": process.returncode}
    print(json.dumps(figures))


def _pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process and all its descendants."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for t in tasks for c in (t / "children").read_text().split()]
    except OSError:  # it has just ended
        return 0
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own * 1024 + sum(_pss_bytes(child) for child in children)


if __name__ == "__main__":
    main()
