import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrate.cli.planner.effects import app
from harness.planner.effects import read_trajectory
from harness.planner.effects.sql_store import SqlEffectStore
from tests.planner.effects_examples import LATER, NOW

ROOT = Path(__file__).parents[2]


def call(call_id: str, name: str, **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}} | more


CHAT = [
    {
        "role": "assistant",
        "tool_calls": [
            call("call_1", "search"),
            call("call_2", "order", effect={"token": "ord-17", "expires_at": LATER}),
            call("call_3", "mail\u001b[31m"),
            call("call_4", "note", effect={"token": "note-4"}),
        ],
    },
    *({"role": "tool", "tool_call_id": f"call_{n}", "content": f"done {n}"} for n in (1, 2, 3, 4)),
]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(CHAT))
    return path


@pytest.fixture
def store_url(run_file: Path) -> str:
    url = f"sqlite:///{run_file.parent / 'effects.db'}"
    store = SqlEffectStore(url)
    for step in read_trajectory(run_file).steps:
        if step.token is not None:
            store.put(step)
    store.close()
    return url


def told(*arguments: object, code: int = 0) -> str:
    """Return what the command printed; of a failed one, what it said on standard error."""
    result = CliRunner().invoke(app, ["classify", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_the_boundary_is_marked(run_file: Path, store_url: str) -> None:
    options = ("--store", store_url, "--read-only", "search", "--at", NOW)
    assert (
        told(run_file, *options)
        == f"""\
{run_file}: prefix_replayable
Boundary: step 2 (call_3), the first unverifiable side effect: token_not_recorded.
A counterfactual may diverge at steps 0 to 1; state replay only from step 2 on.

0  call_1  search     read_only
1  call_2  order      verified
----- boundary: nothing from here on can be re-issued -----
2  call_3  mail?[31m  token_not_recorded
3  call_4  note       verified
"""
    )


def test_the_boundary_moves_with_what_is_known(run_file: Path, store_url: str) -> None:
    expired = told(run_file, "--store", store_url, "--read-only", "search", "--at", LATER)
    assert "Boundary: step 1 (call_2), the first unverifiable side effect: expired." in expired
    assert "may diverge at step 0; state replay only from step 1 on." in expired
    undeclared = told(run_file, "--store", store_url, "--at", NOW)
    assert undeclared.splitlines()[0].endswith(": state_replayable")
    assert "may diverge nowhere; state replay only." in undeclared


def test_without_a_store_no_token_is_verified(run_file: Path) -> None:
    printed = told(run_file, "--read-only", "search", "--at", NOW)
    assert "No store was given, so no token could be verified (--store)." in printed
    assert "1  call_2  order      token_unknown" in printed


def test_a_run_without_a_boundary(run_file: Path, store_url: str) -> None:
    named = ("--read-only", "search", "--read-only", "mail\u001b[31m")
    printed = told(run_file, "--store", store_url, *named, "--at", NOW)
    assert "No boundary: every side effect is verifiable." in printed
    assert "may diverge at steps 0 to 3." in printed
    assert "-----" not in printed


def test_a_run_without_steps(run_file: Path) -> None:
    run_file.write_text('{"info": {}, "messages": []}')
    assert told(run_file, "--at", NOW).splitlines() == [
        f"{run_file}: effect_free",
        "No boundary: every side effect is verifiable.",
        "It has no steps: no tool was called.",
        "No store was given, so no token could be verified (--store).",
        "",
    ]


def test_json(run_file: Path, store_url: str) -> None:
    found = json.loads(told(run_file, "--store", store_url, "--at", NOW, "--json"))
    assert found["auditability"] == "state_replayable"
    assert (found["boundary_index"], found["gap_index"]) == (0, None)
    assert [finding["reason"] for finding in found["findings"]] == [
        "token_not_recorded",
        "verified",
        "token_not_recorded",
        "verified",
    ]


def test_what_must_be_mended_is_told(run_file: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no.db"
    assert "InputFileError" in told(run_file, "--store", f"sqlite:///{missing}", code=2)
    assert not missing.exists()
    assert "ConfigError" in told(run_file, "--store", "mysql://x", code=2)
    assert "now 'noon' is no ISO 8601 time" in told(run_file, "--at", "noon", code=2)
    wrong = told(run_file, "--format", "mini-swe-agent", code=2)
    assert wrong.startswith(f"error InvalidRecordError: {run_file}: $[0]: has tool calls")


def test_a_process_ends_with_the_status_and_the_message(tmp_path: Path) -> None:
    code = "from calibrate.cli.planner.effects import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, "classify", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error InputFileError: ")
    assert "none.json: cannot be read" in done.stderr
