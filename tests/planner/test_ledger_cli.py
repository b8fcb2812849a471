import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.cli.planner.ledger import app
from harness.planner.ledger import CacheKey, Draft
from harness.planner.ledger.store import open_ledger
from tests.planner.ledger_model import offer, scored

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Return a store in which c builds on b, which builds on a, which builds on b."""
    url = f"sqlite:///{tmp_path / 'planner.db'}"
    with open_ledger(url) as ledger:
        for branch_id in "abcd":
            ledger.open_branch(branch_id, limit=10)
        prefix = ledger.record_dependency("a", "prefix")
        plan = ledger.record_dependency(
            "b", "plan", reads=(prefix, CacheKey(branch_id="", name="prompt"))
        )
        ledger.record_dependency("a", "prefix", reads=(plan,))
        notes = ledger.record_dependency("c", "notes", reads=(plan, prefix))
        offer(ledger, Draft(draft_id="held", branch_id="c", reads=(notes,)))
        free = Draft(draft_id="free\x1b[31m", branch_id="d")
        offer(ledger, free)
        unscored = Draft(draft_id="unscored", branch_id="d", reads=(free.key,))
        ledger.accept_draft(unscored, scored(ledger.closure(free)))
        ledger.spend("a", "s", 4)
    return url


def told(*arguments: str, code: int = 0) -> str:
    """Return what the command printed; of a failed one, what it said on standard error."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def roll_back(url: str, branch_id: str) -> None:
    with open_ledger(url) as ledger:
        ledger.rollback(branch_id)


def test_a_closure_is_a_tree_in_which_nothing_is_opened_twice(store_url: str) -> None:
    assert (
        told("closure", "held", "--store", store_url)
        == """\
c/draft:held  in_flight
└── c/notes  in_flight
    ├── b/plan  in_flight
    │   ├── a/prefix  in_flight
    │   │   └── b/plan  in_flight (see above)
    │   └── /prompt  shared
    └── a/prefix  in_flight (see above)
"""
    )


def test_why_a_draft_is_held(store_url: str) -> None:
    assert (
        told("why", "held", "--store", store_url)
        == """\
held: held (meets_in_flight)
It is decided when these branches resolve:
  a: c/draft:held reads c/notes reads a/prefix
  b: c/draft:held reads c/notes reads b/plan
"""
    )


def test_why_a_draft_is_rejected(store_url: str) -> None:
    roll_back(store_url, "a")
    assert (
        told("why", "held", "--store", store_url)
        == """\
held: rejected (meets_dead)
It depends on branch a, which was rolled back:
  c/draft:held reads c/notes reads a/prefix
"""
    )
    assert "a/prefix  dead, evicted" in told("closure", "held", "--store", store_url)


def test_why_a_draft_is_accepted_or_unscored(store_url: str) -> None:
    free = told("why", "free\x1b[31m", "--store", store_url)
    assert free == (
        "free?[31m: accepted (disjoint)\n"
        "It depends on no dead branch, and on no other branch in flight.\n"
    )
    unscored = told("why", "unscored", "--store", store_url)
    assert "Its score was computed on another closure. Verify it again on\n  sha256:" in unscored


def test_a_branch_is_shown_with_its_cost_entries_and_drafts(store_url: str) -> None:
    roll_back(store_url, "a")
    assert (
        told("branch", "a", "--store", store_url)
        == """\
a: dead; spent 4 of a limit of 10, 4 returned
Entries
┏━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━━━┓
┃ entry    ┃ evicted ┃ computed from ┃ read by ┃
┡━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━━━┩
│ a/prefix │ yes     │ b/plan        │ b/plan  │
│          │         │               │ c/notes │
└──────────┴─────────┴───────────────┴─────────┘
"""
    )


def test_the_drafts_of_a_branch_are_shown_with_what_holds_them(store_url: str) -> None:
    shown = told("branch", "c", "--store", store_url)
    assert (
        shown[shown.index("Drafts") :]
        == """Drafts
┏━━━━━━━┳━━━━━━━┳━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━┓
┃ draft ┃ state ┃ finding         ┃ waits for ┃
┡━━━━━━━╇━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━┩
│ held  │ held  │ meets_in_flight │ a, b      │
└───────┴───────┴─────────────────┴───────────┘
"""
    )


@pytest.mark.parametrize("command", [("branch", "c"), ("closure", "held"), ("why", "held")])
def test_json_is_one_value(store_url: str, command: tuple[str, str]) -> None:
    found = json.loads(told(*command, "--json", "--store", store_url))
    if command[0] == "branch":
        assert found["drafts"][0]["waits_for"] == ["a", "b"]
    elif command[0] == "closure":
        names = [entry["key"]["name"] for entry in found]
        assert sorted(names) == ["draft:held", "notes", "plan", "prefix", "prompt"]
    else:
        assert (found["state"], found["path"]) == ("held", [])


@pytest.mark.parametrize("command", ["branch", "closure", "why"])
def test_the_unknown_is_told_on_standard_error(store_url: str, command: str) -> None:
    assert told(command, "nobody", "--store", store_url, code=2).startswith(
        "error IllegalMoveError: "
    )
    with_ledger = told(command, "held", "--store", store_url, "--ledger", "other", code=2)
    assert "IllegalMoveError" in with_ledger


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    assert "there is no such store" in told("why", "d", "--store", url, code=2)
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_prints_figures_and_checks_itself() -> None:
    sizes = ("--num-dependencies", "8000", "--sweep-sizes", "500", "2000")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planner_ledger", *sizes],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stderr == ""
    figures = json.loads(done.stdout)
    assert figures["num_dependencies"] >= 8000
    assert figures["queries"]["num_keys"] == 131
    assert set(figures["sweep_processor_s"]) == {"500", "2000"}
    assert done.returncode == (0 if all(figures["met"].values()) else 1)
