from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.errors import CallerError, InvalidRecordError, ReplayContaminationError, StoreError
from harness.planner.effects import (
    BranchReplay,
    Divergence,
    Gateway,
    LiveGateway,
    MemoryEffectStore,
    ReplayKind,
    SideEffectStep,
    StepUse,
    StoredEffect,
    classify_trajectory,
    run_counterfactual_branch,
)
from tests.planner.effects_examples import (
    LATER,
    NOW,
    a_read,
    a_step,
    a_store,
    a_trajectory,
    clock,
    unrecorded,
    untokened,
)

RUN = (
    a_step("order"),
    a_read("look"),
    a_step("pay"),
    a_step("receipt", arguments={"about": "paygot"}),
    a_step("survey", dependencies=None),
    untokened(a_step("mail")),
    a_step("behind"),
)
"""Its boundary is at 5."""


def posed(step: SideEffectStep, **changes: Any) -> SideEffectStep:
    """Return what the branch does in place of `step`: the same call with another response."""
    return a_step(step.step_id, **{"token": None, "payload": {"id": "otherwise"}, **changes})


def replayed(
    at: int,
    *steps: SideEffectStep,
    store: MemoryEffectStore | None = None,
    branch_id: str = "x",
    program: Callable[[Gateway], object] | None = None,
    **changes: Any,
) -> BranchReplay:
    steps = steps or RUN
    divergence = Divergence(branch_id=branch_id, index=at, step=posed(steps[at], **changes))
    store = a_store(*steps) if store is None else store
    return run_counterfactual_branch(
        a_trajectory(*steps), divergence, store=store, clock=clock, program=program
    )


def uses(replay: BranchReplay) -> list[StepUse]:
    return [step.use for step in replay.steps]


def test_a_branch_before_the_boundary_is_a_counterfactual() -> None:
    replay = replayed(2)
    assert replay.kind is ReplayKind.COUNTERFACTUAL
    assert replay.auditability.boundary_index == 5
    assert uses(replay) == [
        StepUse.REISSUED,
        StepUse.READ,
        StepUse.POSED,
        StepUse.INVALIDATED,
        StepUse.REUSED_INDEPENDENT,
        StepUse.BEYOND_BOUNDARY,
        StepUse.BEYOND_BOUNDARY,
    ]
    assert [step.detail for step in replay.steps[2:5]] == [
        "a hypothesis",
        "by its arguments",
        "by its payloads; dependencies were not declared",
    ]


@pytest.mark.parametrize("at", range(len(RUN)))
def test_only_strictly_before_the_boundary(at: int) -> None:
    replay = replayed(at)
    assert (replay.kind is ReplayKind.COUNTERFACTUAL) == (at < 5)
    if at >= 5:
        assert set(uses(replay)) == {StepUse.STATE_ONLY}


def test_a_state_replay_calls_nothing() -> None:
    called: list[Gateway] = []
    assert replayed(5, program=called.append).kind is ReplayKind.STATE_REPLAY
    assert called == []
    with pytest.raises(ReplayContaminationError):  # before the boundary the program is run
        replayed(4, program=called.append)
    assert len(called) == 1


def test_a_lost_read_before_the_divergence_leaves_state_replay_only() -> None:
    steps = (a_step("a"), unrecorded(a_read("lost")), a_step("c"), a_step("d"))
    assert replayed(2, *steps).kind is ReplayKind.STATE_REPLAY
    at_the_read = replayed(1, *steps)
    assert uses(at_the_read)[1:] == [
        StepUse.POSED,
        StepUse.REUSED_INDEPENDENT,
        StepUse.REUSED_INDEPENDENT,
    ]
    before_it = replayed(0, *steps)
    assert uses(before_it) == [StepUse.POSED, *[StepUse.BEYOND_BOUNDARY] * 3]


def test_a_step_made_by_another_branch_is_verified_like_any_other() -> None:
    sibling = a_step("sibling", payload={"id": "sibgot"})
    divergence = Divergence(branch_id="x", index=2, step=sibling)

    def run(store: MemoryEffectStore) -> BranchReplay:
        return run_counterfactual_branch(a_trajectory(*RUN), divergence, store=store, clock=clock)

    assert run(a_store(*RUN, sibling)).steps[2].detail == "made by another branch"
    with pytest.raises(ReplayContaminationError, match="'sibling' cannot be re-issued: token_unkn"):
        run(a_store(*RUN))


def test_posing_another_response_under_the_recorded_token_is_refused() -> None:
    with pytest.raises(
        ReplayContaminationError, match="'pay' cannot be re-issued: payload_changed"
    ):
        replayed(2, token=RUN[2].token)


BAD_DIVERGENCES: dict[str, tuple[int, SideEffectStep, str]] = {
    "behind the end": (7, a_step("z"), "run has 7 steps, counted from 0"),
    "before the beginning": (-1, a_step("z"), "run has 7 steps"),
    "no response": (2, unrecorded(a_step("pay")), "has no response; pose one"),
    "nothing differs": (2, a_step("pay"), "the same call with the same response"),
    "only the token differs": (2, a_step("pay", token=None), "the same call with the same"),
}


@pytest.mark.parametrize("name", BAD_DIVERGENCES)
def test_a_divergence_that_is_none_is_refused(name: str) -> None:
    at, step, words = BAD_DIVERGENCES[name]
    divergence = Divergence(branch_id="x", index=at, step=step)
    store = a_store(*RUN)
    with pytest.raises(CallerError, match=words):
        run_counterfactual_branch(a_trajectory(*RUN), divergence, store=store, clock=clock)
    assert store.contamination("x") is None


def taking(*steps: SideEffectStep) -> Callable[[Gateway], list[Any]]:
    """Return the program that makes these calls."""
    return lambda gateway: [gateway.call(s.tool, s.arguments, s.token) for s in steps]


def test_a_program_gets_the_recorded_and_the_posed_responses() -> None:
    got: list[Any] = []

    def program(gateway: Gateway) -> None:
        got.extend(taking(*RUN[:3], RUN[4])(gateway))

    replay = replayed(2, program=program)
    assert got == [{"id": "ordergot"}, {"id": "lookgot"}, {"id": "otherwise"}, {"id": "surveygot"}]
    assert uses(replay)[4] is StepUse.REUSED_INDEPENDENT
    shorter = replayed(2, program=taking(*RUN[:3]))
    assert uses(shorter)[4] is StepUse.NOT_CALLED


def test_a_call_under_its_token_may_be_repeated() -> None:
    replay = replayed(2, program=taking(RUN[0], RUN[0], *RUN[1:3], RUN[0]))
    assert replay.kind is ReplayKind.COUNTERFACTUAL


def test_a_posed_call_may_be_made_under_any_token_and_repeated_under_it() -> None:
    one, other = "token-new", "token-newer"
    paid = a_step("pay", token=one)
    replay = replayed(2, program=taking(*RUN[:2], paid, paid))
    assert replay.kind is ReplayKind.COUNTERFACTUAL
    with pytest.raises(ReplayContaminationError, match="'post' with token 'token-newer'"):
        replayed(2, program=taking(*RUN[:2], paid, a_step("pay", token=other)))


LEAVING: dict[str, tuple[tuple[SideEffectStep, ...], str]] = {
    "a call that was never recorded": ((*RUN[:3], a_step("new")), "'post' with token 'token-new'"),
    "a call without a token": ((*RUN[:3], a_step("new", token=None)), "'post' with no token"),
    "a recorded call without its token": ((untokened(RUN[0]),), "'post' with no token"),
    "other arguments under a known token": (
        (a_step("order", arguments={"to": "mallory"}),),
        "'post' with token 'token-order'",
    ),
    "a call that depends on the divergence": ((*RUN[:4],), "token 'token-receipt'"),
    "the boundary": ((*RUN[:3], RUN[4], RUN[5]), "'post' with no token"),
    "a call behind the boundary": ((*RUN[:3], RUN[4], RUN[6]), "token 'token-behind'"),
    "a step left out before the divergence": ((RUN[0], RUN[2]), r"before step 1 \('look'\)"),
    "the divergence not reached": (RUN[:2], r"the branch ended before step 2 \('pay'\)"),
    "a read more than was recorded": ((*RUN[:2], RUN[1]), "'get' with no token was called"),
    "such a read under another's token": (
        (*RUN[:2], replace(RUN[1], token=RUN[0].token)),
        "'get' with token 'token-order' was called",
    ),
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_call_that_only_the_world_could_answer_aborts(name: str) -> None:
    steps, words = LEAVING[name]
    store = a_store(*RUN)
    with pytest.raises(ReplayContaminationError, match=words):
        replayed(2, store=store, program=taking(*steps))
    assert store.contamination("x") is not None


@pytest.mark.parametrize("name", LEAVING)
def test_a_program_that_swallows_the_error_gains_nothing(name: str) -> None:
    steps, _ = LEAVING[name]
    refusals = 0

    def program(gateway: Gateway) -> None:
        nonlocal refusals
        for call in (*steps, *RUN[:3]):
            try:
                taking(call)(gateway)
            except ReplayContaminationError:
                refusals += 1

    with pytest.raises(ReplayContaminationError):
        replayed(2, program=program)
    if name != "the divergence not reached":  # there the calls that follow reach it wrongly
        assert refusals >= 4


def test_a_program_that_turns_the_error_into_another_gains_nothing() -> None:
    def program(gateway: Gateway) -> None:
        try:
            taking(a_step("new"))(gateway)
        except ReplayContaminationError as error:
            raise KeyError("lost") from error

    with pytest.raises(ReplayContaminationError, match="'token-new' was called"):
        replayed(2, program=program)


class FailingStore(MemoryEffectStore):
    """Fails once it is told to."""

    fails = False

    def effects(self, tokens: Iterable[str]) -> Mapping[str, StoredEffect]:
        if self.fails:
            raise StoreError("the disk is gone")
        return super().effects(tokens)


def swallowing(*steps: SideEffectStep, before: Callable[[], None]) -> Callable[[Gateway], None]:
    """Return a program that goes on whatever its first call raises."""

    def program(gateway: Gateway) -> None:
        before()
        with suppress(Exception):
            taking(steps[0])(gateway)
        taking(*steps[1:])(gateway)

    return program


def test_a_store_that_fails_is_no_answer() -> None:
    store = FailingStore()
    for step in RUN:
        if step.token is not None:
            store.put(step)

    def fail() -> None:
        store.fails = True

    with pytest.raises(ReplayContaminationError, match=r"could not be answered .the disk is gone"):
        replayed(2, store=store, program=swallowing(*RUN[:3], before=fail))
    store.fails = False
    program = swallowing(*RUN[:3], before=lambda: None)
    assert (
        replayed(2, store=store, branch_id="y", program=program).kind is ReplayKind.COUNTERFACTUAL
    )


def test_a_call_that_json_cannot_hold_aborts() -> None:
    def program(gateway: Gateway) -> None:
        taking(*RUN[:3])(gateway)
        with suppress(Exception):
            gateway.call("post", {"sum": float("nan")}, "token-nan")

    with pytest.raises(ReplayContaminationError, match=r"'post' could not be answered .*nan at"):
        replayed(2, program=program)


def test_changing_a_response_changes_no_record() -> None:
    def program(gateway: Gateway) -> None:
        for step in RUN[:3]:
            gateway.call(step.tool, step.arguments, step.token).clear()

    store = a_store(*RUN)
    replayed(2, store=store, program=program)
    assert [step.payload for step in RUN[:2]] == [{"id": "ordergot"}, {"id": "lookgot"}]
    assert replayed(2, store=store, branch_id="y").kind is ReplayKind.COUNTERFACTUAL


def test_a_program_of_its_own_fault_is_not_contaminated() -> None:
    def program(gateway: Gateway) -> None:
        taking(*RUN[:2])(gateway)
        raise KeyError("mine")

    store = a_store(*RUN)
    with pytest.raises(KeyError, match="mine"):
        replayed(2, store=store, program=program)
    assert store.contamination("x") is None
    assert replayed(2, store=store).kind is ReplayKind.COUNTERFACTUAL


def test_a_contaminated_branch_is_never_a_counterfactual_again() -> None:
    store = a_store(*RUN)
    with pytest.raises(ReplayContaminationError):
        replayed(2, store=store, program=taking(a_step("new")))
    for at in range(len(RUN)):
        with pytest.raises(ReplayContaminationError, match="branch 'x' is contaminated"):
            replayed(at, store=store)
    called: list[Gateway] = []
    with pytest.raises(ReplayContaminationError):
        replayed(2, store=store, program=called.append)
    assert called == []
    assert replayed(2, store=store, branch_id="y").kind is ReplayKind.COUNTERFACTUAL


def test_a_branch_that_another_process_marks_meanwhile_is_contaminated() -> None:
    store = a_store(*RUN)

    def program(gateway: Gateway) -> None:
        taking(*RUN[:3])(gateway)
        store.contaminate("x", "seen elsewhere")

    with pytest.raises(ReplayContaminationError, match="seen elsewhere"):
        replayed(2, store=store, program=program)


BETWEEN: dict[str, Callable[[MemoryEffectStore], None]] = {
    "evicted": lambda store: store.retire("token-order"),
    "superseded": lambda store: store.retire("token-order", superseded_by="token-pay"),
}


@pytest.mark.parametrize("how", BETWEEN)
def test_a_token_is_verified_again_when_its_step_is_re_issued(how: str) -> None:
    store = a_store(*RUN)

    def program(gateway: Gateway) -> None:
        BETWEEN[how](store)
        taking(*RUN[:3])(gateway)

    with pytest.raises(ReplayContaminationError, match=f"'order' cannot be re-issued: {how}"):
        replayed(2, store=store, program=program)


def test_a_token_that_expires_before_its_step_is_re_issued_is_not() -> None:
    steps = (a_step("a", expires_at=LATER), a_step("b"))
    times = iter([NOW, LATER])
    divergence = Divergence(branch_id="x", index=1, step=posed(steps[1]))
    with pytest.raises(ReplayContaminationError, match="'a' cannot be re-issued: expired"):
        run_counterfactual_branch(
            a_trajectory(*steps), divergence, store=a_store(*steps), clock=lambda: next(times)
        )
    times = iter([NOW, NOW])
    replay = run_counterfactual_branch(
        a_trajectory(*steps), divergence, store=a_store(*steps), clock=lambda: next(times)
    )
    assert replay.kind is ReplayKind.COUNTERFACTUAL


def test_a_live_gateway_reached_from_a_replay_sends_nothing_and_aborts() -> None:
    sent: list[Any] = []
    store = a_store(*RUN)

    def send(*call: Any) -> dict[str, str]:
        sent.append(call)
        return {"id": "live"}

    live = LiveGateway(send, store)

    def program(gateway: Gateway) -> None:
        taking(*RUN[:2])(gateway)
        live.call("post", {"to": "world"}, "token-live")

    with pytest.raises(ReplayContaminationError, match="'post' was called on a live gateway"):
        replayed(2, store=store, program=program)
    assert sent == []
    assert live.call("post", {"to": "world"}, "token-live") == {"id": "live"}  # outside it sends
    assert sent == [("post", {"to": "world"}, "token-live")]
    assert store.effects(["token-live"])["token-live"].payload == b'{"id":"live"}'


def test_no_record_can_call_an_inadmissible_branch_a_counterfactual() -> None:
    audit = classify_trajectory(a_trajectory(*RUN), a_store(*RUN), now=NOW)
    fields: dict[str, Any] = {"branch_id": "x", "auditability": audit, "steps": ()}
    for at in range(len(RUN)):
        state = BranchReplay(kind=ReplayKind.STATE_REPLAY, divergence_index=at, **fields)
        if at < 5:
            assert replace(state, kind=ReplayKind.COUNTERFACTUAL)
            continue
        with pytest.raises(InvalidRecordError, match="is no counterfactual, the boundary is 5"):
            replace(state, kind=ReplayKind.COUNTERFACTUAL)


VALUES = st.sampled_from(["alpha", "beta", "gamma", "delta"])


@given(
    said=st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8),
    data=st.data(),
)
def test_nothing_that_mentions_a_tainted_payload_is_reused(
    said: list[tuple[str, str]], data: st.DataObject
) -> None:
    steps = [
        a_step(f"s{at}", arguments={"x": asked}, payload={"y": got})
        for at, (asked, got) in enumerate(said)
    ]
    at = data.draw(st.integers(0, len(steps) - 1))
    replay = replayed(at, *steps, arguments={"x": "omega"}, payload={"y": "sigma"})
    tainted = set(said[at])
    for step, (asked, got) in list(zip(replay.steps, said, strict=True))[at + 1 :]:
        expected = tainted.isdisjoint({asked, got})
        assert (step.use is StepUse.REUSED_INDEPENDENT) == expected, (step, tainted)
        if not expected:
            tainted |= {asked, got}
