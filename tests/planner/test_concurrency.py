"""64 writers on one store, killed at random; afterwards the history decides."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.planner.commit_store import CommitStore
from harness.planner.gate_table import Event
from tests.planner.gate_examples import a_database
from tests.planner.history import History, history_of, violations
from tests.planner.writer import write

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

SERVERS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
LONGEST_S = 120.0


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_database(request.param, tmp_path) as found:
        CommitStore.open(found).close()
        yield found


class Writers:
    """Processes that write at the same time."""

    def __init__(self, url: str, folder: Path, num_commits: int, *, blind: bool = False) -> None:
        self.context = multiprocessing.get_context("forkserver")
        preloaded = ["tests.planner.writer", "sqlalchemy.dialects.postgresql.psycopg", "psycopg"]
        self.context.set_forkserver_preload(preloaded)
        self.url, self.folder, self.num_commits, self.blind = url, folder, num_commits, blind
        self.running: dict[int, BaseProcess] = {}

    def start(self, number: int) -> None:
        notes = str(self.folder / f"{number}.notes")
        arguments = (self.url, notes, number, self.num_commits)
        process = self.context.Process(target=write, args=arguments, kwargs={"blind": self.blind})
        process.start()
        self.running[number] = process

    def kill_some(self, num_kills: int, chance: random.Random) -> int:
        """Kill -9 writers that are at work, each soon replaced; return how many were hit."""
        num_hit = 0
        for _ in range(num_kills):
            time.sleep(chance.random() * 0.2)
            at_work = sorted(n for n, process in self.running.items() if process.is_alive())
            if not at_work:
                break
            number = chance.choice(at_work)
            process = self.running[number]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            num_hit += process.exitcode == -signal.SIGKILL
            self.start(number)
        return num_hit

    def join(self) -> None:
        deadline = time.monotonic() + LONGEST_S
        for process in self.running.values():
            process.join(max(0.0, deadline - time.monotonic()))
        exit_codes = {number: process.exitcode for number, process in self.running.items()}
        assert set(exit_codes.values()) == {0}, exit_codes


def what_happened(url: str, folder: Path) -> History:
    lines = [line for notes in folder.glob("*.notes") for line in notes.read_bytes().splitlines()]
    told = [line[5:].decode() for line in lines if line.startswith(b"told ")]
    store = CommitStore.open(url)
    history = history_of(store, told)
    store.close()
    return history


def count(history: History, event: Event) -> int:
    return sum(move.event is event for move in history.moves)


def test_64_writers_killed_at_random(url: str, tmp_path: Path) -> None:
    writers = Writers(url, tmp_path, num_commits=4)
    for number in range(64):
        writers.start(number)
    num_hit = writers.kill_some(40, random.Random(7))  # noqa: S311 - no secret
    writers.join()
    history = what_happened(url, tmp_path)
    assert violations(history) == []
    assert num_hit >= 8
    assert len(history.told) >= 20
    assert count(history, Event.REFUSE) >= 20
    assert count(history, Event.FIND_STALE) >= 5
    assert count(history, Event.ROLL_BACK) >= 5


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_checker_catches_a_blind_write(url: str, tmp_path: Path) -> None:
    """The negative control: the same writers, with a gate that compares nothing."""
    writers = Writers(url, tmp_path, num_commits=8, blind=True)
    for number in range(8):
        writers.start(number)
    writers.join()
    found = violations(what_happened(url, tmp_path))
    assert any("lost an update" in line for line in found), found
    assert any("was not verified against what it replaced" in line for line in found), found
    assert any("no order explains the commits" in line for line in found), found
