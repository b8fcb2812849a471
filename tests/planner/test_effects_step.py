from typing import Any

import pytest
from msgspec.structs import replace

from harness.codec import digest
from harness.errors import InvalidRecordError
from harness.planner.effects import SideEffectStep, Trajectory, recorded_step
from tests.planner.effects_examples import a_step, a_trajectory

BAD_STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"step_id": ""}, "cannot be empty"),
    "no tool": ({"tool": ""}, "cannot be empty"),
    "an empty token": ({"token": ""}, "an empty token is none"),
    "an expiry that is no time": ({"expires_at": "soon"}, "expires_at 'soon' is no ISO 8601"),
    "an expiry without an offset": ({"expires_at": "2026-01-01T00:00:00"}, "has no offset"),
    "a payload with a NaN": ({"payload": {"total": float("nan")}}, "nan at"),
    "an argument with an infinity": ({"arguments": [float("inf")]}, "inf at"),
    "an argument that JSON cannot hold": ({"arguments": object()}, "cannot be written as JSON"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_bad_step_is_refused(name: str) -> None:
    changes, words = BAD_STEPS[name]
    with pytest.raises(InvalidRecordError, match=words):
        a_step("a", **changes)
    assert a_step("a")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"payload": {"id": "other"}}, "payload_digest is sha256:"),
        ({"payload": None}, "payload_digest is sha256:"),
        ({"payload_digest": None}, "payload_digest is None"),
        ({"payload_digest": digest("other")}, "payload_digest is sha256:"),
        ({"arguments": {"to": "other"}}, "request_digest is sha256:"),
        ({"tool": "other"}, "request_digest is sha256:"),
    ],
)
def test_a_digest_is_that_of_what_stands_there(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRecordError, match=words):
        replace(a_step("a"), **changes)
    assert replace(a_step("a")) == a_step("a")


def test_a_recorded_null_is_a_response() -> None:
    assert a_step("a", payload=None).is_recorded
    assert not SideEffectStep(step_id="a", tool="post", arguments={}).is_recorded


def test_a_step_is_a_side_effect_unless_declared_otherwise() -> None:
    assert recorded_step(step_id="a", tool="get", arguments={}, payload=1).is_side_effect


def test_the_order_of_keys_is_no_part_of_a_call() -> None:
    one = a_step("a", arguments={"x": 1, "y": 2}).request_digest
    assert one == a_step("a", arguments={"y": 2, "x": 1}).request_digest
    assert one != a_step("a", arguments={"x": 2, "y": 1}).request_digest


BAD_TRAJECTORIES = {
    "an id twice": ((a_step("a"), a_step("a")), r"step 1 \('a'\): the id stands for an earlier"),
    "a dependency on a later step": (
        (a_step("a", dependencies=("b",)), a_step("b")),
        r"step 0 \('a'\): depends on 'b', which is not earlier",
    ),
    "a dependency on itself": ((a_step("a", dependencies=("a",)),), "depends on 'a'"),
    "a dependency on nothing": ((a_step("a", dependencies=("z",)),), "depends on 'z'"),
}


@pytest.mark.parametrize("name", BAD_TRAJECTORIES)
def test_a_bad_trajectory_is_refused(name: str) -> None:
    steps, words = BAD_TRAJECTORIES[name]
    with pytest.raises(InvalidRecordError, match=f"run: {words}" if "step" in words else words):
        Trajectory(source="run", steps=steps)
    assert a_trajectory(a_step("a"), a_step("b", dependencies=("a",)))
