"""The pin's decisions, on an imagined engine that does as it is told, or not."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.codec import canonical_bytes
from harness.conditions.flight import EngineStep, StepSlot
from harness.errors import InputFileError, UnsupportedConditionError
from harness.records.membership import BatchMembership, Slot, Step
from harness.serving.history import History
from harness.serving.log_lines import StepLine
from harness.serving.pin import MOVES, Allowed, EngineRequest, Pin, PinEnd, PinState, Scheduled
from harness.serving.pin_plan import (
    PinPlan,
    PlannedRequest,
    companions_of,
    plan_of_log,
    plan_of_steps,
    planned_steps,
)
from tests.serving.steps import ImaginedEngine, a_header, engine_id, prompt_of, three_steps


def a_plan(**changes: object) -> PinPlan:
    """a alone; then a and b; then b, while a loses its cache."""
    plan = PinPlan(
        pin_id="p1",
        requests=(
            PlannedRequest(name="a", num_prompt_tokens=4, prompt_digest=prompt_of("a", 4).digest),
            PlannedRequest(name="b"),
        ),
        steps=(
            EngineStep(slots=(slot(0, 4, 0),)),
            EngineStep(slots=(slot(0, 1, 4), slot(1, 3, 0))),
            EngineStep(slots=(slot(1, 1, 3),), preempted=(0,)),
        ),
        wait_s=10,
        gather=False,
    )
    return msgspec.structs.replace(plan, **changes)


def slot(request: int, num_tokens: int, num_computed_tokens: int) -> StepSlot:
    return StepSlot(request=request, num_tokens=num_tokens, num_computed_tokens=num_computed_tokens)


def a_request(name: str, num_tokens: int = 4, **changes: object) -> EngineRequest:
    request = EngineRequest(
        engine_id=engine_id(name),
        name=name,
        num_prompt_tokens=num_tokens,
        prompt_digest=prompt_of(name, num_tokens).digest,
    )
    return msgspec.structs.replace(request, **changes)


def scheduled(found: Mapping[str, tuple[int, int]], preempted: tuple[str, ...] = ()) -> Scheduled:
    return Scheduled(
        num_tokens={engine_id(name): tokens for name, (tokens, _) in found.items()},
        num_computed_tokens={engine_id(name): computed for name, (_, computed) in found.items()},
        preempted=[engine_id(name) for name in preempted],
    )


def computed(**tokens: int) -> dict[str, int]:
    return {engine_id(name): count for name, count in tokens.items()}


def ids(*names: str) -> tuple[str, ...]:
    return tuple(engine_id(name) for name in names)


def begun(plan: PinPlan | None = None) -> Pin:
    """Return a pin whose first step has run."""
    pin = Pin(plan or a_plan(), now_s=0)
    pin.arrived(a_request("a"), now_s=0)
    assert pin.decide(computed(a=0), [], 0) == Allowed(engine_ids=ids("a"), num_tokens=4)
    pin.observe(scheduled({"a": (4, 0)}), 0)
    return pin


def reason(pin: Pin) -> PinEnd | None:
    return None if pin.outcome is None else pin.outcome.end


def test_a_plan_is_carried_out_step_by_step() -> None:
    pin = begun()
    assert pin.decide(computed(a=4), ids("a"), 1) == Allowed()  # b has not come
    pin.observe(scheduled({}), 1)
    pin.arrived(a_request("b"), 1)
    assert pin.decide(computed(a=4, b=0), ids("a"), 1) == Allowed(
        engine_ids=ids("a", "b"), num_tokens=4
    )
    pin.observe(scheduled({"a": (1, 4), "b": (3, 0)}), 1)
    # The request that will lose its cache stays visible, at the end, and the budget is open.
    assert pin.decide(computed(a=5, b=3), ids("a", "b"), 1) == Allowed(engine_ids=ids("b", "a"))
    pin.observe(scheduled({"b": (1, 3)}, preempted=("a",)), 1)
    assert reason(pin) is PinEnd.COMPLETED
    assert pin.outcome is not None
    assert pin.outcome.num_steps_done == 3
    assert pin.decide(computed(a=0, b=4), ids("b"), 2) is None


def test_the_first_step_waits_for_all_where_that_is_asked_for() -> None:
    pin = Pin(a_plan(gather=True), now_s=0)
    pin.arrived(a_request("a"), 0)
    assert pin.decide(computed(a=0), [], 1) == Allowed()
    pin.arrived(a_request("b"), 1)
    assert pin.decide(computed(a=0, b=0), [], 1) == Allowed(engine_ids=ids("a"), num_tokens=4)


def test_what_runs_is_drained_before_the_first_step() -> None:
    pin = Pin(a_plan(), now_s=0)
    pin.arrived(a_request("a"), 0)
    assert pin.decide(computed(a=0, x=3), ids("x"), 1) == Allowed(engine_ids=ids("x"))
    pin.observe(scheduled({"x": (1, 3)}), 1)  # nothing of the plan, and no reason to end
    assert pin.state is PinState.DRAINING
    assert pin.decide(computed(a=0), [], 2) == Allowed(engine_ids=ids("a"), num_tokens=4)


def test_an_engine_that_does_not_drain_ends_the_pin() -> None:
    pin = Pin(a_plan(), now_s=0)
    assert pin.decide(computed(x=3), ids("x"), 9.9) is not None
    assert pin.decide(computed(x=3), ids("x"), 10.1) is None
    assert reason(pin) is PinEnd.ENGINE_BUSY


def test_waiting_ends_in_time_and_counts_from_the_last_arrival() -> None:
    pin = begun()
    assert pin.decide(computed(a=4), ids("a"), 9.9) == Allowed()
    pin.arrived(a_request("other"), 9.9)  # is not of the plan, and earns no more time
    assert pin.decide(computed(a=4), ids("a"), 10.1) is None
    assert reason(pin) is PinEnd.MISSING_REQUEST


def test_a_request_that_comes_late_but_comes_is_waited_for() -> None:
    pin = Pin(a_plan(), now_s=0)
    pin.arrived(a_request("a"), 1000)
    assert pin.decide(computed(a=0), [], 1000) == Allowed(engine_ids=ids("a"), num_tokens=4)


@pytest.mark.parametrize(
    ("num_tokens", "changes"),
    [(5, {}), (4, {"prompt_digest": "sha256:other"}), (4, {"num_prompt_tokens": 3})],
)
def test_a_wrong_prompt_ends_the_pin(num_tokens: int, changes: dict[str, object]) -> None:
    pin = Pin(a_plan(), now_s=0)
    pin.arrived(a_request("a", num_tokens, **changes), 0)
    assert reason(pin) is PinEnd.CONTENT_DIFFERS


def test_a_request_that_has_ended_ends_the_pin() -> None:
    pin = begun()
    pin.arrived(a_request("b"), 0)
    assert pin.decide(computed(b=0), [], 0) is None
    assert reason(pin) is PinEnd.REQUEST_GONE


def test_a_request_at_another_token_ends_the_pin() -> None:
    pin = begun()
    pin.arrived(a_request("b"), 0)
    assert pin.decide(computed(a=3, b=0), ids("a"), 0) is None
    assert reason(pin) is PinEnd.CACHE_STATE


@pytest.mark.parametrize(
    ("found", "preempted", "expected"),
    [
        ({"b": (3, 0), "a": (1, 4)}, (), PinEnd.SCHEDULE_REFUSED),
        ({"a": (1, 4)}, (), PinEnd.SCHEDULE_REFUSED),
        ({"a": (1, 4), "b": (2, 0)}, (), PinEnd.SCHEDULE_REFUSED),
        ({"a": (1, 4), "b": (3, 0)}, ("a",), PinEnd.SCHEDULE_REFUSED),
        ({"a": (1, 4), "b": (3, 2)}, (), PinEnd.CACHE_STATE),
        ({"a": (1, 4), "b": (3, 0)}, (), None),
    ],
)
def test_whatever_else_the_engine_does_ends_the_pin(
    found: dict[str, tuple[int, int]], preempted: tuple[str, ...], expected: PinEnd | None
) -> None:
    pin = begun()
    pin.arrived(a_request("b"), 0)
    pin.decide(computed(a=4, b=0), ids("a"), 0)
    pin.observe(scheduled(found, preempted), 0)
    assert reason(pin) is expected


def test_an_ended_pin_stays_ended() -> None:
    pin = begun()
    pin.end(PinEnd.SUPERSEDED, "another")
    pin.end(PinEnd.FAILED, "later")
    pin.arrived(a_request("a", 5), 0)
    pin.observe(scheduled({"a": (1, 4)}), 0)
    assert reason(pin) is PinEnd.SUPERSEDED


def test_every_state_ends_and_none_comes_back() -> None:
    assert {state for state, _ in MOVES} == {PinState.DRAINING, PinState.PINNED}
    assert {after for (state, _), after in MOVES.items() if state is PinState.PINNED} == {
        PinState.ENDED
    }


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["arrive a", "arrive b", "decide", "observe", "wait"]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_no_order_of_events_raises_or_waits_for_ever(events: list[tuple[str, int]]) -> None:
    pin, now, state = Pin(a_plan(), now_s=0), 0.0, {"a": 0, "b": 0}
    for event, number in events:
        if event.startswith("arrive"):
            pin.arrived(a_request(event[-1]), now)
        elif event == "decide":
            pin.decide(computed(**state), [], now)
        elif event == "observe":
            name = "ab"[number % 2]
            pin.observe(scheduled({name: (number + 1, state[name])}), now)
            state[name] += number + 1
        else:
            now += number
    for _ in range(2):
        now += 11
        pin.decide({}, [], now)
    assert pin.state is PinState.ENDED


def a_history(lines: list[StepLine]) -> History:
    return History().feed([a_header(), *lines])


def test_a_plan_from_the_log_has_the_steps_of_those_named() -> None:
    history = a_history(three_steps(ImaginedEngine()))
    plan = plan_of_log(history, {"a": "x.a", "b": "x.b"}, pin_id="x")
    assert [request.name for request in plan.requests] == ["x.a", "x.b"]
    assert plan.requests[1].prompt_digest == prompt_of("b", 3).digest
    assert [step.slots for step in plan.steps] == [
        (slot(0, 4, 0),),
        (slot(0, 1, 4), slot(1, 3, 0)),
        (slot(0, 1, 5), slot(1, 1, 3)),
    ]
    alone = plan_of_log(history, {"b": "y"}, pin_id="y")
    assert [step.slots for step in alone.steps] == [(slot(0, 3, 0),), (slot(0, 1, 3),)]


def test_the_companions_of_a_request_are_found() -> None:
    engine = ImaginedEngine()
    lines = [*three_steps(engine), engine.step({"c": 2}, new={"c": 2})]
    history = a_history([line for line in lines if line is not None])
    assert [one.client.name for one in companions_of(history, ["b"])] == ["b", "a"]
    assert [one.client.name for one in companions_of(history, ["c"])] == ["c"]


def test_a_plan_from_a_commit_brings_companions_to_where_they_were() -> None:
    history = a_history(three_steps(ImaginedEngine()))
    membership = history.membership({"b": "b"})  # it meets a after 4 tokens
    requests = {"a": PlannedRequest(name="x"), "b": PlannedRequest(name="y")}
    plan = plan_of_steps(membership, requests, pin_id="x")
    assert [step.slots for step in plan.steps] == [
        (slot(0, 4, 0),),
        (slot(0, 1, 4), slot(1, 3, 0)),
        (slot(0, 1, 5), slot(1, 1, 3)),
    ]


def a_slot(name: str, num_tokens: int, computed: int, branch: str | None = None) -> Slot:
    content = f"{name}{max(computed + num_tokens - 20, 0)}"  # prompts have 20 tokens
    return Slot(
        request_id=name,
        content_digest=content,
        num_tokens=num_tokens,
        num_computed_tokens=computed,
        branch_id=branch,
    )


def test_a_plan_has_the_order_of_a_scheduler_and_not_that_of_the_rows() -> None:
    """What has begun comes first, and last a prompt that gets what the others have left."""
    recorded = BatchMembership(
        steps=(
            Step(slots=(a_slot("a", 15, 0, "A"),)),
            Step(slots=(a_slot("c", 7, 0), a_slot("b", 20, 0), a_slot("a", 5, 15, "A"))),
            Step(slots=(a_slot("c", 13, 7), a_slot("b", 1, 20), a_slot("a", 1, 20, "A"))),
        )
    )
    steps = planned_steps(recorded, ["a", "b", "c"])
    assert [[one.request for one in step.slots] for step in steps] == [[0], [0, 1, 2], [2, 1, 0]]


def test_a_branch_that_begins_in_the_cache_is_not_computed_up_to_there() -> None:
    recorded = BatchMembership(steps=(Step(slots=(a_slot("a", 4, 16, "A"), a_slot("b", 4, 16))),))
    steps = planned_steps(recorded, ["a", "b"])
    assert [[(s.request, s.num_tokens) for s in step.slots] for step in steps] == [
        [(1, 16)],  # of a companion it is not known: it may have been met half-way
        [(1, 4), (0, 4)],
    ]


def test_a_commit_across_a_preemption_is_planned_from_the_log_only() -> None:
    def one(num_tokens: int, num_computed: int) -> Step:
        part = Slot(
            request_id="a",
            content_digest="sha256:0",
            num_tokens=num_tokens,
            num_computed_tokens=num_computed,
        )
        return Step(slots=(part,))

    membership = BatchMembership(steps=(one(4, 0), one(5, 0)))
    with pytest.raises(UnsupportedConditionError, match="plan its replay from the step log"):
        plan_of_steps(membership, {"a": PlannedRequest(name="x")}, pin_id="x")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pin_id": "../x"}, "letters, digits and dashes"),
        ({"pin_id": ""}, "letters, digits and dashes"),
        ({"wait_s": 0.0}, "above 0"),
        ({"wait_s": float("nan")}, "above 0"),
        ({"requests": (PlannedRequest(name="a"), PlannedRequest(name="a"))}, "by one name"),
        ({"requests": (PlannedRequest(name="a"),)}, "not in the plan"),
    ],
)
def test_a_wrong_plan_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        a_plan(**changes)


def test_a_plan_survives_its_file() -> None:
    assert msgspec.json.decode(canonical_bytes(a_plan()), type=PinPlan) == a_plan()


def test_a_request_that_is_not_logged_cannot_be_planned() -> None:
    with pytest.raises(InputFileError, match="not in the step log"):
        plan_of_log(a_history([]), {"a": "b"}, pin_id="x")
