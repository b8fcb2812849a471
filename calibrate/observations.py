"""The observation store: every score of a run, appended in transactions, never changed.

One SQLite file, one writer. A batch is stored whole or not at all, so a run that was killed goes on
after the last whole batch. Triggers refuse updates and deletes. A store belongs to the run whose
first process got as far as loading its model: what failed before that left no trace, and the
config may be mended. From then on another config, other decisions, another release or another
build is refused.

Scores are stored as text, the shortest that reads back to the same float: SQLite's own numbers know
neither NaN nor the sign of zero, and both are evidence.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from harness.codec import canonical_bytes, parse
from harness.conditions.flight import EngineStep
from harness.errors import StoreError
from harness.messages import Scored
from harness.records.build import Build, differing_facts
from harness.records.document import Record
from harness.records.tolerance import AxisSearch
from harness.verifiers import ResolvedCondition

__all__ = ["ObservationStore", "ProcessFacts", "RunIdentity", "StoredRow", "stored_identity"]

APPLICATION_ID = 0x53504F42  # "SPOB": tells the store from any other SQLite database
SCHEMA = """
CREATE TABLE IF NOT EXISTS run (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    row INTEGER PRIMARY KEY, decision_id TEXT NOT NULL, branch_id TEXT NOT NULL,
    num_tokens INTEGER NOT NULL, num_dropped INTEGER NOT NULL, content_digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS processes (process_id TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS searches (process_id TEXT PRIMARY KEY, found TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    process_id TEXT NOT NULL, composition TEXT NOT NULL, batch INTEGER NOT NULL,
    steps TEXT NOT NULL, PRIMARY KEY (process_id, composition, batch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS observations (
    process_id TEXT NOT NULL, composition TEXT NOT NULL, batch INTEGER NOT NULL,
    slot INTEGER NOT NULL, row INTEGER NOT NULL, score TEXT NOT NULL,
    PRIMARY KEY (process_id, composition, batch, slot)) WITHOUT ROWID;
"""
APPEND_ONLY = """
CREATE TRIGGER IF NOT EXISTS {table}_{event} BEFORE {event} ON {table}
BEGIN SELECT RAISE(ABORT, 'observations are append-only'); END;
"""
ADVICE = {
    sqlite3.SQLITE_BUSY: "another run is using it; wait, or give another --run folder",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and run again to resume",
    sqlite3.SQLITE_NOTADB: "not an observation store; move it away or give another --run folder",
    sqlite3.SQLITE_CORRUPT: "damaged; move it away and run again",
    sqlite3.SQLITE_IOERR: "the disk refused; check the permissions of the file and its folder",
    sqlite3.SQLITE_READONLY: "cannot be written; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the permissions of the file and its folder",
}
"""SQLite's primary error code -> what it means here, and what to do."""


class RunIdentity(Record, frozen=True, kw_only=True):
    """What makes a run the same run when it is started again."""

    scorepin_version: str
    """The release: another may plan other batches."""
    config_digest: str
    """Digest of the config."""
    decisions_digest: str
    """Digest of the decisions."""
    created_at: str
    """When the run was first started, UTC, ISO 8601; a later start takes it over."""


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

    def __init__(self, path: Path, identity: RunIdentity) -> None:
        """Name the file, which is opened on entry, and the run that is to use it."""
        self._path, self._identity = path, identity

    def __enter__(self) -> Self:
        """Open the store; raise StoreError when another run has it, or it is another run's."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=0.2, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store; what was appended is there."""
        self._db.close()

    @property
    def identity(self) -> RunIdentity:
        """The run, begun when it was first started."""
        return self._identity

    def settle_process(
        self, process_id: str, facts: ProcessFacts, rows: Sequence[StoredRow]
    ) -> None:
        """Store what a process found and its rows; with the first, the store becomes the run's.

        Raises StoreError, and stores nothing, when the process found other rows, another build or
        another condition than the run before.
        """
        encoded = [(at, *msgspec.structs.astuple(row)) for at, row in enumerate(rows)]
        text = canonical_bytes(facts).decode()
        with self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO run VALUES (?, ?)",
                msgspec.structs.asdict(self._identity).items(),
            )
            db.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?)", encoded)
            db.execute("INSERT OR IGNORE INTO processes VALUES (?, ?)", (process_id, text))
            self._require_same_facts(process_id, facts)
            if self.rows()[: len(rows)] != tuple(rows):
                raise self._other_run(f"{process_id}: the rows are tokenized in another way")

    def append_search(self, process_id: str, found: Sequence[AxisSearch]) -> None:
        """Append what the search of one process found, whole."""
        text = canonical_bytes(found).decode()
        with self._transaction() as db:
            db.execute("INSERT INTO searches VALUES (?, ?)", (process_id, text))

    def append(
        self,
        process_id: str,
        composition: str,
        batch: int,
        rows: Sequence[int],
        scored: Scored,
    ) -> None:
        """Append the scores of one batch, and the steps that an engine made of it, at once."""
        values = [
            (process_id, composition, batch, slot, row, repr(score))
            for slot, (row, score) in enumerate(zip(rows, scored.scores, strict=True))
        ]
        with self._transaction() as db:
            db.executemany("INSERT INTO observations VALUES (?, ?, ?, ?, ?, ?)", values)
            if scored.steps:
                text = canonical_bytes(scored.steps).decode()
                db.execute(
                    "INSERT INTO steps VALUES (?, ?, ?, ?)", (process_id, composition, batch, text)
                )

    def num_batches(self, process_id: str) -> dict[str, int]:
        """Return composition -> batches stored, for one process."""
        query = (
            "SELECT composition, MAX(batch) + 1 FROM observations WHERE process_id = ? GROUP BY 1"
        )
        return {str(name): int(count) for name, count in self._read(query, process_id)}

    def num_observations(self) -> int:
        """Return how many scores are stored."""
        return self._number("SELECT COUNT(*) FROM observations")

    def rows(self) -> tuple[StoredRow, ...]:
        """Return the rows of the run."""
        query = "SELECT decision_id, branch_id, num_tokens, num_dropped, content_digest FROM rows"
        fields = StoredRow.__struct_fields__
        found = self._read(f"{query} ORDER BY row")
        return tuple(StoredRow(**dict(zip(fields, values, strict=True))) for values in found)

    def facts(self) -> Mapping[str, ProcessFacts]:
        """Return process id -> what it found."""
        return {
            str(process_id): msgspec.convert(parse(text.encode(), str(self._path)), ProcessFacts)
            for process_id, text in self._read("SELECT process_id, facts FROM processes")
        }

    def searches(self) -> dict[str, tuple[AxisSearch, ...]]:
        """Return process id -> what its search found; none of a search that was cut short."""
        kind, where = tuple[AxisSearch, ...], str(self._path)
        return {
            str(process_id): msgspec.convert(parse(text.encode(), where), kind)
            for process_id, text in self._read("SELECT process_id, found FROM searches")
        }

    def scores(self, process_id: str) -> dict[str, dict[int, float]]:
        """Return composition -> row -> score, of one process."""
        query = "SELECT composition, row, score FROM observations WHERE process_id = ?"
        table: dict[str, dict[int, float]] = {}
        for composition, row, score in self._read(query, process_id):
            table.setdefault(composition, {})[row] = float(score)
        return table

    def steps(self, process_id: str) -> dict[str, dict[int, tuple[EngineStep, ...]]]:
        """Return composition -> batch -> the steps that ran, of one process; of an engine's."""
        query = "SELECT composition, batch, steps FROM steps WHERE process_id = ?"
        kind, table = tuple[EngineStep, ...], dict[str, dict[int, tuple[EngineStep, ...]]]()
        for composition, batch, text in self._read(query, process_id):
            steps = msgspec.convert(parse(text.encode(), str(self._path)), kind)
            table.setdefault(composition, {})[batch] = steps
        return table

    def _prepare(self) -> None:
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._refuse_foreign()  # before anything is changed in it
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # with WAL: safe from a killed process
            with self._transaction() as db:
                self._create(db)
        except sqlite3.Error as error:
            raise self._error(error) from error
        self._identity = self._resumed()

    def _refuse_foreign(self) -> None:
        found = self._number("PRAGMA application_id")
        if found != APPLICATION_ID and self._number("SELECT COUNT(*) FROM sqlite_master"):
            raise StoreError(f"{self._path}: {ADVICE[sqlite3.SQLITE_NOTADB]}")

    def _create(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        for statement in SCHEMA.split(";"):
            db.execute(statement)
        for table in ("run", "rows", "processes", "searches", "steps", "observations"):
            for event in ("UPDATE", "DELETE"):
                db.execute(APPEND_ONLY.format(table=table, event=event))

    def _resumed(self) -> RunIdentity:
        """Return the identity with which the run was begun; raise StoreError if it is another."""
        stored = dict(self._read("SELECT key, value FROM run"))
        if not stored:
            return self._identity
        begun = msgspec.convert(stored, RunIdentity)
        for field, what in (
            ("scorepin_version", f"scorepin {begun.scorepin_version}"),
            ("decisions_digest", "other decisions"),
            ("config_digest", "another config"),
        ):
            if getattr(begun, field) != getattr(self._identity, field):
                raise self._other_run(f"this run was begun with {what}")
        return begun

    def _require_same_facts(self, process_id: str, facts: ProcessFacts) -> None:
        stored = self.facts()
        for other, earlier in stored.items():
            if differing := differing_facts(earlier.build, facts.build):
                names = ", ".join(differing)
                raise self._other_run(f"{process_id}: another build than {other}: {names}")
        if stored[process_id] != facts:
            raise self._other_run(f"{process_id}: the condition resolves in another way")

    def _other_run(self, problem: str) -> StoreError:
        advice = "resume with what it was begun with, or give another --run folder"
        return StoreError(f"{self._path}: {problem}; {advice}")

    def _number(self, query: str) -> int:
        return int(self._read(query)[0][0])

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except GeneratorExit:  # an interrupt came before the with statement held us:
                raise  # closing the store undoes what was begun, and may have done so already
            except BaseException:
                if self._db.in_transaction:  # SQLite ends it by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error | OSError) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
        return StoreError(f"{self._path}: {ADVICE.get(code, str(error))}")


def stored_identity(path: Path) -> RunIdentity:
    """Return whose the store at `path` is; raise StoreError when there is none, or it is nobody's.

    Nothing is written, and no store is made where there is none.
    """
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(db):
            stored = dict(db.execute("SELECT key, value FROM run"))
        return msgspec.convert(stored, RunIdentity)
    except (sqlite3.Error, msgspec.ValidationError) as error:
        advice = "calibrate first: no run has stored anything there"
        raise StoreError(f"{path}: {error}; {advice}") from error
