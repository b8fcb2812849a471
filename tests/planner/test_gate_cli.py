import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.cli.planner.gate import app
from harness.errors import EvidenceError
from harness.planner import BranchVerdict, commit_branch, file_branch, rollback_branch
from tests.planner.gate_examples import a_branch, a_gate, close_stores, row

ROOT = Path(__file__).parents[2]
R, S = row("r"), row("s")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with a branch in every state."""
    url = f"sqlite:///{tmp_path_factory.mktemp('gate')}/g.db"
    gate = a_gate(url, "r", "s")
    stale, held = a_branch(gate, "stale", [], {R: b"x"}), a_branch(gate, "held", [R])
    winner = a_branch(gate, "winner", [], {R: b"new", S: None}, decision_id="d2")
    commit_branch(winner, gate, commit_id="c1")
    for branch in (stale, held):
        with contextlib.suppress(EvidenceError):
            commit_branch(branch, gate)
    no = BranchVerdict(accepted=False, score=0.25, note="step 2\x1b[31m is wrong")
    file_branch(a_branch(gate, "rejected", verdict=no), gate)
    file_branch(a_branch(gate, "open", verdict=None), gate)
    undone = a_branch(gate, "undone", [], {R: b"y", S: b"y"}, decision_id="d3")
    commit_branch(undone, gate)
    commit_branch(a_branch(gate, "reader", [S], decision_id="d4"), gate)
    rollback_branch(undone, gate)
    close_stores()
    return url


def told(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


WHY = {
    "stale": """\
stale: refused
reason    stale-write
resource  row:planner_rows/r
  verified  0 (generation 0), by branch stale
  found     1 (generation 1), written by branch winner
what now  fork a new branch from the current version
""",
    "held": """\
held: held
reason    it must be verified again
resource  row:planner_rows/r
  verified  0 (generation 0), by branch held
  found     1 (generation 1), written by branch winner
""",
    "rejected": """\
rejected: refused
reason    rejected
note      step 2\\x1b[31m is wrong
what now  fork another branch
""",
    "open": "open: open\nnothing stands against it\n",
    "winner": "winner: committed\nnothing stands against it\n",
    "undone": """\
undone: rolled_back
undone    row:planner_rows/r, now 3 (generation 3)
left      row:planner_rows/s: committed branch 'reader' rests on it
""",
}


@pytest.mark.parametrize(("branch", "text"), WHY.items(), ids=WHY)
def test_why(url: str, branch: str, text: str) -> None:
    assert told("why", branch, "--store", url) == text


def test_show(url: str) -> None:
    assert (
        told("show", "winner", "--store", url)
        == """\
winner: committed
decision  d2
verdict   accepted, score 0.75
steps     0
reads     row:planner_rows/r at 0 (generation 0)
reads     row:planner_rows/s at 0 (generation 0)
writes    row:planner_rows/r, 3 bytes
writes    row:planner_rows/s, deleting it
moves
  1  accept -> verified
  2  commit -> committed in commit c1
"""
    )


def test_json(url: str) -> None:
    shown = json.loads(told("show", "stale", "--store", url, "--json"))
    assert shown["branch"]["branch_id"] == "stale"
    assert [move["event"] for move in shown["moves"]] == ["accept", "refuse"]
    reason = json.loads(told("why", "stale", "--store", url, "--json"))
    assert reason["detail"]["refusal"]["reads"][0]["written_by"] == "winner"


def test_what_is_not_there(url: str, tmp_path: Path) -> None:
    error = told("why", "ghost", "--store", url, code=2)
    assert error == f"error InputFileError: {url}: holds no branch 'ghost'; check the id\n"
    none = f"sqlite:///{tmp_path}/none.db"
    assert "there is no such store" in told("show", "a", "--store", none, code=2)
    assert list(tmp_path.iterdir()) == []


def test_it_runs_on_its_own(url: str) -> None:
    code = "from calibrate.cli.planner.gate import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, "why", "open", "--store", url],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == (WHY["open"], "")
