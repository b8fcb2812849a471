import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import CorruptFileError, InputFileError, InvalidRecordError
from harness.planner.effects import (
    MemoryEffectStore,
    SideEffectStep,
    StepEffect,
    StepReason,
    TrajectoryFormat,
    classify_trajectory,
    read_trajectory,
)
from harness.planner.effects.trajectories import mini_swe_agent_trajectory, openai_trajectory
from tests.planner.effects_examples import LATER, NOW


def a_call(call_id: str, name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function, **more}


def assistant(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def answer(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


NOTE = {"token": "ord-17", "expires_at": LATER, "depends_on": ["call_1"]}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You shop."},
    {"role": "user", "content": "Two pens, please."},
    assistant(a_call("call_1", "search", {"q": "pen"})),
    answer("call_1", '[{"sku": 9}]'),
    assistant(
        a_call("call_2", "order", {"sku": 9, "n": 2}, effect=NOTE),
        {"id": "call_3", "type": "custom", "custom": {"name": "note", "input": "ordered"}},
    ),
    answer("call_3", [{"type": "text", "text": "noted"}]),
    answer("call_2", "ord-4711"),
    assistant(a_call("call_4", "mail", {})),
]


def mini(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "info": {},
        "messages": list(messages),
        "trajectory_format": "mini-swe-agent-1.1",
    } | more


def acting(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "Looking.", "extra": {"actions": list(actions)}}


def observed(output: str, returncode: int = 0, **more: Any) -> dict[str, Any]:
    extra = {"raw_output": output, "returncode": returncode, "timestamp": 1.5}
    return {"role": "user", "content": f"<output>{output}</output>", "extra": extra, **more}


MINI = mini(
    {"role": "system", "content": "You can run commands."},
    {"role": "user", "content": "Fix it."},
    acting({"command": "ls", "tool_call_id": "c1"}, {"command": "pwd", "tool_call_id": "c2"}),
    observed("/repo", role="tool", tool_call_id="c2"),
    observed("a.py", role="tool", tool_call_id="c1"),
    {"role": "user", "content": "No command.", "extra": {"interrupt_type": "FormatError"}},
    acting({"command": "cat a.py", "effect": {"read_only": True, "depends_on": ["c1"]}}),
    observed("", 1),
    acting({"command": "submit"}),
    {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": "diff"}},
)
TEXT: list[dict[str, Any]] = [
    {"role": "system", "content": "Reply with ```bash\nyour command\n```"},
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "First:\n\n```bash\nls -a\n```"},
    {"role": "user", "content": "<output>\na.py\n</output>"},
    {"role": "assistant", "content": "```bash\none\n```\n```bash\ntwo\n```"},
    {"role": "user", "content": "Please give EXACTLY ONE action."},
    {"role": "assistant", "content": "```mswea_bash_command\nsubmit\n```"},
]


def told(step: SideEffectStep) -> tuple[str, str, Any, Any]:
    return step.step_id, step.tool, step.arguments, step.payload if step.is_recorded else "(lost)"


def test_openai_messages_are_read() -> None:
    steps = openai_trajectory(CHAT, "chat").steps
    assert [told(step) for step in steps] == [
        ("call_1", "search", {"q": "pen"}, '[{"sku": 9}]'),
        ("call_2", "order", {"sku": 9, "n": 2}, "ord-4711"),
        ("call_3", "note", "ordered", [{"type": "text", "text": "noted"}]),
        ("call_4", "mail", {}, "(lost)"),
    ]
    assert [step.token for step in steps] == [None, "ord-17", None, None]
    assert [step.dependencies for step in steps] == [None, ("call_1",), None, None]
    assert steps[1].expires_at == LATER
    assert openai_trajectory({"messages": CHAT}, "chat").steps == steps


def test_the_id_of_a_call_is_never_taken_for_a_token() -> None:
    trajectory = openai_trajectory(CHAT, "chat", read_only_tools={"search"})
    store = MemoryEffectStore()
    store.put(trajectory.steps[1])
    audit = classify_trajectory(trajectory, store, now=NOW)
    assert [finding.reason for finding in audit.findings] == [
        StepReason.READ_ONLY,
        StepReason.VERIFIED,
        StepReason.TOKEN_NOT_RECORDED,
        StepReason.TOKEN_NOT_RECORDED,
    ]
    assert audit.boundary_index == 2


def test_only_the_tools_named_read_only_are() -> None:
    steps = openai_trajectory(CHAT, "chat", read_only_tools={"note"}).steps
    assert [step.effect for step in steps] == [
        StepEffect.SIDE_EFFECT,
        StepEffect.SIDE_EFFECT,
        StepEffect.READ_ONLY,
        StepEffect.SIDE_EFFECT,
    ]


def test_a_note_says_read_only_too() -> None:
    noted = [assistant(a_call("c", "get", {}, effect={"read_only": True}))]
    assert not openai_trajectory(noted, "chat").steps[0].is_side_effect
    assert openai_trajectory([assistant(a_call("c", "get", {}))], "chat").steps[0].is_side_effect


def test_mini_swe_agent_is_read() -> None:
    steps = mini_swe_agent_trajectory(MINI, "run").steps
    assert [told(step) for step in steps] == [
        ("c1", "bash", {"command": "ls"}, {"output": "a.py", "returncode": 0}),
        ("c2", "bash", {"command": "pwd"}, {"output": "/repo", "returncode": 0}),
        ("message-6.0", "bash", {"command": "cat a.py"}, {"output": "", "returncode": 1}),
        ("message-8.0", "bash", {"command": "submit"}, "(lost)"),
    ]
    assert [step.is_side_effect for step in steps] == [True, True, False, True]
    assert steps[2].dependencies == ("c1",)


def test_an_exception_is_part_of_the_response() -> None:
    raw = mini(acting({"command": "sleep 99"}), observed("", -1))
    raw["messages"][1]["extra"]["exception_info"] = "timed out"
    (step,) = mini_swe_agent_trajectory(raw, "run").steps
    assert step.payload == {"output": "", "returncode": -1, "exception": "timed out"}


def test_the_responses_api_form_is_read() -> None:
    said = {
        "object": "response",
        "output": [{"type": "function_call"}],
        "extra": {"actions": [{"command": "ls", "tool_call_id": "f1"}]},
    }
    seen = {"type": "function_call_output", "call_id": "f1", "output": "a.py"}
    (step,) = mini_swe_agent_trajectory(mini(said, seen), "run").steps
    assert told(step) == ("f1", "bash", {"command": "ls"}, "a.py")


@pytest.mark.parametrize(
    "raw", [TEXT, mini(*TEXT, trajectory_format="mini-swe-agent-1")], ids=["bare", "1"]
)
def test_commands_in_text_are_read(raw: object) -> None:
    steps = mini_swe_agent_trajectory(raw, "run").steps
    assert [told(step) for step in steps] == [
        ("message-2.0", "bash", {"command": "ls -a"}, "<output>\na.py\n</output>"),
        ("message-6.0", "bash", {"command": "submit"}, "(lost)"),
    ]


def test_no_step_of_a_mini_run_is_verifiable_without_a_note() -> None:
    trajectory = mini_swe_agent_trajectory(TEXT, "run")
    audit = classify_trajectory(trajectory, MemoryEffectStore(), now=NOW)
    assert {finding.reason for finding in audit.findings} == {StepReason.TOKEN_NOT_RECORDED}
    assert audit.boundary_index == 0


BAD_CHATS: dict[str, tuple[Any, str]] = {
    "no list": (7, r"chat: Expected `array`, got `int`"),
    "no messages": ({}, r"chat: Object missing required field `messages`"),
    "no role": ([{"content": "x"}], r"required field `role` - at `\$\[0\]`"),
    "an unknown role": ([{"role": "bot"}], r"Invalid value 'bot' - at `\$\[0\]\.role`"),
    "a call without an id": (
        [assistant({"type": "function", "function": {"name": "f", "arguments": "{}"}})],
        r"required field `id` - at `\$\[0\]\.tool_calls\[0\]`",
    ),
    "a call of an unknown kind": (
        {"messages": [assistant({"id": "c", "type": "magic"})]},
        r"Invalid value 'magic' - at `\$\.messages\[0\]\.tool_calls\[0\]\.type`",
    ),
    "arguments that are no text": (
        [assistant({"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}})],
        r"Expected `str`, got `object` - at `\$\[0\]\.tool_calls\[0\]\.function\.arguments`",
    ),
    "arguments that are no JSON": (
        [assistant({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}})],
        r"chat: \$\[0\]\.tool_calls\[0\]\.function\.arguments: .*not valid JSON",
    ),
    "a name that is empty": (
        [assistant(a_call("c", "", {}))],
        r"chat: \$\[0\]\.tool_calls\[0\]: step 'c': step_id and tool cannot be empty",
    ),
    "an answer to nothing": ([answer("c", "x")], r"\$\[0\]\.tool_call_id: 'c' is no earlier call"),
    "an answer before its call": (
        [answer("c", "x"), assistant(a_call("c", "f", {}))],
        r"\$\[0\]\.tool_call_id: 'c' is no earlier call",
    ),
    "two answers": (
        [assistant(a_call("c", "f", {})), answer("c", "x"), answer("c", "y")],
        r"\$\[2\]\.tool_call_id: 'c' is answered already",
    ),
    "two calls of one id": (
        [assistant(a_call("c", "f", {}), a_call("c", "g", {}))],
        r"chat: step 1 \('c'\): the id stands for an earlier step",
    ),
    "the legacy form": (
        [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}],
        r"\$\[0\]\.function_call: the legacy form is not read",
    ),
    "an unknown field in a note": (
        [assistant(a_call("c", "f", {}, effect={"tokn": "t"}))],
        r"unknown field `tokn` - at `\$\[0\]\.tool_calls\[0\]\.effect`",
    ),
    "an expiry that is no time": (
        [assistant(a_call("c", "f", {}, effect={"expires_at": "soon"}))],
        r"chat: \$\[0\]\.tool_calls\[0\]: step 'c': expires_at 'soon' is no ISO 8601",
    ),
    "a dependency on no step": (
        [assistant(a_call("c", "f", {}, effect={"depends_on": ["z"]}))],
        r"chat: step 0 \('c'\): depends on 'z', which is not earlier",
    ),
}


@pytest.mark.parametrize("name", BAD_CHATS)
def test_a_bad_chat_is_refused_with_its_place(name: str) -> None:
    raw, words = BAD_CHATS[name]
    with pytest.raises(InvalidRecordError, match=words):
        openai_trajectory(raw, "chat")


BAD_RUNS: dict[str, tuple[Any, str]] = {
    "no list": ("x", r"run: Expected `array`, got `str`"),
    "no messages": ({"info": {}}, r"run: Object missing required field `messages`"),
    "an unknown format": (
        mini(trajectory_format="mini-swe-agent-2"),
        r"run: \$\.trajectory_format is 'mini-swe-agent-2', not read; did you mean 'mini-swe",
    ),
    "an unknown role": (mini({"role": "bot"}), r"Invalid enum value 'bot' - at `\$\.messages\[0\]"),
    "an action without a command": (
        mini(acting({"tool_call_id": "c"})),
        r"field `command` - at `\$\.messages\[0\]\.extra\.actions\[0\]`",
    ),
    "an output that is no text": (
        mini(acting({"command": "ls"}), {"role": "user", "extra": {"raw_output": 7}}),
        r"Expected `str \| null`, got `int` - at `\$\.messages\[1\]\.extra\.raw_output`",
    ),
    "an observation of nothing": (
        mini(observed("x")),
        r"run: \$\.messages\[0\]: observes None, but no such action waits",
    ),
    "an observation of another": (
        mini(acting({"command": "ls", "tool_call_id": "c"}), observed("x", tool_call_id="d")),
        r"\$\.messages\[1\]: observes 'd', but no such action waits",
    ),
    "an observation too late": (
        mini(
            acting({"command": "ls", "tool_call_id": "c"}),
            acting({"command": "ls", "tool_call_id": "d"}),
            observed("x", tool_call_id="c"),
        ),
        r"\$\.messages\[2\]: observes 'c'",
    ),
    "a chat in another format": (
        CHAT,
        r"run: \$\[2\]: has tool calls or their results; a run that",
    ),
    "results of another format": ([CHAT[3]], r"run: \$\[0\]: has tool calls or their results"),
    "two actions of one id": (
        mini(acting({"command": "a", "tool_call_id": "c"}, {"command": "b", "tool_call_id": "c"})),
        r"run: step 1 \('c'\): the id stands for an earlier step",
    ),
    "a bad note": (
        mini(acting({"command": "ls", "effect": {"token": ""}})),
        r"run: \$\.messages\[0\]\.extra\.actions\[0\]: step 'message-0\.0': an empty token",
    ),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_bad_run_is_refused_with_its_place(name: str) -> None:
    raw, words = BAD_RUNS[name]
    with pytest.raises(InvalidRecordError, match=words):
        mini_swe_agent_trajectory(raw, "run")


def written(folder: Path, raw: object) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(raw))
    return path


def test_a_file_shows_its_format(tmp_path: Path) -> None:
    chat = read_trajectory(written(tmp_path, CHAT), read_only_tools={"search"})
    assert [step.step_id for step in chat.steps] == ["call_1", "call_2", "call_3", "call_4"]
    assert not chat.steps[0].is_side_effect
    run = read_trajectory(written(tmp_path, MINI))
    assert {step.tool for step in run.steps} == {"bash"}
    assert run.source == str(tmp_path / "run.json")


def test_a_file_that_shows_no_format_needs_it_named(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT)
    with pytest.raises(InputFileError, match=r"run\.json: shows no known format; name it"):
        read_trajectory(path)
    named = read_trajectory(path, trajectory_format=TrajectoryFormat.MINI_SWE_AGENT)
    assert len(named.steps) == 2


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot be read"):
        read_trajectory(tmp_path / "none.json")
    path = tmp_path / "cut.json"
    path.write_text('{"messages": [')
    with pytest.raises(CorruptFileError, match=r"cut\.json: not valid JSON"):
        read_trajectory(path)
    path.write_text('{"info": {}, "messages": [{"role": 7}]}')
    with pytest.raises(InvalidRecordError, match=r"cut\.json: .*at `\$\.messages\[0\]\.role`"):
        read_trajectory(path)
