"""Files that are whole or absent: atomic write, append, JSON lines read with their numbers.

A write goes to a temporary file in the same folder, is flushed to the disk, read back and renamed,
so a reader sees the old bytes or the new ones. A line that cannot be read is handed on with its
file and line, never dropped in silence.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.codec import parse
from harness.errors import CorruptFileError, InputFileError, StoreError
from harness.records.document import Record

__all__ = ["Line", "append_lines", "read_bytes", "read_lines", "write_atomic"]


class Line(Record, frozen=True, kw_only=True):
    """One line of a JSON-lines file: its value, or the error it gave."""

    where: str
    """``file:line``, ready to begin an error message."""
    value: Any = None
    """The parsed JSON; None when `error` is set."""
    error: str = ""
    """Why the line could not be parsed; empty when it could."""
    text: str = ""
    """The line as it stands in the file, without its newline."""


def read_bytes(path: Path) -> bytes:
    """Return the bytes of `path`; raise InputFileError, saying why, when they cannot be had."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputFileError(f"{path}: cannot be read ({reason}); check the path") from error


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the non-blank lines of a JSON-lines file, each parsed or with its error."""
    for number, data in enumerate(read_bytes(path).splitlines(), start=1):
        if not data.strip():
            continue
        where, text = f"{path}:{number}", data.decode("utf-8", "replace")
        try:
            yield Line(where=where, value=parse(data, where), text=text)
        except CorruptFileError as error:
            yield Line(where=where, error=str(error), text=text)


def write_atomic(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write `data` to `path` so that it is there whole or not at all.

    Raises InputFileError when `path` exists and `overwrite` is false, StoreError when the disk
    refuses; in both cases nothing at `path` has changed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not overwrite:
            advice = "remove it, choose another name, or pass --overwrite"
            raise InputFileError(f"{path}: exists; {advice}")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(temporary, data)
        temporary.replace(path)
    except OSError as error:
        raise _disk_error(path, error) from error
    finally:
        with suppress(OSError):  # the parent is a file, the name is too long: told above
            temporary.unlink(missing_ok=True)


def append_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Append whole lines to `path` in one synced write, after mending a torn last line.

    A last line without its newline was cut by a crash; it is kept, on a line of its own.
    """
    data = b"".join(line + b"\n" for line in lines)
    if not data:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as stream:
            start = stream.tell()
            _append_or_undo(stream, (b"\n" if _is_torn(stream, start) else b"") + data, start)
    except OSError as error:
        raise _disk_error(path, error) from error


def _is_torn(stream: Any, end: int) -> bool:
    if end == 0:
        return False
    stream.seek(end - 1)
    return bool(stream.read(1) != b"\n")


def _append_or_undo(stream: Any, data: bytes, start: int) -> None:
    """Write all of `data`, or cut the file back. Unbuffered: no close may write a rest later."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[stream.write(rest) :]
        os.fsync(stream.fileno())
    except BaseException:
        os.ftruncate(stream.fileno(), start)
        raise


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if path.read_bytes() != data:
        raise OSError(errno.EIO, "read back other bytes than were written")


def _disk_error(path: Path, error: OSError) -> StoreError:
    reason = error.strerror or type(error).__name__
    advice = "free some space and run again" if error.errno == errno.ENOSPC else "check the path"
    return StoreError(f"{path}: cannot be written ({reason}); {advice}; nothing was half-written")
