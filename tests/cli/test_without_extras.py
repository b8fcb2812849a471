"""What `pip install scorepin` alone gives: judging works, the rest says what to install."""

import subprocess
from pathlib import Path

import pytest

from harness.codec import encode
from harness.commit_log import CommitLog
from harness.tolerance_file import seal
from tests.command import scorepin, write_config
from tests.examples import a_commit, a_replay, a_tolerance_file, an_invocation, an_item
from tests.planner_site import base_distributions, link_environment, planner_python

ROOT = Path(__file__).parents[2]
ADVICE = "pip install 'scorepin[calibrate]'"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a plain install; the code itself comes from the checkout."""
    names = base_distributions() | {"scorepin"}
    return link_environment(tmp_path_factory.mktemp("planner") / "venv", names)


def planner(python: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return planner_python(python, "-m", "calibrate.cli", *arguments, path=ROOT, cwd=cwd)


def judgeable(folder: Path) -> None:
    (folder / "t.tolerance.json").write_bytes(seal(a_tolerance_file()))
    items = [an_item(name) for name in "abcf"]
    condition = {"precision": "bfloat16", "reduction_order": {"name": "vendor"}}
    commit = a_commit(invocation=an_invocation(condition=condition))
    CommitLog(folder / "commits.jsonl").append([commit], items)
    (folder / "replays.jsonl").write_bytes(encode(a_replay()) + b"\n")


def test_the_base_install_is_small() -> None:
    base = base_distributions()
    assert {"msgspec", "rich", "typer"} <= base
    assert base.isdisjoint({"numpy", "pyyaml", "scipy", "torch", "transformers"})


@pytest.mark.parametrize("module", ["torch", "numpy", "yaml"])
def test_the_heavy_libraries_are_really_out_of_reach(python: Path, module: str) -> None:
    done = planner_python(python, "-c", f"import {module}", path=ROOT, cwd=ROOT)
    assert f"No module named '{module}'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--help",), "Exit status"),
        (("show", "t.tolerance.json"), "live_head"),
        (("show", "t.tolerance.json", "--json"), '"digest":"sha256:'),
        (
            ("classify", "commits.jsonl", "replays.jsonl", "--tolerances", "t.tolerance.json"),
            "exact           1        0",
        ),
        (("doctor",), "no torch: judging works, scoring needs " + ADVICE),
        (("doctor", "--json"), '"torch": null'),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else "",
)
def test_what_works(python: Path, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    judgeable(tmp_path)
    done = planner(python, tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("calibrate", "fake.yaml"), "yaml"),
        (("score", "fake.yaml"), "yaml"),
        (("demo",), "yaml"),
        (("replay", "commits.jsonl"), "torch"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_needs_the_extra_says_so(
    python: Path, tmp_path: Path, arguments: tuple[str, ...], module: str
) -> None:
    judgeable(tmp_path)
    write_config(tmp_path / "fake.yaml")
    done = planner(python, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{module} is not installed: {ADVICE}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fakes_commits_are_replayed_without_torch(python: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "fake.yaml")
    score = ("score", "fake.yaml", "--limit", "2", "--commits", "commits.jsonl")
    assert scorepin(*score, cwd=tmp_path).returncode == 0
    done = planner(python, tmp_path, "replay", "commits.jsonl")
    assert (done.returncode, done.stdout) == (0, "2 replay records in commits.replays.jsonl\n")
