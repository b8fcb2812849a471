"""Runs that are killed at a chosen batch, and what they left."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from calibrate.config import CalibrationConfig
from tests.calibrate.example_runs import NOW, files_in

ROOT = Path(__file__).parents[2]
CHILD = """
import sys, time
from datetime import datetime
from pathlib import Path
import msgspec
from calibrate.calibration import RunFiles, calibrate
from calibrate.config import CalibrationConfig

class Halting:
    left = {batches}
    def planned(self, process_id, cost, done):
        pass
    def advanced(self, process_id, cost):
        self.left -= 1
        if self.left == 0:
            print("halted", flush=True)
            time.sleep(600)

config = msgspec.json.decode(sys.stdin.buffer.read(), type=CalibrationConfig)
files = RunFiles(folder=Path({folder!r}), name="example")
calibrate(config, files, now=datetime.fromisoformat({now!r}), progress=Halting())
"""


def halted(config: CalibrationConfig, folder: Path, batches: int) -> subprocess.Popen[bytes]:
    """Start a run in a process group of its own, and return it when it has stored `batches`."""
    code = CHILD.format(batches=batches, folder=str(folder), now=NOW.isoformat())
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(msgspec.json.encode(config))
    child.stdin.close()
    assert child.stdout.readline() == b"halted\n"
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    assert child.wait(60) == -signal.SIGKILL
    assert child.stdout is not None
    child.stdout.close()


def kill_group(config: CalibrationConfig, folder: Path, batches: int) -> None:
    child = halted(config, folder, batches)
    os.killpg(child.pid, signal.SIGKILL)
    end(child)


def workers(parent: int) -> Iterator[int]:
    """Yield the ids of the condition processes that `parent` started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"harness.worker" in line and int(fields[1]) == parent:
            yield int(folder.name)


def num_stored(folder: Path) -> dict[str, int]:
    """Return process -> batches stored, read as the next run will."""
    db = sqlite3.connect(files_in(folder).store)
    query = "SELECT process_id, COUNT(DISTINCT composition || batch) FROM observations GROUP BY 1"
    found = dict(db.execute(query).fetchall())
    db.close()
    return found


def tolerance_bytes(folder: Path) -> bytes:
    return files_in(folder).tolerance.read_bytes()
