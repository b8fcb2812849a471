"""Reads OpenAI-style chat messages: tool calls of the assistant, and the tool messages they got.

A file is the list of messages, or an object with the list under ``messages``. One tool call is one
step; the tool message with its id is the response, kept as it stands. A call that no message
answers is a step whose response was not recorded. Rules kept here:

* a tool message answers one earlier call, once;
* the arguments of a call are the JSON that its text spells; text that spells none is refused;
* the legacy ``function_call`` has no id to be answered by, and is refused.

The id of a call is the step's id and never its token: see `note`.
"""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import replace

from harness.codec import parse
from harness.errors import CorruptFileError, InvalidRecordError
from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.trajectories.note import EffectNote, Response, noted_step
from harness.planner.effects.trajectories.trajectory import Trajectory
from harness.records.document import Record

__all__ = ["openai_trajectory"]


class _Function(Record, frozen=True, kw_only=True):
    name: str
    arguments: str


class _Custom(Record, frozen=True, kw_only=True):
    name: str
    input: str


class _FunctionCall(Record, frozen=True, kw_only=True, tag_field="type", tag="function"):
    id: str
    function: _Function
    effect: EffectNote = EffectNote()


class _CustomCall(Record, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    id: str
    custom: _Custom
    effect: EffectNote = EffectNote()


_Call = _FunctionCall | _CustomCall


class _Said(Record, frozen=True, kw_only=True, tag_field="role"):
    content: Any = None


class _System(_Said, frozen=True, kw_only=True, tag="system"):
    pass


class _Developer(_Said, frozen=True, kw_only=True, tag="developer"):
    pass


class _User(_Said, frozen=True, kw_only=True, tag="user"):
    pass


class _Assistant(_Said, frozen=True, kw_only=True, tag="assistant"):
    tool_calls: tuple[_Call, ...] | None = None
    function_call: Any = None


class _Tool(Record, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | list[dict[str, Any]]


_Message = _System | _Developer | _User | _Assistant | _Tool


class _Chat(Record, frozen=True, kw_only=True):
    messages: tuple[_Message, ...]


def openai_trajectory(
    raw: object, where: str, *, read_only_tools: Collection[str] = ()
) -> Trajectory:
    """Return the trajectory of parsed messages.

    `read_only_tools` are tools that whoever asks knows to change nothing. Raises InvalidRecordError
    whose message has `where` and the place in it.
    """
    at, messages = _messages(raw, where)
    responses = _responses(messages, at)
    steps = []
    for index, message in enumerate(messages):
        for number, call in enumerate(_calls(message, f"{at}[{index}]")):
            place = f"{at}[{index}].tool_calls[{number}]"
            steps.append(_step(call, responses.get(call.id), place, read_only_tools))
    return Trajectory(source=where, steps=tuple(steps))


def _messages(raw: object, where: str) -> tuple[str, tuple[_Message, ...]]:
    """Return the place of the list, and the messages."""
    try:
        if isinstance(raw, dict):
            return f"{where}: $.messages", msgspec.convert(raw, _Chat).messages
        return f"{where}: $", msgspec.convert(raw, tuple[_Message, ...])
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{where}: {error}") from error


def _calls(message: _Message, at: str) -> tuple[_Call, ...]:
    if not isinstance(message, _Assistant):
        return ()
    if message.function_call is not None:
        advice = "it has no id to be answered by; write it as one of `tool_calls`"
        raise InvalidRecordError(f"{at}.function_call: the legacy form is not read: {advice}")
    return message.tool_calls or ()


def _responses(messages: tuple[_Message, ...], at: str) -> dict[str, Response]:
    """Return call id -> response, after checking that each answers one earlier call, once."""
    open_calls: set[str] = set()
    responses: dict[str, Response] = {}
    for index, message in enumerate(messages):
        open_calls.update(call.id for call in _calls(message, f"{at}[{index}]"))
        if isinstance(message, _Tool):
            call_id = message.tool_call_id
            if call_id not in open_calls:
                found = "is answered already" if call_id in responses else "is no earlier call"
                raise InvalidRecordError(f"{at}[{index}].tool_call_id: {call_id!r} {found}")
            open_calls.remove(call_id)
            responses[call_id] = Response(payload=message.content)
    return responses


def _step(
    call: _Call, response: Response | None, at: str, read_only_tools: Collection[str]
) -> SideEffectStep:
    tool, arguments = _request(call, at)
    note = replace(call.effect, read_only=call.effect.read_only or tool in read_only_tools)
    try:
        return noted_step(note, response, step_id=call.id, tool=tool, arguments=arguments)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{at}: {error}") from error


def _request(call: _Call, at: str) -> tuple[str, Any]:
    """Return tool and arguments."""
    if isinstance(call, _CustomCall):
        return call.custom.name, call.custom.input
    try:
        return call.function.name, parse(call.function.arguments.encode(), at)
    except CorruptFileError as error:
        raise InvalidRecordError(f"{at}.function.arguments: {error}") from error
