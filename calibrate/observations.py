"""The observation store: every score of a run, appended in transactions, never changed.

One SQLite file, one writer. A batch is stored whole or not at all, so a run that was killed goes on
after the last whole batch. Triggers refuse updates and deletes. A NaN is stored as NULL, which is
what SQLite makes of it, and read back as NaN: it is never lost and never becomes a number.
"""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from harness.codec import canonical_bytes, parse
from harness.errors import StoreError
from harness.records.build import Build
from harness.records.document import Record
from harness.verifiers import ResolvedCondition

__all__ = ["ObservationStore", "ProcessFacts", "StoredRow"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    row INTEGER PRIMARY KEY, decision_id TEXT NOT NULL, branch_id TEXT NOT NULL,
    num_tokens INTEGER NOT NULL, num_dropped INTEGER NOT NULL, content_digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS processes (process_id TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS observations (
    process_id TEXT NOT NULL, composition TEXT NOT NULL, batch INTEGER NOT NULL,
    slot INTEGER NOT NULL, row INTEGER NOT NULL, score REAL,
    PRIMARY KEY (process_id, composition, batch, slot)) WITHOUT ROWID;
"""
APPEND_ONLY = """
CREATE TRIGGER IF NOT EXISTS {table}_{event} BEFORE {event} ON {table}
BEGIN SELECT RAISE(ABORT, 'observations are append-only'); END;
"""


class StoredRow(Record, frozen=True, kw_only=True):
    """A row as the run saw it."""

    decision_id: str
    """Its decision."""
    branch_id: str
    """Its branch."""
    num_tokens: int
    """Its length."""
    num_dropped: int
    """Tokens lost to the length limit."""
    content_digest: str
    """Digest of its tokens."""


class ProcessFacts(Record, frozen=True, kw_only=True):
    """What a process found when it had loaded the model."""

    build: Build
    """The build."""
    condition: ResolvedCondition
    """The condition, read back."""


class ObservationStore:
    """The store of one run; a context manager that holds the only write lock."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is opened on entry."""
        self._path = path

    def __enter__(self) -> Self:
        """Open the store; raise StoreError when another run has it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=0.2, isolation_level=None)
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                self._create()
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store; what was appended is there."""
        self._db.close()

    def settle(self, key: str, value: str) -> str:
        """Return the run's value of `key`: the stored one, or `value`, which is stored."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(found[0])

    def require(self, key: str, value: str, what: str) -> None:
        """Raise StoreError when the store was begun with another value of `key`."""
        if self.settle(key, value) != value:
            advice = "resume with what it was begun with, or give another --run folder"
            raise StoreError(f"{self._path}: this run was begun with {what}; {advice}")

    def settle_rows(self, rows: Sequence[StoredRow]) -> None:
        """Store the rows, or raise StoreError when they are not those of the run."""
        encoded = [(at, *msgspec.structs.astuple(row)) for at, row in enumerate(rows)]
        with self._transaction():
            self._db.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?)", encoded)
        stored = self._db.execute("SELECT * FROM rows WHERE row < ? ORDER BY row", (len(rows),))
        if stored.fetchall() != encoded:
            raise StoreError(f"{self._path}: the rows are not tokenized as when the run was begun")

    def settle_process(self, process_id: str, facts: ProcessFacts) -> None:
        """Store what a process found, or raise StoreError when it found something else before."""
        text = canonical_bytes(facts).decode()
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO processes VALUES (?, ?)", (process_id, text))
        if self.facts()[process_id] != facts:
            advice = "the build or a switch has changed since: begin again in another --run folder"
            raise StoreError(f"{self._path}: {process_id} is another build than before; {advice}")

    def append(
        self,
        process_id: str,
        composition: str,
        batch: int,
        rows: Sequence[int],
        scores: Sequence[float],
    ) -> None:
        """Append the scores of one batch, in one transaction."""
        values = [
            (process_id, composition, batch, slot, row, None if math.isnan(score) else score)
            for slot, (row, score) in enumerate(zip(rows, scores, strict=True))
        ]
        with self._transaction():
            self._db.executemany("INSERT INTO observations VALUES (?, ?, ?, ?, ?, ?)", values)

    def num_batches(self, process_id: str) -> dict[str, int]:
        """Return composition -> batches stored, for one process."""
        query = (
            "SELECT composition, MAX(batch) + 1 FROM observations WHERE process_id = ? GROUP BY 1"
        )
        return {str(name): int(count) for name, count in self._db.execute(query, (process_id,))}

    def num_observations(self) -> int:
        """Return how many scores are stored."""
        return int(self._db.execute("SELECT COUNT(*) FROM observations").fetchone()[0])

    def rows(self) -> tuple[StoredRow, ...]:
        """Return the rows of the run."""
        query = "SELECT decision_id, branch_id, num_tokens, num_dropped, content_digest FROM rows"
        fields = StoredRow.__struct_fields__
        found = self._db.execute(f"{query} ORDER BY row")
        return tuple(StoredRow(**dict(zip(fields, values, strict=True))) for values in found)

    def facts(self) -> Mapping[str, ProcessFacts]:
        """Return process id -> what it found."""
        return {
            str(process_id): msgspec.convert(parse(text.encode(), str(self._path)), ProcessFacts)
            for process_id, text in self._db.execute("SELECT process_id, facts FROM processes")
        }

    def scores(self, process_id: str) -> dict[str, dict[int, float]]:
        """Return composition -> row -> score, of one process; NULL comes back as NaN."""
        query = "SELECT composition, row, score FROM observations WHERE process_id = ?"
        table: dict[str, dict[int, float]] = {}
        for composition, row, score in self._db.execute(query, (process_id,)):
            table.setdefault(composition, {})[row] = math.nan if score is None else score
        return table

    def _create(self) -> None:
        for statement in SCHEMA.split(";"):
            self._db.execute(statement)
        for table in ("rows", "processes", "observations", "meta"):
            for event in ("UPDATE", "DELETE"):
                self._db.execute(APPEND_ONLY.format(table=table, event=event))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> StoreError:
        text = str(error)
        if "locked" in text:
            return StoreError(
                f"{self._path}: another run is using it; wait, or give another --run folder"
            )
        if "full" in text or "No space" in text:
            return StoreError(
                f"{self._path}: the disk is full; free some space and run again to resume"
            )
        if "not a database" in text or "malformed" in text:
            return StoreError(
                f"{self._path}: not a usable store ({text}); move it away and run again"
            )
        return StoreError(f"{self._path}: {text}")
