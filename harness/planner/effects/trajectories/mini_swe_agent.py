"""Reads mini-SWE-agent trajectories, ``*.traj.json``.

Three layouts are read: ``mini-swe-agent-1.1`` (actions under ``extra.actions`` of what the model
said, observations that follow it), ``mini-swe-agent-1``, and the bare list of messages before it
(one fenced command in what the model said, the next message is the observation). One action is one
step of the tool ``bash``. Rules kept here:

* an observation names its action by ``tool_call_id`` (or ``call_id``), or else answers the first
  action not answered yet; one that answers none is refused;
* the response is the raw output and the return code where they were recorded, else the text that
  the model was shown;
* an action that nothing answers, such as the last one of a run that was submitted, is a step whose
  response was not recorded.

A shell command may do anything, and the format records no token: without an `effect` note beside
the action no step of such a run can be verified.
"""

import re
from typing import Any, Literal

import msgspec

from harness.errors import InvalidRecordError, nearest
from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.trajectories.note import EffectNote, Response, noted_step
from harness.planner.effects.trajectories.trajectory import Trajectory
from harness.records.document import Record

__all__ = ["FORMATS", "mini_swe_agent_trajectory"]

FORMATS = ("mini-swe-agent-1", "mini-swe-agent-1.1")
"""Values of ``trajectory_format`` that are read."""

_COMMAND = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```", re.DOTALL)
"""What the agent ran when a message held exactly one, before actions were recorded."""


class _Action(Record, frozen=True, kw_only=True):
    command: str
    tool_call_id: str | None = None
    effect: EffectNote = EffectNote()


class _Extra(Record, frozen=True, kw_only=True):
    actions: tuple[_Action, ...] | None = None
    raw_output: str | None = None
    returncode: int | None = None
    exception_info: str | None = None
    interrupt_type: str | None = None


class _Message(Record, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "exit"] | None = None
    type: str | None = None
    content: Any = None
    output: Any = None
    tool_call_id: str | None = None
    call_id: str | None = None
    tool_calls: Any = None
    extra: _Extra = _Extra()

    @property
    def answers(self) -> str | None:
        """Id of the action that this message answers; None where it names none."""
        return self.tool_call_id or self.call_id


class _Run(Record, frozen=True, kw_only=True):
    messages: tuple[_Message, ...]
    trajectory_format: str | None = None


class _Acted(Record, frozen=True, kw_only=True):
    """An action, and where it stands."""

    step_id: str
    action: _Action
    place: str


def mini_swe_agent_trajectory(raw: object, where: str) -> Trajectory:
    """Return the trajectory of a parsed ``.traj.json``.

    Raises InvalidRecordError whose message has `where` and the place in it.
    """
    at, messages, by_text = _messages(raw, where)
    acted: list[_Acted] = []
    waiting: list[str] = []
    responses: dict[str, Response] = {}
    for index, message in enumerate(messages):
        place = f"{at}[{index}]"
        new = _actions(message, index, place, by_text=by_text)
        if new:
            acted += new
            waiting = [one.step_id for one in new]
        elif (waiting and message.role == "user") if by_text else _is_observation(message):
            responses[_answered(message, waiting, place)] = Response(payload=_observed(message))
    return Trajectory(source=where, steps=tuple(_step(one, responses) for one in acted))


def _answered(message: _Message, waiting: list[str], place: str) -> str:
    """Take out and return the step that a message answers."""
    step_id = message.answers or (waiting[0] if waiting else None)
    if step_id not in waiting:
        raise InvalidRecordError(f"{place}: observes {step_id!r}, but no such action waits for it")
    waiting.remove(step_id)
    return step_id


def _step(acted: _Acted, responses: dict[str, Response]) -> SideEffectStep:
    call = {"step_id": acted.step_id, "tool": "bash"}
    arguments = {"command": acted.action.command}
    response = responses.get(acted.step_id)
    try:
        return noted_step(acted.action.effect, response, arguments=arguments, **call)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{acted.place}: {error}") from error


def _messages(raw: object, where: str) -> tuple[str, tuple[_Message, ...], bool]:
    """Return the place of the list, the messages, and whether commands stand in their text."""
    try:
        if isinstance(raw, dict):
            run, at = msgspec.convert(raw, _Run), f"{where}: $.messages"
        else:
            run, at = _Run(messages=msgspec.convert(raw, tuple[_Message, ...])), f"{where}: $"
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{where}: {error}") from error
    if run.trajectory_format not in {None, *FORMATS}:
        known = nearest(run.trajectory_format or "", FORMATS)
        message = f"{where}: $.trajectory_format is {run.trajectory_format!r}, not read; {known}"
        raise InvalidRecordError(message)
    acted = any(message.extra.actions is not None for message in run.messages)
    return at, run.messages, not acted and run.trajectory_format != FORMATS[-1]


def _actions(message: _Message, index: int, place: str, *, by_text: bool) -> list[_Acted]:
    actions = _written(message, place) if by_text else message.extra.actions or ()
    return [
        _Acted(
            step_id=action.tool_call_id or f"message-{index}.{number}",
            action=action,
            place=place if by_text else f"{place}.extra.actions[{number}]",
        )
        for number, action in enumerate(actions)
    ]


def _written(message: _Message, place: str) -> tuple[_Action, ...]:
    """Return the command that stands in a message; of several the agent ran none."""
    if message.tool_calls or message.role == "tool":
        advice = "a run that acts by text has none; is it a chat in the OpenAI format?"
        raise InvalidRecordError(f"{place}: has tool calls or their results; {advice}")
    if message.role != "assistant" or not isinstance(message.content, str):
        return ()
    commands = _COMMAND.findall(message.content)
    return (_Action(command=commands[0].strip()),) if len(commands) == 1 else ()


def _is_observation(message: _Message) -> bool:
    by_id = message.role == "tool" or message.type == "function_call_output"
    return by_id or message.extra.raw_output is not None


def _observed(message: _Message) -> Any:
    extra = message.extra
    if extra.raw_output is None:
        return message.content if message.content is not None else message.output
    observed = {"output": extra.raw_output, "returncode": extra.returncode}
    return observed | ({"exception": extra.exception_info} if extra.exception_info else {})
