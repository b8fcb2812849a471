"""The checker must find each kind of damage: an honest history, with one thing changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.planner import commit_branch, rollback_branch
from harness.planner.branch import Branch
from harness.planner.gate import CommitGate
from harness.planner.gate_records import Detail
from harness.planner.gate_table import Event
from tests.planner.gate_examples import a_branch, a_gate, close_stores, content, row
from tests.planner.history import History, history_of, violations

R, S = row("r"), row("s")
OTHER = "9"


def appending(gate: CommitGate, name: str, *resources: str, also: tuple[str, ...] = ()) -> Branch:
    line = f"{name}\n".encode()
    writes: dict[str, bytes | None] = {r: (content(gate, r) or b"") + line for r in resources}
    return a_branch(gate, name, also, writes, decision_id=name)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Return the history of commits a, b; c refused; d rolled back; e after that."""
    gate = a_gate(f"sqlite:///{tmp_path_factory.mktemp('history')}/h.db", "r", "s")
    late = None
    for name in "ab":
        late = late or appending(gate, "c", R)
        commit_branch(appending(gate, name, R, S), gate)
    with pytest.raises(Exception, match="stale-write"):
        commit_branch(late or appending(gate, "c", R), gate)
    undone = appending(gate, "d", R)
    commit_branch(undone, gate)
    rollback_branch(undone, gate)
    commit_branch(appending(gate, "e", S, also=(R,)), gate)
    history = history_of(gate.store, told=[c.commit_id for c in gate.store.commits()])
    close_stores()
    return history


def test_an_honest_history_is_clean(honest: History, tmp_path: Path) -> None:
    assert violations(honest) == []
    assert honest.contents == {R: b"a\nb\n", S: b"a\nb\ne\n"}
    assert [move.event for move in honest.moves].count(Event.REFUSE) == 1


def without(history: History, branch_id: str) -> History:
    moves = [m for m in history.moves if (m.branch_id, m.event) != (branch_id, Event.COMMIT)]
    commits = [c for c in history.commits if c.branch_id != branch_id]
    return replace(history, moves=moves, commits=commits)


def with_detail(history: History, detail: Callable[[Detail], Detail]) -> History:
    moves = [
        replace(m, detail=detail(m.detail)) if m.event is Event.REFUSE else m for m in history.moves
    ]
    return replace(history, moves=moves)


def blame(history: History, name: str) -> History:
    def change(detail: Detail) -> Detail:
        assert detail.refusal is not None
        reads = tuple(replace(read, written_by=name) for read in detail.refusal.reads)
        return Detail(refusal=replace(detail.refusal, reads=reads))

    return with_detail(history, change)


def reads_moved(history: History, branch_id: str, by: int) -> History:
    reads = [
        replace(r, generation=r.generation + by) if r.branch_id == branch_id else r
        for r in history.reads
    ]
    return replace(history, reads=reads)


DAMAGE: dict[str, tuple[Callable[[History], History], str]] = {
    "bytes were overwritten": (
        lambda h: replace(h, contents={**h.contents, S: b"b\ne\n"}),
        f"{S}: e at 3 lost an update",
    ),
    "bytes of a dead branch are back": (
        lambda h: replace(h, contents={**h.contents, R: b"a\nb\nd\n"}),
        "lost an update",
    ),
    "a generation is missing": (lambda h: replace(h, writes=h.writes[1:]), "have gaps"),
    "a version was skipped": (
        lambda h: replace(h, writes=[*h.writes[:-1], replace(h.writes[-1], before_token=OTHER)]),
        "replaced another version",
    ),
    "verified against an older version": (
        lambda h: reads_moved(h, "b", -1),
        "b was not verified against what it replaced",
    ),
    "a read that no order explains": (
        lambda h: replace(
            h, reads=[replace(r, generation=0) if r.resource == R else r for r in h.reads]
        ),
        "no order explains the commits",
    ),
    "committed twice": (lambda h: replace(h, moves=h.moves * 2), "was committed 2 times"),
    "told and not there": (lambda h: replace(h, told={"commit-x"}), "commit-x was told"),
    "a commit without its log": (
        lambda h: replace(h, moves=without(h, "a").moves),
        "the log and the commits disagree",
    ),
    "a refusal without a reason": (
        lambda h: with_detail(h, lambda _: Detail()),
        "without a reason",
    ),
    "the wrong writer": (lambda h: blame(h, "e"), "names the wrong writer"),
}


@pytest.mark.parametrize(("damage", "found"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_found(honest: History, damage: Callable[[History], History], found: str) -> None:
    lines = violations(damage(honest))
    assert any(found in line for line in lines), lines
