import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import IllegalMoveError, InvalidRecordError, VersionConflictError
from harness.planner.ledger import (
    SHARED,
    Account,
    BranchContaminationError,
    BranchEvent,
    BranchLedger,
    BranchState,
    BudgetExceededError,
    CacheKey,
    Draft,
    DraftChange,
    DraftDecision,
    DraftState,
    Finding,
    KeyUse,
    VerifierScore,
    Write,
)
from harness.planner.ledger.dependencies import DependencyGraph
from harness.planner.ledger.drafts import DRAFT_TABLE, next_state
from harness.planner.ledger.events import MarkedDead, Swept
from tests.planner.ledger_model import CrashError, SharedList, contaminated, offer, scored

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ledger() -> BranchLedger:
    """Return a ledger with branches a, b, c in flight."""
    ledger = BranchLedger()
    for branch_id in "abc":
        ledger.open_branch(branch_id)
    return ledger


def entry(branch_id: str, name: str, generation: int = 0) -> CacheKey:
    return CacheKey(branch_id=branch_id, name=name, generation=generation)


def draft(branch_id: str, *reads: CacheKey, draft_id: str = "d") -> Draft:
    return Draft(draft_id=draft_id, branch_id=branch_id, reads=reads)


def chain(ledger: BranchLedger, *names: str) -> CacheKey:
    """Record that each ``branch/name`` was computed from the one before; return the last."""
    key = None
    for place in names:
        branch_id, name = place.split("/")
        key = ledger.record_dependency(branch_id, name, reads=() if key is None else (key,))
    assert key is not None
    return key


def state(ledger: BranchLedger, draft_id: str = "d") -> DraftState:
    return ledger.decision(draft_id).state


# --- who sees what


def test_a_write_is_seen_by_its_branch_only_until_it_is_promoted(ledger: BranchLedger) -> None:
    written = ledger.record_dependency("a", "k")
    assert ledger.visible("a", "k") == written == entry("a", "k")
    assert ledger.visible("b", "k") == entry(SHARED, "k")
    ledger.promote("a")
    assert ledger.visible("b", "k") == written


def test_a_branch_prefers_its_own_entry_to_the_promoted_one(ledger: BranchLedger) -> None:
    ledger.record_dependency("a", "k")
    own = ledger.record_dependency("b", "k")
    ledger.promote("a")
    assert ledger.visible("b", "k") == own


def test_two_branches_that_write_one_key_write_two_entries(ledger: BranchLedger) -> None:
    first, second = ledger.record_dependency("a", "k"), ledger.record_dependency("b", "k")
    ledger.record_dependency("c", "sum", reads=(second,))
    assert first.address != second.address
    assert offer(ledger, draft("c", entry("c", "sum"))).waits_for == ("b",)
    ledger.rollback("a")
    assert state(ledger) is DraftState.HELD
    ledger.rollback("b")
    assert state(ledger) is DraftState.REJECTED
    assert ledger.use_of("k") == KeyUse(name="k", writers=("a", "b"), readers=("c",))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (entry("a", "b/c"), entry("a/b", "c")),
        (entry("a", "k", 1), entry("a", "k@1")),
        (entry("a", "k%40"), entry("a", "k@")),
        (entry("", "a/k"), entry("a", "k")),
    ],
)
def test_addresses_do_not_meet(left: CacheKey, right: CacheKey) -> None:
    assert left.address != right.address


@pytest.mark.parametrize(
    "wrong", [("a", "", 0), ("a", "k", -1), ("a", "\ud800", 0), ("\ud800", "k", 0)]
)
def test_what_is_no_key_is_refused(wrong: tuple[str, str, int]) -> None:
    with pytest.raises(InvalidRecordError, match="no cache key"):
        entry(*wrong)


# --- the decision


def test_a_draft_that_meets_no_other_branch_is_accepted(ledger: BranchLedger) -> None:
    key = chain(ledger, "a/one", "a/two")
    decision = offer(ledger, draft("a", key, entry(SHARED, "prompt")))
    assert decision == DraftDecision(
        draft_id="d",
        state=DraftState.ACCEPTED,
        finding=Finding.DISJOINT,
        closure_digest=ledger.closure(draft("a", key, entry(SHARED, "prompt"))).digest,
    )


def test_a_draft_is_held_transitively_and_decided_without_asking_again(
    ledger: BranchLedger,
) -> None:
    key = chain(ledger, "a/one", "b/two", "c/three")
    decision = offer(ledger, draft("c", key))
    assert (decision.state, decision.waits_for) == (DraftState.HELD, ("a", "b"))
    first = ledger.promote("a")
    assert first.changes == ()
    assert ledger.decision("d").waits_for == ("b",)
    second = ledger.resolve("b", BranchEvent.PROMOTE)
    accepted = DraftChange(draft_id="d", before=DraftState.HELD, after=DraftState.ACCEPTED)
    assert second.changes == (accepted,)
    assert state(ledger) is DraftState.ACCEPTED


def test_a_held_draft_is_rejected_when_the_branch_dies(ledger: BranchLedger) -> None:
    offer(ledger, draft("c", chain(ledger, "a/one", "b/two")))
    resolution = ledger.resolve("a", BranchEvent.ROLL_BACK)
    rejected = DraftChange(draft_id="d", before=DraftState.HELD, after=DraftState.REJECTED)
    assert (resolution.changes, resolution.state) == ((rejected,), BranchState.DEAD)


def test_a_rejection_names_the_shortest_path_of_keys(ledger: BranchLedger) -> None:
    far = chain(ledger, "a/1", "b/2", "c/3", "c/4")
    near = chain(ledger, "a/x", "b/y")
    ledger.rollback("a")
    with pytest.raises(BranchContaminationError) as caught:
        offer(ledger, draft("c", far, near))
    assert str(caught.value) == (
        "draft 'd' is rejected: c/draft:d reads b/y reads a/x, and branch 'a' was rolled back; "
        "draft it again, without what depends on that branch"
    )
    assert ledger.decision("d").path == (draft("c").key, entry("b", "y"), entry("a", "x"))


def test_a_draft_of_a_dead_branch_is_rejected(ledger: BranchLedger) -> None:
    ledger.rollback("a")
    with pytest.raises(BranchContaminationError, match="rejected: a/draft:d, and branch 'a'"):
        offer(ledger, draft("a"))


def test_a_rejected_draft_is_rejected_again(ledger: BranchLedger) -> None:
    offered = draft("b", chain(ledger, "a/one"))
    score = scored(ledger.closure(offered))
    ledger.rollback("a")
    for _ in range(2):
        with pytest.raises(BranchContaminationError):
            ledger.accept_draft(offered, score)
    assert ledger.decision("d").state is DraftState.REJECTED


def test_cycles_are_walked_once(ledger: BranchLedger) -> None:
    one = ledger.record_dependency("a", "one", reads=(entry("b", "two"),))
    two = ledger.record_dependency("b", "two", reads=(one, entry("b", "two")))
    assert offer(ledger, draft("c", two)).waits_for == ("a", "b")
    with pytest.raises(IllegalMoveError, match="resolve 'b' first, or promote them together"):
        ledger.promote("a")
    assert ledger.promote("a", "b").changes[0].after is DraftState.ACCEPTED
    ledger.rollback("a")
    assert state(ledger) is DraftState.REJECTED


def test_a_draft_can_be_built_on_a_draft(ledger: BranchLedger) -> None:
    first = draft("a", chain(ledger, "a/one"), draft_id="first")
    second = draft("b", first.key, draft_id="second")
    assert offer(ledger, first).state is DraftState.ACCEPTED
    assert offer(ledger, second).waits_for == ("a",)
    ledger.promote("a")
    assert state(ledger, "second") is DraftState.ACCEPTED
    changes = ledger.rollback("a").changes
    assert [change.draft_id for change in changes] == ["first", "second"]
    assert all(change.before is DraftState.ACCEPTED for change in changes)


# --- the score is bound to the closure


def test_a_score_for_another_closure_does_not_count(ledger: BranchLedger) -> None:
    key = chain(ledger, "a/one")
    other = scored(ledger.closure(draft("a")))
    assert ledger.accept_draft(draft("a", key), other).state is DraftState.UNSCORED
    assert offer(ledger, draft("a", key)).state is DraftState.ACCEPTED
    assert ledger.accept_draft(draft("a", key), other).state is DraftState.ACCEPTED


def test_a_late_edge_takes_the_score_away(ledger: BranchLedger) -> None:
    key = chain(ledger, "a/one", "a/two")
    assert offer(ledger, draft("a", key)).state is DraftState.ACCEPTED
    ledger.record_dependency("a", "one", reads=(entry("b", "late"),))
    assert state(ledger) is DraftState.UNSCORED
    assert offer(ledger, draft("a", key)).waits_for == ("b",)


def test_a_late_edge_to_a_dead_branch_rejects_an_accepted_draft(ledger: BranchLedger) -> None:
    assert offer(ledger, draft("a", chain(ledger, "a/one", "a/two"))).state is DraftState.ACCEPTED
    ledger.rollback("b")
    ledger.record_dependency("a", "one", reads=(entry("b", "late"),))
    assert state(ledger) is DraftState.REJECTED
    assert [str(key) for key in ledger.decision("d").path] == [
        "a/draft:d",
        "a/two",
        "a/one",
        "b/late",
    ]


def test_a_new_version_is_a_new_entry_and_leaves_old_readers_alone(ledger: BranchLedger) -> None:
    old = ledger.record_dependency("a", "k", version="v1")
    assert offer(ledger, draft("a", old)).state is DraftState.ACCEPTED
    new = ledger.record_dependency("a", "k", version="v2", reads=(entry("b", "x"),))
    assert (new, ledger.visible("a", "k")) == (entry("a", "k", 1), new)
    assert state(ledger) is DraftState.ACCEPTED
    again = ledger.record_dependency("a", "k", version="v1")
    assert again == entry("a", "k", 2), "old bytes that come back are a new write"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_is_finite(value: float) -> None:
    with pytest.raises(InvalidRecordError, match="finite"):
        VerifierScore(value=value, closure_digest="sha256:0")


def test_the_order_of_edges_does_not_change_the_digest() -> None:
    digests = set()
    for reads in ([entry("a", "x"), entry("a", "y")], [entry("a", "y"), entry("a", "x")]):
        ledger = BranchLedger()
        ledger.open_branch("a")
        digests.add(ledger.closure(draft("a", *reads)).digest)
    assert len(digests) == 1


def test_another_generation_is_another_closure(ledger: BranchLedger) -> None:
    old, new = (ledger.record_dependency("a", "k", version=version) for version in ("1", "2"))
    assert ledger.closure(draft("a", old)).digest != ledger.closure(draft("a", new)).digest


# --- rollback


def test_a_rollback_demotes_transitively_and_touches_nothing_else(ledger: BranchLedger) -> None:
    tainted = chain(ledger, "a/one", "b/two", "b/three")
    clean = chain(ledger, "b/four")
    ledger.promote("a", "b")
    offer(ledger, draft("c", tainted, draft_id="tainted"))
    offer(ledger, draft("c", clean, draft_id="clean"))
    resolution = ledger.rollback("a")
    demoted = DraftChange(draft_id="tainted", before=DraftState.ACCEPTED, after=DraftState.REJECTED)
    assert resolution.changes == (demoted,)
    assert state(ledger, "clean") is DraftState.ACCEPTED
    assert contaminated(ledger) == []
    assert [one.evicted for one in ledger.branch("b").entries] == [True, True, False]


def test_a_promoted_branch_can_be_rolled_back_and_its_names_fall_back(
    ledger: BranchLedger,
) -> None:
    first = ledger.record_dependency("a", "k")
    ledger.promote("a")
    second = ledger.record_dependency("b", "k", reads=(first,))
    ledger.promote("b")
    assert ledger.visible("c", "k") == second
    ledger.rollback("b")
    assert ledger.visible("c", "k") == first
    ledger.rollback("a")
    assert ledger.visible("c", "k") == entry(SHARED, "k")


def test_an_evicted_name_can_be_used_again(ledger: BranchLedger) -> None:
    spoiled = ledger.record_dependency("b", "k", reads=(entry("a", "x"),))
    ledger.rollback("a")
    assert ledger.visible("b", "k") == entry(SHARED, "k")
    fresh = ledger.record_dependency("b", "k")
    assert (fresh, ledger.visible("b", "k")) == (entry("b", "k", 1), fresh)
    assert offer(ledger, draft("b", fresh)).state is DraftState.ACCEPTED
    with pytest.raises(BranchContaminationError):
        offer(ledger, draft("b", spoiled, draft_id="spoiled"))


def test_what_a_dead_branch_still_reports_is_taken_and_evicted(ledger: BranchLedger) -> None:
    ledger.rollback("a")
    late = ledger.record_dependency("a", "k")
    assert ledger.entry(late).evicted
    assert ledger.visible("a", "k") == entry(SHARED, "k")
    assert ledger.record_dependency("a", "k") == late


def test_an_entry_first_heard_of_after_its_branch_died_is_evicted(ledger: BranchLedger) -> None:
    ledger.rollback("a")
    reader = ledger.record_dependency("b", "k", reads=(entry("a", "unreported"),))
    assert ledger.entry(entry("a", "unreported")).evicted
    assert ledger.entry(reader).evicted


def test_repeats_change_nothing(ledger: BranchLedger) -> None:
    key = chain(ledger, "a/one")
    assert chain(ledger, "a/one") == key
    offered = draft("b", key)
    assert offer(ledger, offered) == offer(ledger, offered)
    first = ledger.rollback("a")
    assert ledger.rollback("a") == first
    ledger.open_branch("b")
    ledger.promote("b")
    assert ledger.promote("b").changes == ()


def test_a_sweep_visits_nothing_that_was_evicted_before(
    ledger: BranchLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(ledger, "a/one", "b/two", "c/three", "c/four")
    ledger.record_dependency("b", "two", reads=(entry("b", "five"),))
    visited: list[list[str]] = []
    dependents = DependencyGraph.dependents

    def watched(self: DependencyGraph, *arguments: Any) -> dict[CacheKey, None]:
        found = dependents(self, *arguments)
        visited.append([str(key) for key in found])
        return found

    monkeypatch.setattr(DependencyGraph, "dependents", watched)
    ledger.rollback("a")
    ledger.rollback("b")
    assert visited == [["a/one", "b/two", "c/three", "c/four"], ["b/five"]]


def crashed() -> SharedList:
    """Return the journal of a ledger that died between the phases of rolling ``a`` back."""
    journal = SharedList()
    victim = BranchLedger(journal)
    for branch_id in "abc":
        victim.open_branch(branch_id)
    chain(victim, "a/one", "b/two")
    victim.promote("a", "b")
    assert offer(victim, draft("c", entry("b", "two"))).state is DraftState.ACCEPTED
    journal.crash_before_sweep = True
    with pytest.raises(CrashError):
        victim.rollback("a")
    journal.crash_before_sweep = False
    return journal


def survivor(journal: SharedList) -> BranchLedger:
    """Return a ledger that was open before the crash, and has not looked since."""
    events, journal.events = journal.events, journal.events[:-1]
    ledger = BranchLedger(journal)
    journal.events[:] = events
    return ledger


NEXT_CALLS: dict[str, Callable[[BranchLedger], object]] = {
    "open": lambda ledger: ledger.open_branch("d"),
    "record": lambda ledger: ledger.record_dependency("c", "k"),
    "offer": lambda ledger: ledger.accept_draft(
        draft("c", draft_id="new"), VerifierScore(value=0.0, closure_digest="sha256:0")
    ),
    "promote": lambda ledger: ledger.promote("c"),
    "roll back": lambda ledger: ledger.rollback("c"),
    "spend": lambda ledger: ledger.spend("c", "s", 1),
}


@pytest.mark.parametrize("name", NEXT_CALLS)
def test_whoever_comes_next_finishes_a_rollback_before_anything_else(name: str) -> None:
    journal = crashed()
    ledger = survivor(journal)
    num_events = len(journal.events)
    assert journal.events[-1] == MarkedDead(branch_id="a")
    NEXT_CALLS[name](ledger)
    assert journal.events[num_events] == Swept(branch_id="a")
    assert len(journal.events) > num_events + 1
    assert state(ledger) is DraftState.REJECTED
    assert contaminated(BranchLedger(journal)) == []


@pytest.mark.parametrize(
    "look",
    [
        lambda ledger: ledger.decision("d").state is DraftState.REJECTED,
        lambda ledger: ledger.visible("c", "two") == entry(SHARED, "two"),
        lambda ledger: ledger.entry(entry("b", "two")).evicted,
        lambda ledger: ledger.branch("b").entries[0].evicted,
    ],
)
def test_nobody_sees_a_rollback_half_done(look: Callable[[BranchLedger], bool]) -> None:
    assert look(survivor(crashed()))


# --- promotion


def test_the_second_of_two_racing_promotions_is_refused(ledger: BranchLedger) -> None:
    ledger.record_dependency("a", "k")
    ledger.record_dependency("b", "k")
    ledger.promote("a")
    with pytest.raises(VersionConflictError, match=r"b/k was not built on a/k"):
        ledger.promote("b")
    assert ledger.branches()["b"] is BranchState.IN_FLIGHT
    ledger.record_dependency("b", "k", reads=(ledger.visible("c", "k"),))
    ledger.promote("b")
    assert ledger.visible("c", "k") == entry("b", "k")


def test_the_same_content_does_not_race(ledger: BranchLedger) -> None:
    ledger.record_dependency("a", "k", version="sha256:1")
    ledger.record_dependency("b", "k", version="sha256:1")
    ledger.promote("a")
    ledger.promote("b")
    ledger.rollback("b")
    assert ledger.visible("c", "k") == entry("a", "k")


def test_two_of_one_group_race_too(ledger: BranchLedger) -> None:
    ledger.record_dependency("a", "k")
    ledger.record_dependency("b", "k")
    with pytest.raises(VersionConflictError):
        ledger.promote("a", "b")
    assert set(ledger.branches().values()) == {BranchState.IN_FLIGHT}


def test_what_depends_on_a_branch_in_flight_is_not_published_before_it(
    ledger: BranchLedger,
) -> None:
    chain(ledger, "a/one", "b/two")
    with pytest.raises(IllegalMoveError, match="'b' cannot be promoted: b/two reads a/one"):
        ledger.promote("b")
    ledger.promote("a")
    ledger.promote("b")


def test_what_depends_on_a_dead_branch_is_not_published(ledger: BranchLedger) -> None:
    chain(ledger, "a/one", "b/two")
    ledger.rollback("a")
    with pytest.raises(BranchContaminationError, match="b/two reads a/one, which was rolled back"):
        ledger.promote("b")
    ledger.record_dependency("b", "two")
    ledger.promote("b")
    assert ledger.visible("c", "two") == entry("b", "two", 1)


def test_a_dead_branch_is_not_promoted(ledger: BranchLedger) -> None:
    ledger.rollback("a")
    with pytest.raises(BranchContaminationError, match="'a' was rolled back"):
        ledger.promote("a")


def test_promoting_again_publishes_what_was_written_since(ledger: BranchLedger) -> None:
    ledger.promote("a")
    late = ledger.record_dependency("a", "k")
    assert ledger.visible("b", "k") == entry(SHARED, "k")
    ledger.promote("a")
    assert ledger.visible("b", "k") == late


# --- cost


def test_a_rollback_returns_what_was_spent(ledger: BranchLedger) -> None:
    ledger.set_pool(10)
    ledger.open_branch("rich", limit=8)
    assert ledger.spend("rich", "s1", 7) == Account(limit=8, spent=7)
    assert ledger.spend("rich", "s1", 7).spent == 7, "counted once"
    with pytest.raises(BudgetExceededError, match="branch 'rich' has 1 of 8 left and 2 is asked"):
        ledger.spend("rich", "s2", 2)
    with pytest.raises(BudgetExceededError, match="the pool has 3 of 10 left"):
        ledger.spend("a", "s1", 4)
    assert ledger.spent() == 7
    for _ in range(2):
        ledger.rollback("rich")
        assert ledger.spent() == 0
    assert ledger.branch("rich").account == Account(limit=8, spent=7, returned=7)
    ledger.spend("a", "s1", 10)
    with pytest.raises(IllegalMoveError, match="'rich' was rolled back"):
        ledger.spend("rich", "s3", 0)


def test_a_spend_id_stands_for_one_cost(ledger: BranchLedger) -> None:
    ledger.spend("a", "s", 1)
    with pytest.raises(IllegalMoveError, match="was 1, now 2"):
        ledger.spend("a", "s", 2)


def test_a_promotion_returns_nothing(ledger: BranchLedger) -> None:
    ledger.spend("a", "s", 3)
    ledger.promote("a")
    assert ledger.spent() == 3


@pytest.mark.parametrize("cost", [-1, -(10**9)])
def test_costs_and_limits_are_not_negative(ledger: BranchLedger, cost: int) -> None:
    with pytest.raises(InvalidRecordError):
        ledger.spend("a", "s", cost)
    with pytest.raises(InvalidRecordError):
        ledger.open_branch("z", limit=cost)
    with pytest.raises(InvalidRecordError):
        ledger.set_pool(cost)


# --- what is refused changes nothing


UNKNOWN: dict[str, Callable[[BranchLedger], object]] = {
    "open without an id": lambda ledger: ledger.open_branch(""),
    "open again with another limit": lambda ledger: ledger.open_branch("a", limit=1),
    "write": lambda ledger: ledger.record_dependency("x", "k"),
    "write for the shared branch": lambda ledger: ledger.record_dependency(SHARED, "k"),
    "read": lambda ledger: ledger.record_dependency("a", "k", reads=(entry("x", "k"),)),
    "read of the future": lambda ledger: ledger.record_dependency(
        "a", "k", reads=(entry("b", "k", 1),)
    ),
    "a batch, half of it known": lambda ledger: ledger.record_dependencies(
        [Write(branch_id="a", name="k"), Write(branch_id="x", name="k")]
    ),
    "look up": lambda ledger: ledger.visible("x", "k"),
    "offer": lambda ledger: offer(ledger, draft("x")),
    "offer with unknown reads": lambda ledger: offer(ledger, draft("a", entry("x", "k"))),
    "promote": lambda ledger: ledger.promote("a", "x"),
    "roll back": lambda ledger: ledger.rollback("x"),
    "spend": lambda ledger: ledger.spend("x", "s", 1),
    "ask for a draft": lambda ledger: ledger.decision("x"),
    "ask for a branch": lambda ledger: ledger.branch("x"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_the_unknown_is_refused_and_nothing_changes(ledger: BranchLedger, name: str) -> None:
    before = [ledger.branch(branch_id) for branch_id in "abc"]
    with pytest.raises((IllegalMoveError, InvalidRecordError)):
        UNKNOWN[name](ledger)
    assert [ledger.branch(branch_id) for branch_id in "abc"] == before
    assert ledger.drafts() == ()


def test_a_branch_id_is_never_used_again(ledger: BranchLedger) -> None:
    for branch_id, resolve in (("a", ledger.promote), ("b", ledger.rollback)):
        resolve(branch_id)
        with pytest.raises(IllegalMoveError, match="give a new branch a new id"):
            ledger.open_branch(branch_id)


def test_a_draft_id_stands_for_one_draft(ledger: BranchLedger) -> None:
    offer(ledger, draft("a"))
    for other in (draft("b"), draft("a", entry("a", "k"))):
        with pytest.raises(IllegalMoveError, match="give another draft another id"):
            offer(ledger, other)


# --- the table


def test_every_state_answers_every_finding_but_what_cannot_happen() -> None:
    missing = {(s, f) for s in DraftState for f in Finding} - set(DRAFT_TABLE)
    assert missing == {
        (DraftState.ACCEPTED, Finding.MEETS_IN_FLIGHT),
        (DraftState.REJECTED, Finding.MEETS_IN_FLIGHT),
        (DraftState.REJECTED, Finding.SCORE_OF_OTHER_CLOSURE),
        (DraftState.REJECTED, Finding.DISJOINT),
    }
    for move in missing:
        with pytest.raises(IllegalMoveError, match="offer a new draft"):
            next_state(*move)


# --- what is loaded


def test_the_ledger_loads_no_heavy_library() -> None:
    code = "import harness.planner.ledger, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert "harness.planner.ledger.state" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "sqlalchemy", "rich", "typer"})
