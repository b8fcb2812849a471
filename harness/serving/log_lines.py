"""The lines of a step log: a header at the top of each file, then one line a step.

Format 1. A line is ``<crc32 of the JSON, 8 hex digits> <JSON>``. In a file, requests go by small
numbers; the line, or the header, that first has a number says whose it is. What a reader needs to
understand a file stands in that file.
"""

import zlib
from typing import Any

import msgspec

from harness.errors import CorruptFileError
from harness.records.document import Record

__all__ = ["FORMAT", "Admitted", "FileHeader", "LoggedSlot", "StepLine", "from_line", "to_line"]

FORMAT = 1
"""History: 1, the first."""


class Admitted(Record, frozen=True, kw_only=True, array_like=True):
    """A request that the file has not had before."""

    number: int
    """What the file calls it."""
    engine_id: str
    """What the engine calls it."""
    num_prompt_tokens: int
    """Tokens of its prompt."""
    prompt_digest: str
    """Digest of its prompt; see `harness.serving.content`."""
    generated: tuple[int, ...] = ()
    """Tokens that were generated before this file began."""


class LoggedSlot(Record, frozen=True, array_like=True, gc=False):
    """One request's part in a step; positional, and no concern of the collector: there are many."""

    number: int
    """Which request."""
    num_tokens: int
    """Tokens computed in this step."""
    num_computed_tokens: int
    """Tokens computed before."""
    sampled: tuple[int, ...] = ()
    """Tokens that came out: none for a part of a prompt and for pooling."""


class StepLine(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="k", tag="s"):
    """One step of the engine, written when its results are in."""

    step: int = msgspec.field(name="n")
    """Number of the step in its run, from 0."""
    slots: tuple[LoggedSlot, ...] = msgspec.field(name="b", default=())
    """In the scheduler's order; empty for a step that only preempted."""
    rows: tuple[int, ...] = msgspec.field(name="r", default=())
    """Indices of the slots in the order of the model's rows; empty where that is the slots' own."""
    admitted: tuple[Admitted, ...] = msgspec.field(name="a", default=())
    """Requests that the file has not had before."""
    preempted: tuple[int, ...] = msgspec.field(name="p", default=())
    """Requests that lost their cache in this step, the first to lose it first."""
    finished: tuple[int, ...] = msgspec.field(name="f", default=())
    """Requests that have ended since the line before: done, or aborted."""


class FileHeader(Record, frozen=True, kw_only=True, tag_field="k", tag="h"):
    """The first line of a file."""

    format: int
    """Version of the format."""
    run: str
    """Name of the engine's run: another run numbers anew."""
    facts: dict[str, Any]
    """What the engine is; see `harness.serving.engine_facts`."""
    live: tuple[Admitted, ...] = ()
    """Requests that were in flight when the file began."""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(FileHeader | StepLine)


def to_line(line: FileHeader | StepLine) -> bytes:
    """Return the bytes of `line`, newline included."""
    data = _ENCODER.encode(line)
    return b"%08x %b\n" % (zlib.crc32(data), data)


def from_line(data: bytes, where: str) -> FileHeader | StepLine:
    """Return the line that `data`, without its newline, holds.

    Raises CorruptFileError, which begins with `where`, for anything but a whole line of format 1.
    """
    checksum, _, body = data.partition(b" ")
    if b"%08x" % zlib.crc32(body) != checksum:
        raise CorruptFileError(f"{where}: the line does not match its checksum; restore the file")
    try:
        line: FileHeader | StepLine = _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptFileError(f"{where}: no line of a step log ({error})") from error
    if isinstance(line, FileHeader) and line.format != FORMAT:
        advice = "read it with the release that wrote it"
        raise CorruptFileError(f"{where}: step log of format {line.format}, not {FORMAT}; {advice}")
    return line
