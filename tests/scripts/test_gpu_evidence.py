"""The evidence run, on a CPU and with a tiny model: the same code that a GPU node runs."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.records.batching import PaddingSide
from scripts.gpu.evidence.sweep import NUM_PROBES, finding, make_rows, trials

ROOT = Path(__file__).parents[2]


def evidence(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    small = ("--device", "cpu", "--shape", "tiny", "--max-rows", "16")
    return subprocess.run(
        [sys.executable, "-m", "scripts.gpu.evidence", "--out", str(out), *small, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("evidence")
    done = evidence(out, "--only", "float32")
    assert done.returncode == 0, done.stderr
    written = json.loads((out / "evidence.json").read_text())
    assert (out / "evidence.md").read_text().count("\n| float32/vendor") == sum(
        len(arm["result"]["findings"]) for arm in written
    )
    return {arm["label"]: arm for arm in written}


def classes(arm: dict[str, Any], axis: str) -> list[list[str]]:
    (found,) = (f for f in arm["result"]["findings"] if f["axis"] == axis)
    return found["classes"]  # type: ignore[no-any-return]


def test_every_kernel_ran_on_the_same_weights(arms: dict[str, Any]) -> None:
    kernels = {label: arm["result"]["kernels"] for label, arm in arms.items()}
    assert kernels["float32/vendor+flash"] == ["flash"]
    assert kernels["float32/vendor+math"] == ["math"]
    assert kernels["float32/vendor+eager"] == ["eager"]
    assert len({arm["result"]["weights_digest"] for arm in arms.values()}) == 1


def test_sizes_part_where_kernels_are_chosen_anew_and_repeats_do_not(arms: dict[str, Any]) -> None:
    """float32 matrix products are summed in another order from 4 rows on; a repeat moves no bit."""
    sizes = [classes(arm, "num_rows") for arm in arms.values()]
    assert any(len(found) > 1 for found in sizes), sizes
    for label, arm in arms.items():
        assert len(classes(arm, "repeat")) == 1, label


def test_what_cannot_run_is_said_and_fails_alone(tmp_path: Path) -> None:
    done = evidence(tmp_path, "--only", "tf32")  # no such mode on a CPU: nothing is left to run
    assert done.returncode == 1
    late = evidence(tmp_path, "--only", "float64", "--minutes", "0")
    assert late.returncode == 1
    assert (
        "| float64/vendor | | | not run: the time was up | |"
        in (tmp_path / "evidence.md").read_text()
    )


def test_a_class_is_of_equal_bits() -> None:
    found = finding("rows", ["1", "2", "4"], [[0.5, -0.0], [0.5, 0.0], [0.5, -0.0]])
    assert found.classes == (("1", "4"), ("2",))
    assert found.max_movement == 0.0
    moved = finding("rows", ["1", "2"], [[0.5, 1.0], [0.25, 1.0]])
    assert (len(moved.classes), moved.max_movement) == (2, 0.25)
    assert math.isnan(finding("rows", ["1", "2"], [[math.nan], [0.0]]).max_movement)


def test_one_thing_at_a_time_changes() -> None:
    rows = make_rows(32, 512)
    assert len({len(row) for row in rows[:NUM_PROBES]}) == 1
    by_axis: dict[str, list[Any]] = {}
    for trial in trials(16):
        assert trial.rows.count(0) == 1
        assert len(trial.rows) <= 16
        by_axis.setdefault(trial.axis, []).append(trial)
    assert {len(t.rows) for t in by_axis["padded_width"]} == {16}
    assert {t.width for t in by_axis["num_rows"]} == {128}
    assert {t.side for t in by_axis["padding_side"]} == set(PaddingSide)
    assert len({frozenset(t.rows) for t in by_axis["row_position"]}) == 1
    assert len({frozenset(t.rows) for t in by_axis["companions"]}) == 3
    assert len(set(by_axis["repeat"])) == 3
