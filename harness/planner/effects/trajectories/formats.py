"""Decides which format a trajectory file is in, and reads it.

A file that says it is mini-SWE-agent's (``trajectory_format``, or ``info`` beside ``messages``) is
read as that; one whose messages have tool calls as OpenAI's. A bare list without tool calls could
be either, so it is refused until the format is named.
"""

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from harness.codec import parse
from harness.errors import InputFileError
from harness.files import read_bytes
from harness.planner.effects.trajectories.mini_swe_agent import mini_swe_agent_trajectory
from harness.planner.effects.trajectories.openai_messages import openai_trajectory
from harness.planner.effects.trajectories.trajectory import Trajectory

__all__ = ["TrajectoryFormat", "read_trajectory"]


class TrajectoryFormat(StrEnum):
    """A public format that is read."""

    MINI_SWE_AGENT = "mini-swe-agent"
    """``*.traj.json`` of mini-SWE-agent."""
    OPENAI = "openai"
    """Chat messages with tool calls."""


def read_trajectory(
    path: Path,
    *,
    trajectory_format: TrajectoryFormat | None = None,
    read_only_tools: Collection[str] = (),
) -> Trajectory:
    """Return the trajectory in a file; without a format, the one that the file shows.

    Raises InputFileError when the file cannot be read or shows no format, CorruptFileError when it
    is not JSON, InvalidRecordError, with the place, when it breaks a rule of its format.
    """
    raw = parse(read_bytes(path), str(path))
    if (trajectory_format or _shown(raw, path)) is TrajectoryFormat.OPENAI:
        return openai_trajectory(raw, str(path), read_only_tools=read_only_tools)
    return mini_swe_agent_trajectory(raw, str(path))


def _shown(raw: object, path: Path) -> TrajectoryFormat:
    if isinstance(raw, dict) and ("trajectory_format" in raw or "info" in raw):
        return TrajectoryFormat.MINI_SWE_AGENT
    messages = raw.get("messages") if isinstance(raw, dict) else raw
    if isinstance(messages, list) and any(_has_tool_calls(message) for message in messages):
        return TrajectoryFormat.OPENAI
    known = ", ".join(TrajectoryFormat)
    raise InputFileError(f"{path}: shows no known format; name it (--format), one of {known}")


def _has_tool_calls(message: object) -> bool:
    return isinstance(message, dict) and bool(message.get("tool_calls"))
