"""Decides what a commit log holds: commits, the items they were computed from, and replays.

A log is a JSON-lines file; its items stand beside it in ``<stem>.items.jsonl``, each once.

Rules kept here:

* items are stored before the commits that need them, so a crash leaves spare items, never a commit
  that cannot be replayed;
* a commit id stands for one content: appending the same commit again changes nothing, another
  content under the same id is refused before anything is written;
* a record is read back before it is written, so what cannot be read is never stored;
* a line that cannot be used becomes a reject with its place, and the other lines are read.

Several processes may append to one log: each waits for the other's lock. It does not know what a
verdict is, or how an item becomes tokens.
"""

import fcntl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from harness.codec import canonical_bytes, decode, encode, parse
from harness.errors import CorruptFileError, EvidenceError, InvalidRecordError, StoreError
from harness.files import Line, append_lines, read_lines, write_atomic
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Item
from harness.records.document import Document, Record

__all__ = [
    "CommitLog",
    "Readable",
    "Reject",
    "append_replays",
    "items_path",
    "read_commits",
    "read_items",
    "read_replays",
    "write_rejects",
]

D = TypeVar("D", bound=Document)


class Reject(Record, frozen=True, kw_only=True):
    """A line that could not be used."""

    where: str
    """``file:line``."""
    error: str
    """Why; begins with `where`."""
    text: str
    """The line as it stands in the file."""


class Readable(Record, Generic[D], frozen=True, kw_only=True):
    """What a file of records gave."""

    records: tuple[D, ...]
    """In file order."""
    rejects: tuple[Reject, ...]
    """The lines that gave none."""


class CommitLog:
    """A commit log that can be appended to."""

    def __init__(self, path: Path | str) -> None:
        """Name the log; nothing is opened before the first append."""
        self.path = Path(path)
        self.items_path = items_path(self.path)
        self._commits = _Stored(self.path, _stored_commits)
        self._items = _Stored(self.items_path, _stored_items)

    def append(self, commits: Iterable[CommitRecord], items: Iterable[Item] = ()) -> int:
        """Store the items and commits that are not stored yet; return how many commits were new.

        Raises InvalidRecordError for a record that could not be read back and for a commit id that
        stands for another content, StoreError when the disk refuses; nothing is half-written then.
        """
        commit_lines = _commit_lines(commits)
        item_lines = {item.content_digest: _item_line(item) for item in items}
        with _locked(self.path):
            known = self._commits.lines()
            for commit_id, line in commit_lines.items():
                _refuse_conflict(commit_id, line, known, str(self.path))
            self._items.append(item_lines)
            return self._commits.append(commit_lines)


def items_path(path: Path) -> Path:
    """Return where the items of the log at `path` stand."""
    return path.with_name(f"{path.stem}.items.jsonl")


def read_commits(path: Path) -> Readable[CommitRecord]:
    """Return the commits of a log, each once.

    A line that repeats an earlier commit is passed over; one that gives a known id another content
    is a reject. Raises InputFileError when the file cannot be read.
    """
    known: dict[str, bytes] = {}
    return _readable(path, lambda line: _unless_known(line, known))


def read_replays(path: Path) -> Readable[ReplayRecord]:
    """Return the replays of a file; a commit may be replayed more than once.

    Raises InputFileError when the file cannot be read.
    """
    return _readable(path, lambda line: _decoded(ReplayRecord, line))


def append_replays(path: Path, replays: Iterable[ReplayRecord]) -> None:
    """Append replays to a file, each read back before any is written.

    Raises InvalidRecordError for one that could not be read back, StoreError when the disk refuses.
    """
    append_lines(path, [_line(replay, ReplayRecord) for replay in replays])


def read_items(path: Path) -> dict[str, Item]:
    """Return content digest -> item, for the log at `path`; of several the first.

    A broken line is passed over: whoever needs its item finds it missing by its digest. Raises
    InputFileError when the item store cannot be read.
    """
    items: dict[str, Item] = {}
    for line in read_lines(items_path(path)):
        with suppress(EvidenceError):
            item = _item(line)
            items.setdefault(item.content_digest, item)
    return items


def write_rejects(path: Path, rejects: Iterable[Reject], *, overwrite: bool = False) -> None:
    """Write the rejects as JSON lines; without any, write nothing.

    Raises InputFileError when `path` exists and `overwrite` is false, StoreError when the disk
    refuses.
    """
    data = b"".join(canonical_bytes(reject) + b"\n" for reject in rejects)
    if data:
        write_atomic(path, data, overwrite=overwrite)


class _Stored:
    """Id -> hash of the line that a file holds; read again when another process has appended."""

    def __init__(self, path: Path, read: Callable[[Path], dict[str, bytes]]) -> None:
        self._path, self._read = path, read
        self._lines: dict[str, bytes] = {}
        self._num_bytes = 0

    def lines(self) -> dict[str, bytes]:
        """Return what the file holds now."""
        num_bytes = self._path.stat().st_size if self._path.exists() else 0
        if num_bytes != self._num_bytes:
            self._lines, self._num_bytes = self._read(self._path), num_bytes
        return self._lines

    def append(self, lines: Mapping[str, bytes]) -> int:
        """Append the lines whose id the file does not hold; return how many."""
        known = self.lines()
        new = {key: line for key, line in lines.items() if key not in known}
        append_lines(self._path, new.values())
        if new:
            known.update((key, _hash(line)) for key, line in new.items())
            self._num_bytes = self._path.stat().st_size
        return len(new)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the log's lock, which ends with the process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("ab")
        fcntl.flock(stream, fcntl.LOCK_EX)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(f"{path}: cannot be opened for writing ({reason})") from error
    with stream:
        yield


def _commit_lines(commits: Iterable[CommitRecord]) -> dict[str, bytes]:
    lines: dict[str, bytes] = {}
    known: dict[str, bytes] = {}
    for commit in commits:
        line = _line(commit, CommitRecord)
        _refuse_conflict(commit.commit_id, line, known, "append")
        lines[commit.commit_id], known[commit.commit_id] = line, _hash(line)
    return lines


def _refuse_conflict(commit_id: str, line: bytes, known: Mapping[str, bytes], where: str) -> None:
    """Raise InvalidRecordError if the known hash under `commit_id` is another line's."""
    if commit_id in known and known[commit_id] != _hash(line):
        raise InvalidRecordError(
            f"{where}: commit_id {commit_id!r} already stands for other content; "
            "give each commit its own id"
        )


def _line(record: D, kind: type[D]) -> bytes:
    """Return the record's line, after reading it back."""
    data = encode(record)
    decode(kind, parse(data, "record"), "record")
    return data


def _item_line(item: Item) -> bytes:
    data = canonical_bytes(item)
    _item(Line(where="item", value=parse(data, "item")))
    return data


def _stored_commits(path: Path) -> dict[str, bytes]:
    return {commit.commit_id: _hash(encode(commit)) for commit in read_commits(path).records}


def _stored_items(path: Path) -> dict[str, bytes]:
    stored: dict[str, bytes] = {}
    for line in read_lines(path):
        with suppress(EvidenceError):
            stored[_item(line).content_digest] = b""
    return stored


def _readable(path: Path, take: Callable[[Line], D | None]) -> Readable[D]:
    records: list[D] = []
    rejects: list[Reject] = []
    for line in read_lines(path):
        try:
            record = take(line)
        except EvidenceError as error:
            rejects.append(Reject(where=line.where, error=str(error), text=line.text))
        else:
            records += [] if record is None else [record]
    return Readable(records=tuple(records), rejects=tuple(rejects))


def _unless_known(line: Line, known: dict[str, bytes]) -> CommitRecord | None:
    commit = _decoded(CommitRecord, line)
    data = encode(commit)
    _refuse_conflict(commit.commit_id, data, known, line.where)
    if commit.commit_id in known:
        return None
    known[commit.commit_id] = _hash(data)
    return commit


def _decoded(kind: type[D], line: Line) -> D:
    _refuse_broken(line)
    return decode(kind, line.value, line.where)


def _item(line: Line) -> Item:
    _refuse_broken(line)
    try:
        return msgspec.convert(line.value, Item)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{line.where}: {error}") from error


def _refuse_broken(line: Line) -> None:
    if line.error:
        raise CorruptFileError(line.error)


def _hash(line: bytes) -> bytes:
    return sha256(line).digest()
