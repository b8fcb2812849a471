"""A step log on the disk: numbered files in a folder, appended to, rotated, read, followed.

Rules kept here:

* a line is handed to the operating system when its step is done, in one write: the end of the
  process, however sudden, loses no finished step. A file is synced when it is closed, so a power
  cut can lose what the system had not yet written of the newest file;
* disk use is bounded: a file that has reached its size is followed by the next, and the oldest ones
  go (`LogLimits`);
* each file can be understood alone: it begins with a header that names the requests in flight;
* a last line without its newline was cut by a crash and is dropped with a warning, if it is the
  last of its run. Any other line that cannot be read is damage: `CorruptFileError`.

It does not know what a step means.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.errors import CorruptFileError, InputFileError, StoreError
from harness.records.document import Record
from harness.serving.log_lines import FileHeader, StepLine, from_line, to_line

__all__ = ["LogFollower", "LogLimits", "StepLogWriter", "TornLineWarning", "read_log"]

Line = FileHeader | StepLine

_PATTERN = "steps-*.log"


class TornLineWarning(UserWarning):
    """The last line of a run was cut by a crash, and has been dropped."""


class LogLimits(Record, frozen=True, kw_only=True):
    """How much of the disk a log may take: the product of the two, and one line more."""

    file_bytes: int = 64 << 20
    """A file that has reached this size is followed by the next."""
    num_files: int = 8
    """Files kept; the oldest go."""

    def __post_init__(self) -> None:
        """There is a file, and something fits in it."""
        if self.file_bytes < 1 or self.num_files < 1:
            raise ValueError("a log has at least one file of at least one byte")


class StepLogWriter:
    """Appends to a log; one writer a folder."""

    def __init__(
        self, folder: Path, header: Callable[[], FileHeader], limits: LogLimits | None = None
    ) -> None:
        """Begin a new file behind those that are there; `header` is asked for each file's.

        Raises StoreError when the disk refuses, here and in every other method.
        """
        self._folder, self._header = folder, header
        self._limits = limits or LogLimits()
        self._number = max(_numbers(folder), default=0)
        self._file = -1
        self._num_bytes = 0
        self._begin()

    def make_room(self) -> None:
        """Begin the next file if this one is full: before the next step is made a line of."""
        if self._num_bytes >= self._limits.file_bytes:
            self.close()
            self._begin()

    def append(self, line: StepLine) -> None:
        """Append one step."""
        self._write(to_line(line))

    def close(self) -> None:
        """Sync and close the file."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        self._number += 1
        path = self._folder / f"steps-{self._number:06}.log"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise _refused(path, error) from error
        self._num_bytes = 0
        self._write(to_line(self._header()))
        for number in sorted(_numbers(self._folder))[: -self._limits.num_files]:
            (self._folder / f"steps-{number:06}.log").unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        """Write a whole line, or cut the file back to its last whole one."""
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise _refused(self._folder, error) from error
        if written != len(data):
            os.ftruncate(self._file, self._num_bytes)
            raise StoreError(f"{self._folder}: the disk is full; free some space and start again")
        self._num_bytes += written


class LogFollower:
    """Reads a log as it grows."""

    def __init__(self, folder: Path) -> None:
        """Name the log; nothing is opened yet."""
        self._folder = folder
        self._number, self._offset, self._line = 0, 0, 0

    def read_new(self) -> Iterator[Line]:
        """Yield the whole lines that were not there at the last call.

        A line without its newline is still being written, or torn: it is left alone while it is at
        the end of the newest file or of a run. Raises CorruptFileError for a damaged line.
        """
        for number in sorted(_numbers(self._folder)):
            if number < self._number:
                continue
            if number > self._number:
                yield from self._leave(number)
                self._number, self._offset, self._line = number, 0, 0
            yield from self._rest()

    def torn(self) -> str:
        """Return where the newest file has a line without its end; empty if nowhere."""
        path = self._path(self._number)
        if not self._number or not path.exists() or path.stat().st_size <= self._offset:
            return ""
        return f"{path}:{self._line + 1}"

    def _leave(self, following: int) -> Iterator[Line]:
        """Finish the current file; what is torn in it must be the end of its run."""
        if not self._number or not self._path(self._number).exists():
            return
        yield from self._rest()
        if where := self.torn():
            if _run_of(self._path(following)) == _run_of(self._path(self._number)):
                raise CorruptFileError(f"{where}: cut short, and its run goes on; restore the file")
            _warn_torn(where)

    def _rest(self) -> Iterator[Line]:
        path = self._path(self._number)
        try:
            with path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:  # rotated away meanwhile
            return
        except OSError as error:
            raise InputFileError(f"{path}: cannot be read ({error.strerror})") from error
        for one in data[: data.rfind(b"\n") + 1].splitlines():
            where = f"{path}:{self._line + 1}"
            line = from_line(one, where)
            if isinstance(line, FileHeader) != (self._line == 0):
                raise CorruptFileError(f"{where}: a header stands first in a file, and only there")
            self._offset += len(one) + 1
            self._line += 1
            yield line

    def _path(self, number: int) -> Path:
        return self._folder / f"steps-{number:06}.log"


def read_log(folder: Path) -> Iterator[Line]:
    """Yield every line of the log in `folder`, oldest first.

    Warns with TornLineWarning of a line that a crash cut. Raises InputFileError when there is no
    log, CorruptFileError for a damaged line.
    """
    if not _numbers(folder):
        raise InputFileError(f"{folder}: no step log; check the path")
    follower = LogFollower(folder)
    yield from follower.read_new()
    if where := follower.torn():
        _warn_torn(where)


def _warn_torn(where: str) -> None:
    message = f"{where}: the last line was cut by a crash; it is left out"
    warnings.warn(message, TornLineWarning, stacklevel=3)


def _run_of(path: Path) -> str:
    with path.open("rb") as stream:
        data = stream.readline()
    if not data.endswith(b"\n"):
        return ""
    line = from_line(data[:-1], f"{path}:1")
    return line.run if isinstance(line, FileHeader) else ""


def _numbers(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("steps-")) for path in folder.glob(_PATTERN)]


def _refused(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be written ({error.strerror}); recording ends here")
