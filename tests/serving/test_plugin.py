"""What lives in the engine never ends it: a log that fails, a pin that fails."""

import logging
from pathlib import Path

import msgspec
import pytest

from harness.codec import canonical_bytes
from harness.errors import ConfigError, InputFileError
from harness.serving.history import History
from harness.serving.pin import Allowed, EngineRequest, PinEnd
from harness.serving.pin_files import ask_for_pin, read_outcome
from harness.serving.pin_plan import PinPlan
from harness.serving.plugin import EnginePin, EngineRecording
from harness.serving.recorder import Prompt, RanStep, ScheduledStep
from harness.serving.settings import ServingSettings, read_settings
from harness.serving.step_log import read_log
from tests.serving.test_pin import a_plan, a_request, computed, ids, scheduled


def a_step(name: str) -> ScheduledStep:
    return ScheduledStep(
        num_tokens={name: 2},
        num_computed_tokens={name: 0},
        prompts={name: Prompt(num_tokens=2, digest="sha256:0")},
    )


def test_a_log_rotates_and_tells_the_same(tmp_path: Path) -> None:
    settings = ServingSettings(file_bytes=300, num_files=100)
    recording = EngineRecording(tmp_path, settings, {"engine": "x"})
    for number in range(20):
        recording.record(a_step(f"r{number}-0123abcd"), RanStep())
    recording.close()
    assert len(list(tmp_path.glob("steps-*.log"))) > 5
    history = History().feed(read_log(tmp_path))
    assert history.facts == {"engine": "x"}
    assert [one.client.name for one in history.requests()] == [f"r{at}" for at in range(20)]


def test_a_step_that_cannot_be_recorded_ends_the_log_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = EngineRecording(tmp_path, ServingSettings(), {})
    recording.record(a_step("a"), RanStep())
    unknown = ScheduledStep(num_tokens={"b": 1}, num_computed_tokens={}, prompts={})
    with caplog.at_level(logging.ERROR):
        recording.record(unknown, RanStep())
        recording.record(a_step("c"), RanStep())
    recording.close()
    assert caplog.text.count("recording ends here") == 1
    assert [one.client.name for one in History().feed(read_log(tmp_path)).requests()] == ["a"]


def test_a_pin_is_taken_carried_out_and_told(tmp_path: Path) -> None:
    pin, plan = EnginePin(tmp_path, clock_s=lambda: 0.0), a_plan(steps=a_plan().steps[:1])
    assert pin.decide({}, [], list) is None
    ask_for_pin(tmp_path, plan)
    allowed = pin.decide(computed(a=0), [], lambda: [a_request("a")])
    assert allowed == Allowed(engine_ids=ids("a"), num_tokens=4)
    assert not (tmp_path / "pin.json").exists()
    assert read_outcome(tmp_path, "p1") is None
    pin.observe(scheduled({"a": (4, 0)}))
    told = read_outcome(tmp_path, "p1")
    assert told is not None
    assert told.end is PinEnd.COMPLETED
    assert not pin.is_pinned
    with pytest.raises(InputFileError, match="'p1' has ended"):
        ask_for_pin(tmp_path, plan)


def test_a_second_pin_supersedes_the_first(tmp_path: Path) -> None:
    pin = EnginePin(tmp_path, clock_s=lambda: 0.0)
    ask_for_pin(tmp_path, a_plan())
    assert pin.decide({}, [], list) == Allowed()
    ask_for_pin(tmp_path, a_plan(pin_id="p2"))
    assert pin.decide({}, [], list) == Allowed()
    told = read_outcome(tmp_path, "p1")
    assert told is not None
    assert told.end is PinEnd.SUPERSEDED
    assert read_outcome(tmp_path, "p2") is None


@pytest.mark.parametrize("data", [b"", b"{", b"{}", canonical_bytes(a_plan())[:-9]])
def test_a_broken_request_to_pin_is_left_aside(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pin.json").write_bytes(data)
    pin = EnginePin(tmp_path)
    assert pin.decide({}, [], list) is None
    assert "left aside" in caplog.text
    assert not (tmp_path / "pin.json").exists()


def test_a_pin_that_fails_lets_the_engine_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> list[EngineRequest]:
        raise KeyError("gone")

    pin = EnginePin(tmp_path)
    ask_for_pin(tmp_path, a_plan())
    assert pin.decide({}, [], broken) is None
    told = read_outcome(tmp_path, "p1")
    assert told is not None
    assert told.end is PinEnd.FAILED
    assert "gone" in told.detail
    assert "the engine goes on" in caplog.text


def test_settings_have_defaults_and_no_others() -> None:
    assert read_settings({}) == ServingSettings()
    assert read_settings({"scorepin": {"allow_pin": True}}).allow_pin
    with pytest.raises(ConfigError, match=r"additional_config\.scorepin"):
        read_settings({"scorepin": {"logs": "x"}})


def test_an_outcome_survives_its_file(tmp_path: Path) -> None:
    pin = EnginePin(tmp_path, clock_s=lambda: 0.0)
    ask_for_pin(tmp_path, a_plan())
    pin.decide({}, [], list)
    pin.end(PinEnd.UNSUPPORTED, "priority")
    told = read_outcome(tmp_path, "p1")
    assert told is not None
    expected = {"end": "unsupported", "detail": "priority", "num_steps_done": 0, "num_steps": 3}
    assert msgspec.to_builtins(told) == {"pin_id": "p1", **expected}
    assert isinstance(a_plan(), PinPlan)
