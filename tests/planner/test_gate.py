import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.errors import (
    CommitRefusedError,
    ConfigError,
    IllegalMoveError,
    InvalidRecordError,
    ReverificationNeededError,
    StaleVerificationError,
    StoreError,
)
from harness.planner import (
    Branch,
    BranchVerdict,
    CommitGate,
    FileResource,
    RefusalReason,
    StaleRead,
    State,
    Step,
    StepKind,
    commit_branch,
    file_branch,
    recover,
    rollback_branch,
)
from harness.planner.gate_table import Event
from harness.planner.resources.resource import Snapshot, conflict
from tests.examples import a_commit
from tests.planner.gate_examples import (
    a_branch,
    a_database,
    a_gate,
    a_version,
    content,
    row,
    seen,
)

ROOT = Path(__file__).parents[2]
R, S, T = row("r"), row("s"), row("t")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_database(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def gate(url: str) -> CommitGate:
    made = a_gate(url, "r", "s", "t")
    commit_branch(a_branch(made, "start", [], {R: b"four", S: b"s"}, decision_id="d0"), made)
    return made


def state(gate: CommitGate, branch_id: str) -> State:
    filed = gate.store.branch(branch_id)
    assert filed is not None
    return filed.state


def with_verifier(gate: CommitGate, verify: Callable[..., Iterable[Branch]]) -> CommitGate:
    return CommitGate(store=gate.store, resources=gate.resources, reverify=verify)


def refused(branch: Branch, gate: CommitGate) -> CommitRefusedError:
    with pytest.raises(CommitRefusedError) as caught:
        commit_branch(branch, gate)
    assert state(gate, branch.branch_id) is State.REFUSED
    return caught.value


def test_a_current_branch_commits(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [S], {R: b"five"})
    outcome = commit_branch(branch, gate)
    assert outcome.versions == {R: a_version("2", 2)}
    assert seen(gate, R) == outcome.versions[R]
    assert content(gate, R) == b"five"
    assert state(gate, "a") is State.COMMITTED


def test_a_stale_read_that_it_writes_refuses_it(gate: CommitGate) -> None:
    late, early = (a_branch(gate, name, [], {R: name.encode()}) for name in ("late", "early"))
    commit_branch(early, gate)
    error = refused(late, gate)
    assert type(error) is StaleVerificationError
    assert error.refusal.reason is RefusalReason.STALE_WRITE
    assert str(error) == (
        "branch 'late' refused (stale-write): branch 'late' was verified against "
        f"{R} at 1 (generation 1), found 2 (generation 2) (branch 'early' wrote it); "
        "fork a new branch from the current version"
    )
    assert content(gate, R) == b"early"


def test_a_stale_read_that_it_does_not_write_holds_it(gate: CommitGate) -> None:
    held = a_branch(gate, "held", [R], {S: b"new"})
    commit_branch(a_branch(gate, "other", [], {R: b"five"}), gate)
    with pytest.raises(ReverificationNeededError, match=r"(?s)held: .* \(branch 'other' wrote it"):
        commit_branch(held, gate)
    assert state(gate, "held") is State.HELD
    assert content(gate, S) == b"s"
    commit_branch(a_branch(gate, "held", [R], {S: b"new"}), gate)
    assert content(gate, S) == b"new"


def test_the_verifier_is_asked_and_the_gate_tries_again(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [R], {S: b"new"})
    commit_branch(a_branch(gate, "b", [], {R: b"five"}), gate)
    asked: list[tuple[Branch, tuple[StaleRead, ...]]] = []

    def verify(held: Branch, stale: tuple[StaleRead, ...]) -> list[Branch]:
        asked.append((held, stale))
        return [a_branch(gate, "a", [R], {S: b"new"})]

    commit_branch(branch, with_verifier(gate, verify))
    ((held, (stale,)),) = asked
    assert held == branch
    assert (stale.resource, stale.read_by, stale.written_by) == (R, "a", "b")
    assert stale.found == seen(gate, R)
    assert content(gate, S) == b"new"


def test_a_world_that_keeps_moving_refuses_it_in_the_end(gate: CommitGate) -> None:
    branch, num_asked = a_branch(gate, "a", [R], {S: b"new"}), 0

    def move_r() -> None:
        mover = a_branch(gate, f"mover{num_asked}", [], {R: b"x%d" % num_asked}, decision_id="d2")
        commit_branch(mover, gate)

    def verify(_held: Branch, _stale: object) -> list[Branch]:
        nonlocal num_asked
        again = a_branch(gate, "a", [R], {S: b"new"})
        num_asked += 1
        move_r()
        return [again]

    move_r()
    error = refused(branch, with_verifier(gate, verify))
    assert num_asked == CommitGate(store=gate.store, resources={}).max_reverifications
    assert error.refusal.reason is RefusalReason.WORLD_KEEPS_MOVING
    assert content(gate, S) == b"s"


VERIFIERS_THAT_REFUSE: dict[str, Callable[..., list[Branch]]] = {
    "gives it up": lambda _held, _stale: [],
    "rejects it": lambda held, _stale: [replace(held, verdict=BranchVerdict(accepted=False))],
}


@pytest.mark.parametrize("verify", VERIFIERS_THAT_REFUSE.values(), ids=VERIFIERS_THAT_REFUSE)
def test_a_verifier_that_refuses(gate: CommitGate, verify: Callable[..., list[Branch]]) -> None:
    branch = a_branch(gate, "a", [R], {S: b"new"})
    commit_branch(a_branch(gate, "b", [], {R: b"five"}), gate)
    assert refused(branch, with_verifier(gate, verify)).refusal.reason is RefusalReason.REJECTED
    assert content(gate, S) == b"s"


def test_a_verifier_cannot_change_the_effects(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [R], {S: b"new"})
    commit_branch(a_branch(gate, "b", [], {R: b"five"}), gate)
    changes = with_verifier(gate, lambda *_: [a_branch(gate, "a", [R], {S: b"other"})])
    with pytest.raises(InvalidRecordError, match="another write set"):
        commit_branch(branch, changes)
    assert state(gate, "a") is State.HELD


def test_four_comes_back_under_a_new_version(gate: CommitGate) -> None:
    """A verified against 4; B writes 5 and is rolled back; the bytes of 4 are there again."""
    writer, reader = a_branch(gate, "a", [], {R: b"A"}), a_branch(gate, "c", [R], {S: b"C"})
    sibling = a_branch(gate, "b", [], {R: b"five"})
    commit_branch(sibling, gate)
    rollback_branch(sibling, gate)
    assert content(gate, R) == b"four"
    error = refused(writer, gate)
    assert error.refusal.reason is RefusalReason.STALE_WRITE
    assert "found 3 (generation 3) (branch 'b' wrote it)" in str(error)
    with pytest.raises(ReverificationNeededError):
        commit_branch(reader, gate)
    assert content(gate, R) == b"four"


def test_five_that_could_not_be_undone_is_not_overwritten(gate: CommitGate) -> None:
    """B is rolled back in words only: its 5 was built on and stays."""
    writer = a_branch(gate, "a", [], {R: b"A"})
    sibling = a_branch(gate, "b", [], {R: b"five"})
    commit_branch(sibling, gate)
    commit_branch(a_branch(gate, "c", [R], {S: b"C"}), gate)
    assert [kept.resource for kept in rollback_branch(sibling, gate).kept] == [R]
    refused(writer, gate)
    assert content(gate, R) == b"five"


def test_a_held_branch_stays_held_though_old_bytes_come_back(tmp_path: Path, url: str) -> None:
    """With a store whose token is a digest of the bytes, and a writer outside the gate."""
    digests = Digests("etag:x", b"four")
    gate = a_gate(url, "r", others=[digests])
    branch = a_branch(gate, "a", [digests.resource_id], {R: b"new"})
    digests.held = b"five"
    with pytest.raises(ReverificationNeededError):
        commit_branch(branch, gate)
    digests.held = b"four"
    with pytest.raises(ReverificationNeededError):
        commit_branch(branch, gate)
    assert content(gate, R) is None


def test_old_bytes_that_come_back_through_the_gate_under_the_same_etag(url: str) -> None:
    digests = Digests("etag:x", b"four")
    gate = a_gate(url, others=[digests])
    name = digests.resource_id
    writer, sibling = (a_branch(gate, key, [], {name: key.encode()}) for key in "ab")
    commit_branch(sibling, gate)
    rollback_branch(sibling, gate)
    now = seen(gate, name)
    assert now is not None
    assert now.token == writer.read_set[name].token  # type: ignore[union-attr]
    assert "generation 0), found etag:four (generation 2)" in str(refused(writer, gate))
    assert digests.held == b"four"


class Digests:
    """A store whose version is its content: the weakest there is."""

    def __init__(self, resource_id: str, held: bytes | None) -> None:
        self.resource_id, self.held = resource_id, held
        self.before_write: Callable[[], None] = lambda: None
        self.after_write: Callable[[], None] = lambda: None

    def version(self) -> str:
        return f"etag:{(self.held or b'').decode()}"

    def read(self) -> Snapshot:
        return Snapshot(content=self.held, token=self.version())

    def write(self, content: bytes | None, expected: str) -> str:
        self.before_write()
        if self.version() != expected:
            raise conflict(self.resource_id, expected, self.version())
        self.held = content
        self.after_write()
        return self.version()


def test_a_write_while_it_is_pinned_makes_the_pin_old(url: str) -> None:
    """Between the two halves of a pin, a sibling writes and is rolled back."""
    digests = Digests("etag:x", b"four")
    gate, name = a_gate(url, others=[digests]), digests.resource_id
    sibling, read = a_branch(gate, "b", [], {name: b"five"}), digests.read

    def read_and_lose_time() -> Snapshot:
        digests.read = read  # type: ignore[method-assign]
        snapshot = read()
        commit_branch(sibling, gate)
        rollback_branch(sibling, gate)
        return snapshot

    digests.read = read_and_lose_time  # type: ignore[method-assign]
    refused(a_branch(gate, "a", [], {name: b"A"}), gate)


def test_a_siblings_stale_read_counts(gate: CommitGate) -> None:
    mine, sibling = a_branch(gate, "a", [], {S: b"A"}), a_branch(gate, "b", [R])
    commit_branch(a_branch(gate, "z", [], {R: b"five"}, decision_id="d2"), gate)
    with pytest.raises(ReverificationNeededError, match="branch 'b' was verified against"):
        commit_branch(mine, gate, siblings=[sibling])
    rollback_branch(sibling, gate)
    file_branch(mine, gate)
    commit_branch(mine, gate)
    assert content(gate, S) == b"A"


def test_a_sibling_can_be_verified_again_with_it(gate: CommitGate) -> None:
    mine, sibling = a_branch(gate, "a", [], {S: b"A"}), a_branch(gate, "b", [R])
    commit_branch(a_branch(gate, "z", [], {R: b"five"}, decision_id="d2"), gate)
    both = with_verifier(gate, lambda *_: [mine, a_branch(gate, "b", [R])])
    commit_branch(mine, both, siblings=[sibling])
    assert content(gate, S) == b"A"


def test_a_siblings_stale_read_of_what_it_writes_refuses_it(gate: CommitGate) -> None:
    sibling = a_branch(gate, "b", [R])
    file_branch(sibling, gate)
    commit_branch(a_branch(gate, "z", [], {R: b"five"}, decision_id="d2"), gate)
    error = refused(a_branch(gate, "a", [], {R: b"A"}), gate)
    assert error.refusal.reads[0].read_by == "b"
    assert content(gate, R) == b"five"


def test_a_branch_of_another_decision_does_not_count(gate: CommitGate) -> None:
    file_branch(a_branch(gate, "b", [R], decision_id="d9"), gate)
    commit_branch(a_branch(gate, "z", [], {R: b"five"}, decision_id="d2"), gate)
    commit_branch(a_branch(gate, "a", [], {R: b"A"}), gate)


def test_a_sibling_of_another_decision_is_refused(gate: CommitGate) -> None:
    mine = a_branch(gate, "a", [], {R: b"A"})
    with pytest.raises(InvalidRecordError, match="it is no sibling"):
        commit_branch(mine, gate, siblings=[a_branch(gate, "b", decision_id="d9")])
    file_branch(a_branch(gate, "b", decision_id="d9"), gate)
    with pytest.raises(InvalidRecordError, match="'b' stands under decision 'd9'"):
        commit_branch(mine, gate, siblings=[a_branch(gate, "b")])
    assert content(gate, R) == b"four"


def test_no_version_no_commit(gate: CommitGate) -> None:
    error = refused(a_branch(gate, "a", [], {R: b"A"}, read_set={R: None}), gate)
    assert error.refusal.reason is RefusalReason.UNVERSIONED
    assert content(gate, R) == b"four"


def test_no_blind_write(gate: CommitGate) -> None:
    error = refused(a_branch(gate, "a", [S], read_set={}, writes={T: b"A"}), gate)
    assert error.refusal.reason is RefusalReason.BLIND_WRITE
    assert content(gate, T) is None


def test_a_tool_results_reads_count(gate: CommitGate) -> None:
    old = seen(gate, R)
    commit_branch(a_branch(gate, "b", [], {R: b"five"}), gate)
    step = Step(kind=StepKind.TOOL_RESULT, text="read r", reads={R: old})
    refused(a_branch(gate, "a", [], {R: b"A"}, steps=(step,)), gate)


def test_only_a_verified_branch_commits(gate: CommitGate) -> None:
    hasty = a_branch(gate, "a", [], {R: b"A"}, verdict=None)
    with pytest.raises(IllegalMoveError, match="'a' is open: it cannot commit"):
        commit_branch(hasty, gate)
    assert gate.store.branch("a") is None
    no = BranchVerdict(accepted=False, note="step 2 does not follow")
    error = refused(replace(hasty, verdict=no), gate)
    assert "step 2 does not follow" in str(error)
    assert content(gate, R) == b"four"


def test_new_steps_need_a_new_verdict(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"A"})
    assert file_branch(branch, gate) is State.VERIFIED
    assert file_branch(replace(branch, verdict=None), gate) is State.OPEN


def test_the_same_commit_id_commits_once(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"five"})
    first = commit_branch(branch, gate, commit_id="c1")
    commit_branch(a_branch(gate, "b", [], {R: b"six"}), gate)
    before = len(gate.store.moves())
    assert commit_branch(branch, gate, commit_id="c1") == first
    assert content(gate, R) == b"six"
    assert len(gate.store.moves()) == before
    with pytest.raises(InvalidRecordError, match="'c1' already stands for other content"):
        commit_branch(a_branch(gate, "c", [], {R: b"C"}), gate, commit_id="c1")
    with pytest.raises(IllegalMoveError, match="'a' is committed"):
        commit_branch(branch, gate, commit_id="c2")


def test_a_refusal_is_repeated_not_decided_again(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"A"})
    commit_branch(a_branch(gate, "b", [], {R: b"five"}), gate)
    first = refused(branch, gate)
    assert str(refused(branch, gate)) == str(first)
    assert [m.event for m in gate.store.moves("a")] == [Event.ACCEPT, Event.REFUSE]


def test_an_unknown_outcome_is_settled_by_asking_again(
    gate: CommitGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, transact = a_branch(gate, "a", [], {R: b"five"}), gate.store.transact

    def cut_off(work: Callable[..., object]) -> object:
        transact(work)
        raise StoreError("the connection broke")

    monkeypatch.setattr(gate.store, "transact", cut_off)
    with pytest.raises(StoreError):
        commit_branch(branch, gate)
    monkeypatch.undo()
    commit_branch(branch, gate)
    assert seen(gate, R) == a_version("2", 2)


def test_the_score_record_is_kept_with_the_commit(gate: CommitGate) -> None:
    record = a_commit(winner="a", decision_id="d1")
    outcome = commit_branch(a_branch(gate, "a", [], {R: b"A"}), gate, record=record)
    assert outcome.commit_id == record.commit_id
    assert gate.store.record(record.commit_id) == record
    assert gate.store.record("other") is None


def test_the_score_record_of_a_refused_commit_is_not_kept(gate: CommitGate) -> None:
    record = a_commit(winner="a", decision_id="d1")
    branch = a_branch(gate, "a", [], {R: b"A"})
    commit_branch(a_branch(gate, "z", [], {R: b"five"}), gate)
    with pytest.raises(StaleVerificationError):
        commit_branch(branch, gate, record=record)
    assert gate.store.record(record.commit_id) is None


BAD_SCORE_RECORDS = {
    "another winner": ({"winner": "b"}, "winner is 'b'"),
    "another decision": ({"winner": "a", "decision_id": "d7"}, "about decision 'd7'"),
    "speculative": ({"winner": "a", "committed": False}, "not committed"),
}


@pytest.mark.parametrize(
    ("changes", "why"), BAD_SCORE_RECORDS.values(), ids=list(BAD_SCORE_RECORDS)
)
def test_a_score_record_about_something_else(
    gate: CommitGate, changes: dict[str, object], why: str
) -> None:
    branch = a_branch(gate, "a", [], {R: b"A"})
    with pytest.raises(InvalidRecordError, match=why):
        commit_branch(branch, gate, record=a_commit(**{"decision_id": "d1", **changes}))
    assert content(gate, R) == b"four"


def test_rollback_brings_the_old_content_back_at_a_new_version(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"five", S: None, T: b"new"})
    commit_branch(branch, gate)
    report = rollback_branch(branch, gate)
    assert [content(gate, name) for name in (R, S, T)] == [b"four", b"s", None]
    assert report.undone[R] == a_version("3", 3)
    assert report.kept == ()
    assert rollback_branch(branch, gate) == report
    assert seen(gate, R) == report.undone[R]
    assert state(gate, "a") is State.ROLLED_BACK


def test_rollback_leaves_what_others_built_on(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"five", S: b"a", T: b"new"})
    commit_branch(branch, gate)
    writer = a_branch(gate, "w", [], {R: b"six"}, decision_id="d2")
    commit_branch(writer, gate)
    commit_branch(a_branch(gate, "x", [S], decision_id="d2"), gate)
    report = rollback_branch(branch, gate)
    assert {kept.resource: kept.reason for kept in report.kept} == {
        R: "branch 'w' has written it since",
        S: "committed branch 'x' rests on it",
    }
    assert list(report.undone) == [T]
    assert [content(gate, name) for name in (R, S, T)] == [b"six", b"a", None]


def test_two_rollbacks_one_after_the_other_reach_the_start(gate: CommitGate) -> None:
    first = a_branch(gate, "a", [], {R: b"five"})
    commit_branch(first, gate)
    second = a_branch(gate, "b", [], {R: b"six"}, decision_id="d2")
    commit_branch(second, gate)
    assert rollback_branch(second, gate).kept == ()
    assert content(gate, R) == b"five"
    assert rollback_branch(first, gate).kept == ()
    assert content(gate, R) == b"four"


def test_rollback_of_what_was_never_committed(gate: CommitGate) -> None:
    branch = a_branch(gate, "a", [], {R: b"A"})
    assert rollback_branch(branch, gate).undone == {}
    assert content(gate, R) == b"four"
    with pytest.raises(IllegalMoveError, match="rolled_back"):
        commit_branch(branch, gate)
    stale = a_branch(gate, "b", [], {R: b"B"}, read_set={R: None})
    refused(stale, gate)
    with pytest.raises(IllegalMoveError, match="'b' is refused: it cannot roll_back"):
        rollback_branch(stale, gate)


def test_rollback_leaves_what_changed_outside_the_gate(tmp_path: Path, url: str) -> None:
    file = FileResource(tmp_path / "f")
    gate = a_gate(url, others=[file])
    branch = a_branch(gate, "a", [], {file.resource_id: b"A"})
    commit_branch(branch, gate)
    file.path.write_bytes(b"mine")
    (kept,) = rollback_branch(branch, gate).kept
    assert "changed outside the gate" in kept.reason
    assert file.path.read_bytes() == b"mine"


def test_an_unknown_resource_is_the_callers_error(gate: CommitGate) -> None:
    ghost = {row("ghost"): a_version("1", 0)}
    with pytest.raises(ConfigError, match="'row:planner_rows/ghost' is not among"):
        commit_branch(a_branch(gate, "a", read_set=ghost), gate)


# Writes outside the gate's database.


class Crash(BaseException):
    """The process ends here."""


def crash() -> None:
    raise Crash


@pytest.fixture
def outside(url: str) -> tuple[CommitGate, Digests, Digests]:
    one, two = Digests("etag:1", b"one"), Digests("etag:2", b"two")
    return a_gate(url, "r", others=[one, two]), one, two


Outside = tuple[CommitGate, Digests, Digests]
WRITES: dict[str, bytes | None] = {"etag:1": b"ONE", "etag:2": b"TWO", R: b"R"}


def world(outside: Outside) -> list[bytes | None]:
    gate, one, two = outside
    return [one.held, two.held, content(gate, R)]


def test_outside_and_inside_are_written(outside: Outside) -> None:
    gate = outside[0]
    outcome = commit_branch(a_branch(gate, "a", [], WRITES), gate)
    assert world(outside) == [b"ONE", b"TWO", b"R"]
    assert outcome.versions["etag:2"] == a_version("etag:TWO", 1)
    assert gate.store.intents() == []


CRASHES = ["1 before_write", "1 after_write", "2 before_write", "2 after_write"]


@pytest.mark.parametrize("where", CRASHES)
@pytest.mark.parametrize("how", ["retry", "recover", "another branch", "rollback"])
def test_a_crash_between_outside_writes_is_finished(outside: Outside, where: str, how: str) -> None:
    gate, one, two = outside
    branch, at = a_branch(gate, "a", [], WRITES), {"1": one, "2": two}[where[0]]
    setattr(at, where[2:], crash)
    with pytest.raises(Crash):
        commit_branch(branch, gate)
    setattr(at, where[2:], lambda: None)
    assert content(gate, R) is None
    if how == "retry":
        commit_branch(branch, gate)
    elif how == "recover":
        assert recover(gate) == [gate.store.commits()[0].commit_id]
        assert recover(gate) == []
    elif how == "another branch":
        late = a_branch(gate, "late", [], {"etag:2": b"late"}, decision_id="d2")
        refused(late, gate)
    else:
        assert sorted(rollback_branch(branch, gate).undone) == sorted(WRITES)
    undone = how == "rollback"
    assert world(outside) == ([b"one", b"two", None] if undone else [b"ONE", b"TWO", b"R"])
    assert state(gate, "a") is (State.ROLLED_BACK if undone else State.COMMITTED)
    assert gate.store.intents() == []


def test_a_commit_overtaken_half_way_is_taken_back(outside: Outside) -> None:
    gate, one, two = outside
    branch, before = a_branch(gate, "a", [], WRITES), seen(gate, "etag:1")
    one.after_write = lambda: setattr(two, "held", b"outsider")
    error = refused(branch, gate)
    assert error.refusal.reason is RefusalReason.OVERTAKEN
    assert "etag:1 was written and taken back" in str(error)
    assert world(outside) == [b"one", b"outsider", None]
    now = seen(gate, "etag:1")
    assert now is not None
    assert before is not None
    assert (now.token, now.generation) == (before.token, before.generation + 2)


def test_what_cannot_be_taken_back_is_reported(outside: Outside) -> None:
    gate, one, two = outside
    branch = a_branch(gate, "a", [], WRITES)

    def overtake() -> None:
        one.held = two.held = b"outsider"

    two.before_write = overtake
    error = refused(branch, gate)
    assert "etag:1 was written and could not be taken back" in str(error)
    assert world(outside) == [b"outsider", b"outsider", None]


def test_after_a_crash_the_ruling_is_made_again(outside: Outside) -> None:
    gate, one, two = outside
    branch = a_branch(gate, "a", [], WRITES)
    one.after_write = crash
    with pytest.raises(Crash):
        commit_branch(branch, gate)
    one.after_write = lambda: None
    two.held = b"outsider"
    assert refused(branch, gate).refusal.reason is RefusalReason.OVERTAKEN
    assert world(outside) == [b"one", b"outsider", None]


def test_nothing_done_and_a_stale_read_only_holds(outside: Outside) -> None:
    gate, one, two = outside
    branch = a_branch(gate, "a", ["etag:2"], {"etag:1": b"ONE"})
    one.before_write = crash
    with pytest.raises(Crash):
        commit_branch(branch, gate)
    one.before_write = lambda: None
    two.held = b"outsider"
    with pytest.raises(ReverificationNeededError):
        commit_branch(branch, gate)
    assert (one.held, state(gate, "a")) == (b"one", State.HELD)


def test_a_store_that_does_not_answer_leaves_the_commit_to_be_finished(outside: Outside) -> None:
    gate, _one, two = outside
    branch = a_branch(gate, "a", [], WRITES)

    def silent() -> None:
        raise StoreError("no answer")

    two.after_write = silent
    with pytest.raises(StoreError):
        commit_branch(branch, gate)
    two.after_write = lambda: None
    with pytest.raises(IllegalMoveError, match="is unfinished"):
        file_branch(branch, gate)
    commit_branch(branch, gate)
    assert world(outside) == [b"ONE", b"TWO", b"R"]


def test_a_crash_while_rolling_back_is_finished(outside: Outside) -> None:
    gate, _one, two = outside
    branch = a_branch(gate, "a", [], WRITES)
    commit_branch(branch, gate)
    two.after_write = crash
    with pytest.raises(Crash):
        rollback_branch(branch, gate)
    two.after_write = lambda: None
    assert sorted(rollback_branch(branch, gate).undone) == sorted(WRITES)
    assert world(outside) == [b"one", b"two", None]


def test_it_loads_without_the_heavy_libraries() -> None:
    code = "import sys, harness.planner\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert "harness.planner.gate" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "sqlalchemy", "httpx", "typer"})
