"""Ctrl-C keeps what was scored and says how to go on; going on gives the same file."""

import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

from tests.command import ENVIRONMENT, SCOREPIN, scorepin, write_config

CALIBRATE = ("calibrate", "fake.yaml", "--run", "a run")
LONG = {"num_decisions": 60, "sweep": {"rows": [2, 3, 4, 6, 12], "reference_rows": 12}}


def interrupted(folder: Path, after_bytes: int) -> subprocess.CompletedProcess[str]:
    """Start the run in a terminal's place and press Ctrl-C once so much is stored."""
    process = subprocess.Popen(
        [SCOREPIN, *CALIBRATE],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    stored = folder / "a run" / "observations.sqlite-wal"
    deadline = time.monotonic() + 60
    while not stored.exists() or stored.stat().st_size < after_bytes:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing was stored"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def num_stored(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "a run" / "observations.sqlite")) as db:
        return int(db.execute("SELECT COUNT(*) FROM observations").fetchone()[0])


def test_an_interrupted_calibration_goes_on_to_the_same_file(tmp_path: Path) -> None:
    write_config(tmp_path / "fake.yaml", **LONG)
    done = interrupted(tmp_path, 400_000)  # more than the rows take before the first score
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == (
        "interrupted: all that was scored is stored; go on with: "
        "scorepin calibrate fake.yaml --run 'a run'\n"
    )
    early = num_stored(tmp_path)
    assert not (tmp_path / "a run" / "fake.tolerance.json").exists()
    resumed = scorepin(*CALIBRATE, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    whole = num_stored(tmp_path)
    assert 0 < early < whole
    uninterrupted = scorepin("calibrate", "fake.yaml", "--run", "other", cwd=tmp_path)
    assert uninterrupted.returncode == 0
    name = "fake.tolerance.json"
    assert (tmp_path / "a run" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
