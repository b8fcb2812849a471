"""The gate against a model that a reader can check: dictionaries, no store, no transaction.

The model keeps for each resource a list of contents, one a version. A commit is right when the
version that each read saw is the last one.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)
from sqlalchemy import event

from harness.errors import (
    CommitRefusedError,
    IllegalMoveError,
    ReverificationNeededError,
    StaleVerificationError,
)
from harness.planner import Branch, State, commit_branch, file_branch, rollback_branch
from tests.planner.gate_examples import a_branch, a_gate, close_stores, content, row
from tests.planner.test_gate import Digests

NAMES = [row("r"), row("s"), "etag:x"]
resources = st.sampled_from(NAMES)


def without_waiting_for_the_disk(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


class GateMachine(RuleBasedStateMachine):
    branches = Bundle("branches")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.digests = Digests("etag:x", None)
        url = f"sqlite:///{Path(self.folder.name)}/m.db"
        self.gate = a_gate(url, "r", "s", others=[self.digests])
        event.listen(self.gate.store.engine, "connect", without_waiting_for_the_disk)
        self.gate.store.engine.dispose()
        self.versions: dict[str, list[bytes | None]] = {name: [None] for name in NAMES}
        self.owner: dict[str, list[str]] = {name: [""] for name in NAMES}
        self.seen: dict[str, dict[str, int]] = {}
        self.decision: dict[str, str] = {}
        self.states: dict[str, State] = {}
        self.wrote: dict[str, dict[str, int]] = {}

    def teardown(self) -> None:
        close_stores()
        self.folder.cleanup()

    def last(self, name: str) -> int:
        return len(self.versions[name]) - 1

    def pinned(
        self, branch_id: str, reads: set[str], writes: dict[str, Any], **more: Any
    ) -> Branch:
        self.seen[branch_id] = {name: self.last(name) for name in {*reads, *writes}}
        return a_branch(self.gate, branch_id, sorted(reads - writes.keys()), writes, **more)

    @rule(
        target=branches,
        reads=st.sets(resources, max_size=2),
        writes=st.dictionaries(resources, st.sampled_from([b"1", b"2", None]), max_size=2),
        decision=st.sampled_from(["d1", "d2"]),
        file=st.booleans(),
    )
    def fork(self, reads: set[str], writes: dict[str, Any], decision: str, file: bool) -> Branch:  # noqa: FBT001
        name = f"b{len(self.states)}"
        branch = self.pinned(name, reads, writes, decision_id=decision)
        self.decision[name], self.states[name] = decision, State.OPEN
        if file:
            self.states[name] = file_branch(branch, self.gate)
        return branch

    def stale(self, name: str) -> list[str]:
        """Return the resources of the union that have moved."""
        unresolved = [
            other
            for other, state in self.states.items()
            if self.decision[other] == self.decision[name]
            and (other == name or state in (State.VERIFIED, State.HELD))
        ]
        seen = [(r, at) for other in unresolved for r, at in self.seen[other].items()]
        return [r for r, at in seen if at != self.last(r)]

    @rule(branch=branches)
    def commit(self, branch: Branch) -> None:
        name, before = branch.branch_id, self.states[branch.branch_id]
        try:
            commit_branch(branch, self.gate)
        except StaleVerificationError:
            assert set(self.stale(name)) & branch.write_set.keys() or before is State.REFUSED
            self.states[name] = State.REFUSED
        except ReverificationNeededError:
            assert self.stale(name) or before is State.HELD
            assert not set(self.stale(name)) & branch.write_set.keys()
            self.states[name] = State.HELD
        except IllegalMoveError:
            assert before is State.ROLLED_BACK
        else:
            if before is not State.COMMITTED:
                assert before is not State.HELD
                assert self.stale(name) == []
                self.put(name, branch.write_set)
                self.wrote[name] = {r: self.last(r) for r in branch.write_set}
            self.states[name] = State.COMMITTED

    def put(self, name: str, writes: dict[str, bytes | None]) -> None:
        for resource, value in writes.items():
            self.versions[resource].append(value)
            self.owner[resource].append(name)

    @rule(target=branches, branch=consumes(branches))
    def verify_again(self, branch: Branch) -> Branch:
        name = branch.branch_id
        if self.states[name] not in (State.OPEN, State.VERIFIED, State.HELD):
            return branch
        reads = set(self.seen[name])
        again = self.pinned(name, reads, dict(branch.write_set), decision_id=branch.decision_id)
        self.states[name] = file_branch(again, self.gate)
        return again

    @rule(branch=branches)
    def roll_back(self, branch: Branch) -> None:
        name, before = branch.branch_id, self.states[branch.branch_id]
        if before is State.REFUSED:
            with pytest.raises(IllegalMoveError):
                rollback_branch(branch, self.gate)
            return
        report = rollback_branch(branch, self.gate)
        self.states[name] = State.ROLLED_BACK
        if before is State.COMMITTED:
            assert report.undone.keys() | {k.resource for k in report.kept} == set(branch.write_set)
            for resource in report.undone:
                self.undo(name, resource)

    def undo(self, name: str, resource: str) -> None:
        """Nobody live may have read or written what this branch put there."""
        at = self.wrote[name][resource]
        live = [n for n, state in self.states.items() if state is State.COMMITTED]
        assert not [n for n in live if self.wrote[n].get(resource, 0) > at]
        assert not [n for n in live if self.seen[n].get(resource, 0) >= at]
        before = self.versions[resource][at - 1]
        self.put(f"undo {name}", {resource: before})

    @rule(resource=st.just("etag:x"), value=st.sampled_from([b"7", b"8"]))
    def somebody_outside_writes(self, resource: str, value: bytes) -> None:
        if self.digests.held != value and not any(v == value for v in self.versions[resource]):
            self.digests.held = value
            self.put("outside", {resource: value})

    @invariant()
    def contents_are_those_of_the_model(self) -> None:
        if hasattr(self, "versions"):
            for name in NAMES:
                assert content(self.gate, name) == self.versions[name][-1]
            for branch_id, state in self.states.items():
                filed = self.gate.store.branch(branch_id)
                assert (filed.state if filed else State.OPEN) is state


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_every_refusal_has_its_tree() -> None:
    assert issubclass(StaleVerificationError, CommitRefusedError)
