"""One writer process: forks branches, commits them, rolls some back, and may die at any moment.

It notes ``try <branch>`` before a commit and ``told <commit id>`` after one. A writer that is
started on the notes of a dead one first settles the commit whose outcome nobody knows.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

from harness.codec import decode, encode, parse
from harness.errors import CommitRefusedError, ReverificationNeededError
from harness.planner import Branch, CommitGate, commit_branch, gate, rollback_branch
from harness.planner.observation import pin
from harness.planner.ruling import Ruling
from tests.planner.gate_examples import ACCEPTED, a_gate, row

NAMES = ("a", "b", "c", "d", "e", "f")


def write(url: str, notes: str, number: int, num_commits: int, *, blind: bool = False) -> None:
    """Be one writer."""
    if blind:
        gate.__dict__["rule"] = lambda *_: Ruling()  # the planted bug
    made = a_gate(url, *NAMES)
    path, chance = Path(notes), random.Random(number)  # noqa: S311 - no secret
    unsettled, num_done = noted(path)
    with path.open("ab", buffering=0) as stream:
        for branch in unsettled:
            settle(made, branch, stream.write, chance)
        for at in range(num_done, num_commits):
            branch = a_try(made, f"w{number}.{at}.{os.getpid()}", chance)
            stream.write(b"try " + encode(branch) + b"\n")
            settle(made, branch, stream.write, chance)
    made.store.close()


def noted(path: Path) -> tuple[list[Branch], int]:
    """Return the last branch if its commit's outcome is unknown, and how many were tried."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    tries = [line[4:] for line in lines if line.startswith(b"try ")]
    if not tries or lines[-1].startswith(b"end"):
        return [], len(tries)
    return [decode(Branch, parse(tries[-1], "notes"), "notes")], len(tries)


def a_try(made: CommitGate, name: str, chance: random.Random) -> Branch:
    resources = [row(key) for key in chance.sample(NAMES, chance.randint(1, 3))]
    pinned = {key: pin(made.resources[key], made.store) for key in resources}
    written = resources[: chance.randint(0 if len(resources) > 1 else 1, len(resources))]
    return Branch(
        branch_id=name,
        decision_id=name,
        read_set={key: value.version for key, value in pinned.items()},
        write_set={key: (pinned[key].content or b"") + f"{name}\n".encode() for key in written},
        verdict=ACCEPTED,
    )


def settle(
    made: CommitGate, branch: Branch, note: Callable[[bytes], object], chance: random.Random
) -> None:
    try:
        outcome = commit_branch(branch, made, commit_id=f"commit-{branch.branch_id}")
    except (CommitRefusedError, ReverificationNeededError):
        note(b"end\n")
        return
    note(f"told {outcome.commit_id}\n".encode())
    if chance.random() < 0.2:
        rollback_branch(branch, made)
    note(b"end\n")
