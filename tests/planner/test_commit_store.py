from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from harness.errors import IllegalMoveError, StoreError
from harness.planner import CommitGate, commit_branch, file_branch
from harness.planner.branch import Read
from harness.planner.commit_store import BRANCHES, COMMITS, LOG, CommitStore, GateTransaction
from harness.planner.database import reading
from harness.planner.gate_records import CommitOutcome, Detail, Filed, Intent, Planned, Write
from harness.planner.gate_table import Event, State
from tests.examples import a_commit
from tests.planner.gate_examples import a_branch, a_database, a_gate, a_version, content, row

R = row("r")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommitGate]:
    with a_database(request.param, tmp_path) as url:
        yield a_gate(url, "r", "s")


def counts(store: CommitStore) -> dict[str, int]:
    with reading(store.engine) as connection:
        return {t.name: len(connection.execute(select(t)).all()) for t in (BRANCHES, COMMITS, LOG)}


def a_write(generation: int, **changes: Any) -> Write:
    fields: dict[str, Any] = {
        "resource": R,
        "generation": generation,
        "branch_id": "a",
        "commit_id": "c",
        "before": None,
        "before_token": str(generation - 1),
        "token": str(generation),
        "content_of": generation,
        "replaced": generation - 1,
    }
    return Write(**(fields | changes))


def test_a_branch_is_read_as_it_was_filed(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: bytes(range(256)), row("s"): None})
    file_branch(branch, gate)
    filed = gate.store.branch("a")
    assert filed == Filed(branch=branch, state=State.VERIFIED)
    assert gate.store.branches("d1") == [filed]
    assert gate.store.branch("b") is None


@pytest.mark.parametrize("at", ["put_write", "put_commit", "move", "flush"])
def test_a_commit_is_kept_whole_or_not_at_all(
    gate: CommitGate, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Wherever it fails: rows, commit, score record, states and log are as before."""
    branch, record = a_branch(gate, "a", [], {R: b"new"}), a_commit(winner="a", decision_id="d1")
    before, done = counts(gate.store), getattr(GateTransaction, at)

    def fail_after(self: GateTransaction, *arguments: Any, **named: Any) -> None:
        result = done(self, *arguments, **named)
        if at != "move" or Event.COMMIT in arguments:
            raise OSError("power cut")
        return result  # type: ignore[no-any-return]

    monkeypatch.setattr(GateTransaction, at, fail_after)
    with pytest.raises(OSError, match="power cut"):
        commit_branch(branch, gate, record=record)
    monkeypatch.undo()
    assert counts(gate.store) == before
    assert content(gate, R) is None
    assert gate.store.record(record.commit_id) is None
    commit_branch(branch, gate, record=record)
    assert gate.store.record(record.commit_id) == record


def test_a_generation_cannot_be_written_twice(gate: CommitGate) -> None:
    gate.store.transact(lambda t: t.put_write(a_write(1)))
    with pytest.raises(StoreError):
        gate.store.transact(lambda t: t.put_write(a_write(1)))
    assert gate.store.writes() == [a_write(1)]


def test_the_head_follows_the_writes(gate: CommitGate) -> None:
    assert gate.store.generation(R) == 0
    for generation in (1, 2, 3):
        gate.store.transact(lambda t, g=generation: t.put_write(a_write(g)))  # type: ignore[misc]
    back = a_write(4, content_of=2, replaced=3)
    gate.store.transact(lambda t: t.put_write(back))
    head = gate.store.transact(lambda t: t.heads([R, "other"]))
    assert (head[R].generation, head[R].content_of) == (4, 2)
    assert head["other"].generation == 0
    assert gate.store.transact(lambda t: t.write_at(R, 4)) == back
    assert [w.generation for w in gate.store.transact(lambda t: t.writes_of("a"))] == [1, 2, 3]


def test_a_commit_id_cannot_be_kept_twice(gate: CommitGate) -> None:
    outcome = CommitOutcome(commit_id="c", branch_id="a", request_digest="x", versions={})
    gate.store.transact(lambda t: t.put_commit(outcome, [], None))
    for other in (replace(outcome, branch_id="b"), replace(outcome, commit_id="c2")):
        with pytest.raises(StoreError):
            gate.store.transact(lambda t, o=other: t.put_commit(o, [], None))  # type: ignore[misc]
    assert gate.store.commits() == [outcome]
    assert gate.store.transact(lambda t: t.outcome("c")) == outcome


def test_a_read_without_a_version_is_not_kept(gate: CommitGate) -> None:
    outcome = CommitOutcome(commit_id="c", branch_id="a", request_digest="x", versions={})
    with pytest.raises(ValueError, match="without a version"):
        gate.store.transact(lambda t: t.put_commit(outcome, [Read(resource=R, version=None)], None))
    assert gate.store.commits() == []


def test_an_illegal_move_changes_nothing(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"x"})
    commit_branch(branch, gate)
    before, moves = gate.store.branch("a"), gate.store.moves()

    def two_moves(transaction: GateTransaction) -> None:
        filed = transaction.family("", "a")["a"]
        transaction.move(filed, Event.ROLL_BACK)
        transaction.move(filed, Event.REFUSE)

    with pytest.raises(IllegalMoveError):
        gate.store.transact(two_moves)
    assert gate.store.branch("a") == before
    assert gate.store.moves() == moves


def test_the_log_says_what_moved_and_why(gate: CommitGate) -> None:
    commit_branch(a_branch(gate, "a", [], {R: b"x"}), gate, commit_id="c1")
    moves = gate.store.moves("a")
    assert [(m.event, m.state, m.commit_id) for m in moves] == [
        (Event.ACCEPT, State.VERIFIED, ""),
        (Event.COMMIT, State.COMMITTED, "c1"),
    ]
    assert moves[0].position < moves[1].position
    assert all(m.detail == Detail() for m in moves)
    assert gate.store.moves("b") == []


def test_readers_are_the_committed_ones_since_a_generation(gate: CommitGate) -> None:
    commit_branch(a_branch(gate, "w", [], {R: b"x"}), gate)
    commit_branch(a_branch(gate, "r1", [R], decision_id="d2"), gate)
    file_branch(a_branch(gate, "r2", [R], decision_id="d3"), gate)
    assert gate.store.transact(lambda t: t.readers(R, 1, "w")) == ["r1"]
    assert gate.store.transact(lambda t: t.readers(R, 2, "w")) == []
    assert gate.store.transact(lambda t: t.readers(R, 1, "r1")) == []
    (first, second) = [r for r in gate.store.reads() if r.resource == R]
    assert (first.branch_id, first.generation, second.generation) == ("w", 0, 1)


def test_an_intent_stays_until_it_is_closed(gate: CommitGate) -> None:
    planned = Planned(
        resource=R, content=b"\x00\xff", before=None, before_token=a_version("0", 0).token
    )
    intent = Intent(
        commit_id="c",
        branch_id="a",
        request_digest="x",
        record=b"{}",
        writes=(planned,),
        resources=(R,),
    )
    gate.store.transact(lambda t: t.put_intent(intent))
    assert gate.store.intents() == [intent]
    gate.store.transact(lambda t: t.close_intent("c"))
    assert gate.store.intents() == []
