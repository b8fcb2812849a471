"""Decides the version of a file, and replaces it only when that version is still there.

A token is a counter, the inode, the time of the last change of inode or content, and the content's
SHA-256. The counter stands in ``.<name>.lock`` beside the file, whose lock every writer of this
module holds.

What is guaranteed, exactly:

* among writers that use this module: every write gets a token of its own, whatever the bytes; two
  writers never replace the same version; a reader sees old bytes or new ones;
* a writer that does not take the lock can come between the comparison and the replacement: an
  advisory lock cannot stop it, and its write is then lost;
* its earlier changes are seen by content; bytes that it changed and put back are seen by the change
  time, unless all of it fell into one tick of the file system's clock (some milliseconds) in the
  same inode. A file that it created and removed again is not seen;
* a change of mode, owner or link count counts as a change: stale by mistake, never current by
  mistake.

The file keeps its mode. Needs POSIX locks on a local file system.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from harness.errors import InputFileError, StoreError
from harness.files import write_atomic
from harness.planner.resources.resource import Snapshot, conflict

__all__ = ["FileResource"]

NUM_READS = 8
"""Times a file is read anew because it changed under the reader."""


class FileResource:
    """One file, there or not."""

    def __init__(self, path: Path | str) -> None:
        """Name the file; nothing is opened."""
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - links stay: the name is the id
        self._lock_path = self.path.with_name(f".{self.path.name}.lock")

    @property
    def resource_id(self) -> str:
        """``file:`` and the absolute path."""
        return f"file:{self.path}"

    def version(self) -> str:
        """Return the token of what is there now."""
        return _token_of(self._snapshot())

    def read(self) -> Snapshot:
        """Return content and token of what is there now."""
        return self._snapshot()

    def write(self, content: bytes | None, expected: str) -> str:
        """Replace the version `expected`; return the new token."""
        with self._locked(fcntl.LOCK_EX) as lock:
            found = _token_of(self._taken(lock))
            if found != expected:
                raise conflict(self.resource_id, expected, found)
            _count_up(lock)  # first: a crash now costs a token, never shares one
            self._replace(content)
            return _token_of(self._taken(lock))

    def _snapshot(self) -> Snapshot:
        with self._locked(fcntl.LOCK_SH) as lock:
            return self._taken(lock)

    def _taken(self, lock: IO[bytes]) -> Snapshot:
        counter = _counter(lock)
        for _ in range(NUM_READS):
            try:
                with self.path.open("rb") as stream:
                    before = os.fstat(stream.fileno())
                    content = stream.read()
                    after = os.fstat(stream.fileno())
            except FileNotFoundError:
                return Snapshot(content=None, token=f"{counter}.absent")
            except OSError as error:
                raise InputFileError(f"{self.path}: cannot be read ({error.strerror})") from error
            if _mark(before) == _mark(after):
                token = f"{counter}.{_mark(after)}.{sha256(content).hexdigest()}"
                return Snapshot(content=content, token=token)
        raise StoreError(f"{self.path}: changes while it is read; stop its other writer")

    def _replace(self, content: bytes | None) -> None:
        if content is None:
            self.path.unlink(missing_ok=True)
        else:
            mode = self.path.stat().st_mode & 0o7777 if self.path.exists() else None
            write_atomic(self.path, content, overwrite=True)
            if mode is not None:
                self.path.chmod(mode)
        _sync_folder(self.path.parent)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[IO[bytes]]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._lock_path.open("a+b", buffering=0)
        except OSError as error:
            advice = "check its folder"
            raise StoreError(f"{self._lock_path}: cannot be opened ({error}); {advice}") from error
        with lock:
            fcntl.flock(lock, kind)  # ends with the process
            yield lock


def _counter(lock: IO[bytes]) -> int:
    """Return how many writes began: one byte of the lock file each."""
    return os.fstat(lock.fileno()).st_size


def _count_up(lock: IO[bytes]) -> None:
    """Append one byte: an append is there or not, it cannot be torn."""
    lock.write(b".")
    os.fsync(lock.fileno())


def _mark(stat: os.stat_result) -> str:
    return f"{stat.st_ino:x}.{stat.st_ctime_ns:x}"


def _token_of(snapshot: Snapshot) -> str:
    return snapshot.token or ""


def _sync_folder(folder: Path) -> None:
    """Make a rename or removal in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
