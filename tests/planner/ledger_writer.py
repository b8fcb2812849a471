"""A process that works on a shared ledger until it is done, or killed.

``python -m tests.planner.ledger_writer die URL``: rolls branch ``a`` back and is killed -9, by its
own hand, between the two phases. ``... work URL SEED``: random calls; fails with what it could not
explain.
"""

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from harness.errors import BranchContaminationError, IllegalMoveError, VersionConflictError
from harness.planner.database import open_database
from harness.planner.ledger import BranchLedger, BranchState, CacheKey, Draft
from harness.planner.ledger.events import Event, Swept
from harness.planner.ledger.journal import Log
from harness.planner.ledger.store import SCHEMA, SqlJournal, open_ledger
from tests.planner.ledger_model import offer

T = TypeVar("T")

NUM_CALLS = 40
EXPLAINED = (BranchContaminationError, IllegalMoveError, VersionConflictError)


class _Dying:
    """A log that kills its process when a second phase is written, before it is kept."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def after(self, number: int) -> Sequence[Event]:
        return self._log.after(number)

    def append(self, number: int, event: Event) -> None:
        self._log.append(number, event)
        if isinstance(event, Swept):
            os.kill(os.getpid(), signal.SIGKILL)


class DyingJournal(SqlJournal):
    """A journal of such logs."""

    def write(self, work: Callable[[Log], T]) -> T:
        return super().write(lambda log: work(_Dying(log)))


def die(url: str) -> None:
    """Roll a branch back; be killed between the phases."""
    BranchLedger(DyingJournal(open_database(url, SCHEMA), "main")).rollback("a")


def work(url: str, seed: int) -> None:
    """Call at random; every branch is shared with the other processes."""
    chance = random.Random(seed)  # noqa: S311
    with open_ledger(url) as ledger:
        for number in range(NUM_CALLS):
            alive = [b for b, s in ledger.branches().items() if s is BranchState.IN_FLIGHT]
            if len(alive) < 4:
                ledger.open_branch(f"{seed}-{number}")
                continue
            try:
                call(ledger, chance, alive, f"{seed}-{number}")
            except EXPLAINED:
                continue


def call(ledger: BranchLedger, chance: random.Random, alive: Sequence[str], name: str) -> None:
    branch_id, sibling = chance.sample(alive, 2)
    leak = CacheKey(branch_id=sibling, name=f"k{chance.randrange(3)}")
    reads = (ledger.visible(branch_id, f"k{chance.randrange(3)}"), leak)[: chance.randint(1, 2)]
    kind = chance.random()
    if kind < 0.4:
        ledger.record_dependency(branch_id, f"k{chance.randrange(3)}", reads=reads)
    elif kind < 0.7:
        offer(ledger, Draft(draft_id=name, branch_id=branch_id, reads=reads))
    elif kind < 0.85:
        ledger.promote(branch_id)
    else:
        ledger.rollback(branch_id)


if __name__ == "__main__":
    if sys.argv[1] == "die":
        die(sys.argv[2])
    else:
        work(sys.argv[2], int(sys.argv[3]))
