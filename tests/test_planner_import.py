import subprocess
import sys
from pathlib import Path

import harness

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numpy", "scipy", "transformers", "matplotlib", "typer", "rich", "yaml")


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after one statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_the_planner_side_loads_no_heavy_library() -> None:
    loaded = loaded_by("import harness")
    assert "harness.judge.classify" in loaded
    assert sorted(loaded.intersection(HEAVY)) == []
    assert sorted(name for name in loaded if name.startswith("calibrate")) == []


def test_the_probe_would_see_one() -> None:
    assert "numpy" in loaded_by("import numpy")


def test_the_curated_names_are_there_and_sorted() -> None:
    assert harness.__all__ == sorted(harness.__all__)
    assert len(set(harness.__all__)) == len(harness.__all__)
    assert all(hasattr(harness, name) for name in harness.__all__)
    promised = {"CommitRecord", "load_tolerances", "judge", "classify_replay", "stable_ranking"}
    assert promised <= set(harness.__all__)
