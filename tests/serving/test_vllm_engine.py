"""A real vLLM engine in this process: what it computed is recorded, and computed again, pinned."""

from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from harness.conditions.flight import EngineStep, StepSlot
from harness.serving.pin import PinEnd
from harness.serving.pin_plan import PinPlan, PlannedRequest
from tests.serving.engines import (
    LENGTHS,
    WIDE,
    Asked,
    Running,
    asked,
    generate,
    num_equal,
    pinned,
    shuffled,
    spaced,
    started,
)

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from started(tmp_path_factory, WIDE)


def test_a_pinned_replay_is_bitwise_equal_and_an_unpinned_one_is_not(wide: Running) -> None:
    requests = asked(1, 16, num_tokens=LENGTHS)
    first = generate(wide.engine, requests, spaced(list(requests)), prefix="a.")
    other = shuffled(requests, seed=2)
    unpinned = generate(wide.engine, requests, other, prefix="u.")
    plan = wide.plan(list(requests), "a.", "p.")
    again, outcome = pinned(wide.engine, wide.folder, plan, requests, other, prefix="p.")
    assert outcome.end is PinEnd.COMPLETED, outcome
    assert num_equal(first, again) == 16
    assert num_equal(first, unpinned) < 16, "nothing moved: the model is no positive control here"
    assert wide.same_steps(list(requests), "a.", "p.")
    assert not wide.same_steps(list(requests), "a.", "u.")


def test_a_thousand_requests_are_pinned_bitwise(wide: Running) -> None:
    requests = asked(3, 1024, num_tokens=(1, 2, 3, 5), longest=24)
    names = list(requests)
    arrivals = [(at // 12, name) for at, name in enumerate(names)]
    first = generate(wide.engine, requests, arrivals, prefix="m.")
    Random(4).shuffle(names)  # noqa: S311 - no secret
    other = [(at // 40, name) for at, name in enumerate(names)]
    plan = wide.plan(list(requests), "m.", "mp.")
    again, outcome = pinned(wide.engine, wide.folder, plan, requests, other, prefix="mp.")
    assert outcome.end is PinEnd.COMPLETED, outcome
    assert num_equal(first, again) == 1024


def test_rows_that_a_wait_has_reordered_are_told(wide: Running) -> None:
    requests = asked(1, 16, num_tokens=LENGTHS)
    names = list(requests)
    generate(wide.engine, requests, spaced(names), prefix="w.")
    plan = replace(wide.plan(names, "w.", "wp."), gather=False)
    other = shuffled(requests, seed=2)
    _, outcome = pinned(wide.engine, wide.folder, plan, requests, other, prefix="wp.")
    assert outcome.end is PinEnd.COMPLETED, outcome
    assert not wide.same_steps(names, "w.", "wp.")


def a_pair(seed: int) -> dict[str, Asked]:
    return asked(seed, 2, num_tokens=(12,))


def test_a_request_that_does_not_come_ends_the_pin(wide: Running) -> None:
    requests = a_pair(10)
    generate(wide.engine, requests, [(0, "r0"), (0, "r1")], prefix="b.")
    plan = wide.plan(["r0", "r1"], "b.", "bp.", wait_s=0.3)
    found, outcome = pinned(wide.engine, wide.folder, plan, requests, [(0, "r0")], prefix="bp.")
    assert outcome.end is PinEnd.MISSING_REQUEST
    assert "'bp.r1'" in outcome.detail
    assert len(found["r0"]) == 12
    assert not wide.same_steps(["r0"], "b.", "bp.")


def test_a_request_that_is_aborted_ends_the_pin(wide: Running) -> None:
    requests = a_pair(11)
    generate(wide.engine, requests, [(0, "r0"), (0, "r1")], prefix="c.")
    plan = wide.plan(["r0", "r1"], "c.", "cp.")
    arrivals = [(0, "r0"), (0, "r1")]
    found, outcome = pinned(
        wide.engine, wide.folder, plan, requests, arrivals, prefix="cp.", abort={"r1": 4}
    )
    assert outcome.end is PinEnd.REQUEST_GONE
    assert 0 < outcome.num_steps_done < outcome.num_steps
    assert list(found) == ["r0"]


def test_another_prompt_ends_the_pin(wide: Running) -> None:
    requests = a_pair(12)
    generate(wide.engine, requests, [(0, "r0"), (0, "r1")], prefix="d.")
    plan = wide.plan(["r0", "r1"], "d.", "dp.")
    changed = {**requests, "r1": Asked([*requests["r1"].prompt[:-1], 5], 12)}
    found, outcome = pinned(
        wide.engine, wide.folder, plan, changed, [(0, "r0"), (0, "r1")], prefix="dp."
    )
    assert outcome.end is PinEnd.CONTENT_DIFFERS
    assert len(found) == 2


def test_what_the_scheduler_will_not_do_ends_the_pin(wide: Running) -> None:
    requests = a_pair(13)
    request = PlannedRequest(name="e.r0")
    too_many = len(requests["r0"].prompt) + 1
    slot = StepSlot(request=0, num_tokens=too_many, num_computed_tokens=0)
    plan = PinPlan(pin_id="e", requests=(request,), steps=(EngineStep(slots=(slot,)),))
    found, outcome = pinned(
        wide.engine, wide.folder, plan, requests, [(0, "r0"), (0, "r1")], prefix="e."
    )
    assert outcome.end is PinEnd.SCHEDULE_REFUSED
    assert len(found) == 2


def test_other_requests_wait_until_the_pin_has_ended(wide: Running) -> None:
    requests = asked(14, 3, num_tokens=(6,))
    generate(wide.engine, requests, [(0, "r0"), (0, "r1")], prefix="f.")
    plan = wide.plan(["r0", "r1"], "f.", "fp.")
    arrivals = [(0, "r2"), (1, "r1"), (2, "r0")]
    found, outcome = pinned(wide.engine, wide.folder, plan, requests, arrivals, prefix="fp.")
    assert outcome.end is PinEnd.COMPLETED, outcome
    assert len(found) == 3
    history = wide.history()
    planned = [history.span(history.request(f"fp.{name}"))[1] for name in ("r0", "r1")]
    assert history.span(history.request("fp.r2"))[0] > max(planned)
