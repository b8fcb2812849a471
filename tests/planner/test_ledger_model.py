"""Random histories of two processes that share a ledger, against brute force."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness.errors import EvidenceError, IllegalMoveError
from harness.planner.ledger import (
    SHARED,
    BranchContaminationError,
    BranchLedger,
    BranchState,
    CacheKey,
    Draft,
    DraftState,
    VerifierScore,
)
from harness.planner.ledger.state import LedgerState
from tests.planner.ledger_model import (
    CrashError,
    Model,
    SharedList,
    contaminated,
    scored,
)

NAMES = st.sampled_from(["k1", "k2"])
BRANCHES = ["a", "b", "c", "d", "e"]
SOME = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

UNTIL_CAUGHT = settings(SOME, max_examples=500, phases=[Phase.generate], derandomize=True)
"""A negative control needs a failure, not the smallest one."""


class Histories(RuleBasedStateMachine):
    """Two ledgers take turns on one journal; only the promise to the planner is checked."""

    keys = Bundle("keys")

    @initialize(target=keys)
    def begin(self) -> Any:
        self.journal = SharedList()
        self.model = Model()
        self.ledgers = [BranchLedger(self.journal), BranchLedger(self.journal)]
        self.turn = 0
        for branch_id in BRANCHES[:3]:
            self.open(branch_id)
        return multiple(CacheKey(branch_id="", name="k1"), CacheKey(branch_id="a", name="k2"))

    def open(self, branch_id: str) -> None:
        self.ledger.open_branch(branch_id)
        self.model.branches[branch_id] = BranchState.IN_FLIGHT
        self.model.spent[branch_id] = 0

    @property
    def ledger(self) -> BranchLedger:
        self.turn += 1
        return self.ledgers[self.turn % 2]

    @precondition(lambda self: len(self.model.branches) < len(BRANCHES))
    @rule()
    def open_another(self) -> None:
        self.open(BRANCHES[len(self.model.branches)])

    @rule(target=keys, data=st.data(), name=NAMES)
    def look_up(self, data: st.DataObject, name: str) -> CacheKey:
        branch_id = data.draw(st.sampled_from(sorted(self.model.branches)))
        found = self.ledger.visible(branch_id, name)
        self.agree(found, self.model.visible(branch_id, name))
        return found

    @rule(
        target=keys,
        data=st.data(),
        name=NAMES,
        reads=st.lists(keys, max_size=3),
        version=st.sampled_from(["", "", "", "v1", "v2"]),
    )
    def write(
        self, data: st.DataObject, name: str, reads: list[CacheKey], version: str
    ) -> CacheKey:
        branch_id = data.draw(st.sampled_from(sorted(self.model.branches)))
        return self.record(branch_id, name, reads, version)

    @rule(target=keys, key=keys, reads=st.lists(keys, min_size=1, max_size=2))
    def report_late(self, key: CacheKey, reads: list[CacheKey]) -> CacheKey:
        """Add to what an entry was computed from, after others may have built on it."""
        if key.branch_id == SHARED:
            return key
        return self.record(key.branch_id, key.name, reads, self.model.versions.get(key, ""))

    def record(self, branch_id: str, name: str, reads: list[CacheKey], version: str) -> CacheKey:
        key = self.ledger.record_dependency(branch_id, name, reads=reads, version=version)
        self.agree(key, self.model.write(branch_id, name, reads, version))
        return key

    @rule(target=keys, data=st.data(), number=st.integers(0, 9), reads=st.lists(keys, max_size=3))
    def offer(self, data: st.DataObject, number: int, reads: list[CacheKey]) -> CacheKey:
        branch_id = data.draw(st.sampled_from(sorted(self.model.branches)))
        draft = Draft(draft_id=f"{number}", branch_id=branch_id, reads=tuple(reads))
        draft = self.model.drafts.get(draft.draft_id, draft)
        whole = self.model.closure(draft.key, *draft.reads)
        if data.draw(st.integers(0, 4)):
            self.decide(draft, scored(self.ledger.closure(draft)), whole)
        else:
            other = Draft(draft_id="other", branch_id=branch_id)
            self.decide(draft, scored(self.ledger.closure(other)), frozenset([other.key]))
        return draft.key

    def decide(self, draft: Draft, score: VerifierScore, keys: frozenset[CacheKey]) -> None:
        self.model.offer(draft, keys)
        try:
            state = self.ledger.accept_draft(draft, score).state
        except BranchContaminationError:
            state = DraftState.REJECTED
        self.agree(state, self.model.state(draft.draft_id))

    def agree(self, found: object, brute_force: object) -> None:
        """Compare nothing: the subclass does."""

    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        group = data.draw(
            st.lists(st.sampled_from(sorted(self.model.branches)), min_size=1, max_size=2)
        )
        group = list(dict.fromkeys(group))
        before, allowed = list(self.journal.events), self.model.may_promote(group)
        try:
            self.ledger.promote(*group)
        except (EvidenceError, IllegalMoveError):
            self.agree("refused", "promoted" if allowed else "refused")
            assert self.journal.events == before
            return
        self.agree("promoted", "promoted" if allowed else "refused")
        self.model.promote(group)

    @precondition(lambda self: self.turn % 4 == 0)  # else most branches are dead most of the time
    @rule(data=st.data(), crash=st.sampled_from([False, False, True]))
    def roll_back(self, data: st.DataObject, *, crash: bool) -> None:
        branch_id = data.draw(st.sampled_from(sorted(self.model.branches)))
        self.journal.crash_before_sweep = crash
        try:
            self.ledger.rollback(branch_id)
        except CrashError:
            self.ledgers[self.turn % 2] = BranchLedger(SharedList())  # its memory is lost
        self.journal.crash_before_sweep = False
        self.model.branches[branch_id] = BranchState.DEAD
        self.ledgers[self.turn % 2] = BranchLedger(self.journal)

    @rule(data=st.data(), cost=st.integers(0, 5))
    def spend(self, data: st.DataObject, cost: int) -> None:
        alive = [b for b, state in self.model.branches.items() if state is not BranchState.DEAD]
        if alive:
            branch_id = data.draw(st.sampled_from(alive))
            self.ledger.spend(branch_id, f"spend {len(self.journal.events)}", cost)
            self.model.spent[branch_id] += cost

    @rule()
    def reopen(self) -> None:
        self.ledgers[self.turn % 2] = BranchLedger(self.journal)

    @rule(key=consumes(keys))
    def forget(self, key: CacheKey) -> None:
        """Let the keys in play change."""

    @invariant()
    def no_dead_content_is_reachable(self) -> None:
        assert contaminated(self.ledger) == []


class Exactly(Histories):
    """The same histories; now every answer must be that of brute force."""

    def agree(self, found: object, brute_force: object) -> None:
        assert found == brute_force

    @invariant()
    def every_draft_stands_where_brute_force_puts_it(self) -> None:
        ledger = self.ledger
        found = {one.draft_id: ledger.decision(one.draft_id) for one in ledger.drafts()}
        assert {name: one.state for name, one in found.items()} == {
            name: self.model.state(name) for name in self.model.drafts
        }
        for name, decision in found.items():
            draft = self.model.drafts[name]
            closure = self.model.closure(draft.key)
            held = decision.state is DraftState.HELD
            waits_for = self.model.in_flight(closure, [draft.branch_id]) if held else set()
            assert decision.waits_for == tuple(sorted(waits_for))
            self.check_path(draft.key, decision.path, decision.state)

    def check_path(self, start: CacheKey, path: tuple[CacheKey, ...], state: DraftState) -> None:
        if state is not DraftState.REJECTED:
            assert path == ()
            return
        assert path[0] == start
        assert self.model.dead(path[-1:])
        assert all(b in self.model.reads[a] for a, b in pairwise(path))
        assert len(path) == self.model.distance_to_dead(start)

    @invariant()
    def branches_entries_and_costs_are_those_of_brute_force(self) -> None:
        ledger = self.ledger
        assert ledger.branches() == self.model.branches
        alive = [b for b, state in self.model.branches.items() if state is not BranchState.DEAD]
        assert ledger.spent() == sum(self.model.spent[branch_id] for branch_id in alive)
        for key in set(self.model.reads).union(*self.model.reads.values()):
            assert ledger.entry(key).evicted == self.model.evicted(key), key


def test_no_history_makes_dead_content_reachable_and_every_answer_is_that_of_brute_force() -> None:
    run_state_machine_as_test(Exactly, settings=SOME)


@contextmanager
def patched(name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerState, name, value)
        yield


def unswept(self: LedgerState, branch_id: str) -> tuple[()]:
    del self._unswept[branch_id]
    self._swept[branch_id] = ()
    return ()


def test_negative_control_a_ledger_that_does_not_sweep_is_caught_by_the_same_invariant() -> None:
    with patched("_sweep", unswept), pytest.raises(AssertionError, match="case"):
        run_state_machine_as_test(Histories, settings=UNTIL_CAUGHT)


def test_negative_control_a_ledger_that_ignores_late_edges_is_caught() -> None:
    def deaf(self: LedgerState, key: CacheKey, reads: tuple[CacheKey, ...]) -> None:
        for source in reads:
            self.lineage.graph.add(key, source)

    with patched("_link", deaf), pytest.raises(AssertionError, match="case"):
        run_state_machine_as_test(Histories, settings=UNTIL_CAUGHT)
