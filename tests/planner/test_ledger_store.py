import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Executable, delete, insert, select, update

from harness.errors import CorruptFileError, VersionConflictError
from harness.planner.database import in_transaction, open_database, reading
from harness.planner.ledger import (
    Account,
    BranchLedger,
    BranchState,
    BudgetExceededError,
    CacheKey,
    Draft,
    DraftState,
    Write,
)
from harness.planner.ledger.events import Event, MarkedDead, Offered, Recorded, Swept, decode_event
from harness.planner.ledger.state import LedgerState
from harness.planner.ledger.store import EVENTS, SCHEMA, SqlJournal, open_ledger
from tests.planner.gate_examples import a_database
from tests.planner.ledger_model import contaminated, offer

ROOT = Path(__file__).parents[2]
NUM_WRITERS, NUM_KILLS = 6, 5


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_database(request.param, tmp_path) as found:
        yield found


def writer(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.planner.ledger_writer", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def events(url: str, ledger_id: str = "main") -> list[Event]:
    engine = open_database(url, SCHEMA)
    query = select(EVENTS.c.payload).where(EVENTS.c.ledger_id == ledger_id)
    with reading(engine) as connection:
        rows = connection.scalars(query.order_by(EVENTS.c.number)).all()
    engine.dispose()
    return [decode_event(row.encode()) for row in rows]


def begun(url: str) -> tuple[Draft, Draft]:
    """Let c promote, b build on a, and two drafts be accepted, one of them on a."""
    with open_ledger(url) as ledger:
        for branch_id in "abc":
            ledger.open_branch(branch_id, limit=10)
        on_a = ledger.record_dependency("a", "one")
        on_b = ledger.record_dependency("b", "two", reads=(on_a,))
        spoiled = Draft(draft_id="spoiled", branch_id="b", reads=(on_b,))
        clean = Draft(draft_id="clean", branch_id="b", reads=(ledger.visible("b", "prompt"),))
        ledger.spend("a", "s", 7)
        ledger.promote("a")
        assert offer(ledger, spoiled).state is DraftState.ACCEPTED
        assert offer(ledger, clean).state is DraftState.ACCEPTED
    return spoiled, clean


def view(ledger: BranchLedger) -> list[object]:
    branches = ledger.branches()
    return [branches, *(ledger.branch(branch_id) for branch_id in branches), ledger.spent()]


def test_a_ledger_stands_where_it_stood_when_it_is_opened_again(url: str) -> None:
    begun(url)
    with open_ledger(url) as ledger:
        ledger.rollback("c")
        left = view(ledger)
    with open_ledger(url) as again:
        assert view(again) == left
        assert again.decision("spoiled").state is DraftState.ACCEPTED


def test_ledgers_of_one_database_do_not_meet(url: str) -> None:
    begun(url)
    with open_ledger(url, "other") as other:
        assert other.branches() == {}
        other.open_branch("a")
    with open_ledger(url) as ledger:
        assert ledger.branches()["a"] is BranchState.PROMOTED


def test_two_ledgers_on_one_store_see_each_other(url: str) -> None:
    with open_ledger(url) as one, open_ledger(url) as two:
        one.open_branch("a")
        two.open_branch("b")
        leaked = one.record_dependency("a", "k")
        held = offer(two, Draft(draft_id="d", branch_id="b", reads=(leaked,)))
        assert held.waits_for == ("a",)
        one.rollback("a")
        assert two.decision("d").state is DraftState.REJECTED


def test_of_two_processes_that_promote_one_name_the_second_is_refused(url: str) -> None:
    with open_ledger(url) as one, open_ledger(url) as two:
        for ledger, branch_id in ((one, "a"), (two, "b")):
            ledger.open_branch(branch_id)
            ledger.record_dependency(branch_id, "k")
        one.promote("a")
        with pytest.raises(VersionConflictError, match="b/k was not built on a/k"):
            two.promote("b")
        one.spend("a", "s", 3)
        two.set_pool(5)
        with pytest.raises(BudgetExceededError, match="the pool has 2 of 5 left"):
            one.spend("a", "t", 3)


def test_repeats_add_no_event(url: str) -> None:
    with open_ledger(url) as one, open_ledger(url) as two:
        for repeated in (one, one, two):
            repeated.open_branch("a")
            repeated.set_pool(5)
            key = repeated.record_dependency("a", "k")
            offer(repeated, Draft(draft_id="d", branch_id="a", reads=(key,)))
            repeated.spend("a", "s", 1)
        for repeated in (one, one, two):
            repeated.promote("a")
        for repeated in (one, one, two):
            repeated.rollback("a")
    kinds = Counter(type(event).__name__ for event in events(url))
    assert set(kinds.values()) == {1}, kinds
    assert len(kinds) == 8


def test_writes_reported_together_are_one_event(url: str) -> None:
    with open_ledger(url) as ledger:
        ledger.open_branch("a")
        keys = ledger.record_dependencies(
            Write(branch_id="a", name="k", version=version) for version in ("1", "2")
        )
    assert keys == (
        CacheKey(branch_id="a", name="k"),
        CacheKey(branch_id="a", name="k", generation=1),
    )
    assert [type(event) for event in events(url)][1:] == [Recorded]


def test_a_kill_between_the_phases_is_finished_by_the_next_open(url: str) -> None:
    begun(url)
    child = writer("die", url)
    _, told = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL, told
    assert [e for e in events(url) if isinstance(e, MarkedDead | Swept)] == [
        MarkedDead(branch_id="a")
    ]
    with open_ledger(url) as ledger:
        assert events(url)[-1] == Swept(branch_id="a")
        assert ledger.decision("spoiled").state is DraftState.REJECTED
        assert ledger.decision("clean").state is DraftState.ACCEPTED
        assert ledger.branch("a").account == Account(limit=10, spent=7, returned=7)
        assert contaminated(ledger) == []
        changes = ledger.rollback("a").changes
    assert [change.draft_id for change in changes] == ["spoiled"]


def test_negative_control_an_open_that_does_not_finish_leaves_it_half_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(url)
    child = writer("die", url)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    monkeypatch.setattr(LedgerState, "unfinished", lambda _self: None)
    with open_ledger(url) as ledger:
        assert contaminated(ledger) == ["spoiled"]


def test_a_process_that_was_open_all_along_finishes_it_too(url: str) -> None:
    begun(url)
    with open_ledger(url) as survivor:
        child = writer("die", url)
        child.communicate(timeout=60)
        late = Draft(draft_id="late", branch_id="b", reads=(survivor.visible("b", "two"),))
        assert late.reads == (CacheKey(branch_id="", name="two"),), "the spoiled entry is gone"
        assert offer(survivor, late).state is DraftState.ACCEPTED
    kinds = [type(event) for event in events(url)]
    assert kinds.index(Swept) < len(kinds) - 1 - kinds[::-1].index(Offered)


def test_writers_that_are_killed_at_random_leave_no_dead_content(url: str) -> None:
    open_ledger(url).close()
    chance = random.Random(5)  # noqa: S311
    running = [writer("work", url, str(seed)) for seed in range(NUM_WRITERS)]
    num_killed, told = 0, ""
    for seed in range(NUM_WRITERS, NUM_WRITERS + NUM_KILLS):
        time.sleep(0.3 + chance.random() * 0.5)
        victim = running.pop(chance.randrange(len(running)))
        victim.kill()
        told += victim.communicate(timeout=60)[1]
        num_killed += victim.returncode == -signal.SIGKILL
        running.append(writer("work", url, str(seed)))
    for child in running:
        told += child.communicate(timeout=300)[1]
        assert child.returncode == 0, told
    assert told == ""
    assert num_killed > 0
    with open_ledger(url) as ledger:
        assert contaminated(ledger) == []
        states = Counter(ledger.decision(draft.draft_id).state for draft in ledger.drafts())
        assert {DraftState.ACCEPTED, DraftState.REJECTED} <= set(states), states
        dead = [b for b, state in ledger.branches().items() if state is BranchState.DEAD]
    swept = [event.branch_id for event in events(url) if isinstance(event, Swept)]
    assert sorted(swept) == sorted(dead), "each rollback has its second phase, once"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (delete(EVENTS).where(EVENTS.c.number == 2), "event 3 of ledger 'main' follows event 1"),
        (delete(EVENTS).where(EVENTS.c.number < 3), "event 3 of ledger 'main' follows event 0"),
        (
            update(EVENTS).where(EVENTS.c.number == 2).values(payload='{"type":"opened"}'),
            "event 2 of ledger 'main': not a ledger event",
        ),
        (
            update(EVENTS).where(EVENTS.c.number == 3).values(payload='{"type":"burnt"}'),
            "event 3 of ledger 'main': not a ledger event",
        ),
        (
            insert(EVENTS).values(ledger_id="main", number=999, payload="{}"),
            "event 999 of ledger 'main' follows event",
        ),
    ],
)
def test_a_damaged_log_is_refused_with_its_place(url: str, damage: Executable, words: str) -> None:
    begun(url)
    engine = open_database(url, SCHEMA)
    in_transaction(engine, lambda connection: connection.execute(damage))
    with pytest.raises(CorruptFileError, match=words):
        BranchLedger(SqlJournal(engine, "main"))
    engine.dispose()
