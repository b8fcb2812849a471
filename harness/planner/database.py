"""Decides how a planner store opens, migrates and changes its database: SQLite or PostgreSQL.

The contract for every store module (commit store, branch ledger, effect store):

* declare tables on `METADATA`, and one `Schema` that names the steps which create and change them;
* ``engine = open_database(url, SCHEMA)`` opens the database and brings its tables up to date;
  ``migrate(engine, SCHEMA)`` does the latter alone, for an engine that another store opened;
* every change is ``in_transaction(engine, work)``: `work(connection)` runs in one serialisable
  transaction and is run again, from its beginning, when the database says that it lost a race. So
  `work` must be repeatable: what it does outside the database must bear being done twice;
* ``with transaction(engine) as connection:`` is one such transaction without the second chance: on
  SQLite it only waits at its beginning, on PostgreSQL any statement, or the end, may lose;
* ``with reading(engine) as connection:`` is one consistent snapshot that writes nothing.

Rules kept here:

* a URL is ``sqlite:///path`` or ``postgresql+psycopg://...``; anything else is refused;
* SQLite: write-ahead log, ``synchronous=FULL`` (a commit that returned survives a power cut),
  foreign keys on, a write transaction begins IMMEDIATE, so it never fails half-way for a lock;
* PostgreSQL: SERIALIZABLE; serialisation failures and deadlocks are retried, a bounded number of
  times: the first try is free, who lost it queues behind the others who lost;
* a schema has a whole-number version and moves one step at a time, in one transaction; a database
  that is newer than this release is refused, with advice.

Needs SQLAlchemy: ``pip install "scorepin[planner]"``. It does not know any table but the one that
holds the versions.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from harness.errors import ConfigError, SchemaVersionError, StoreError
from harness.records.document import Record

__all__ = [
    "METADATA",
    "Schema",
    "in_transaction",
    "migrate",
    "open_database",
    "reading",
    "transaction",
]

T = TypeVar("T")

METADATA = MetaData()
"""Every planner table stands here, its name beginning with ``planner_``."""

Step = Callable[[Connection], None]

VERSIONS = Table(
    "planner_schema",
    METADATA,
    Column("name", String, primary_key=True),
    Column("version", Integer, nullable=False),
)

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
"""Backend -> the one driver that is used for it."""
BUSY_S = 30.0
"""How long SQLite waits for another writer; longer than any queue of 64 short commits."""
NUM_ATTEMPTS = 64
"""Tries of one transaction. Each round at least one rival commits, so 64 writers need 64 rounds."""
LONGEST_PAUSE_S = 0.25
"""Pauses grow up to this; more would only idle once most rivals have gone."""
RETRIED_STATES = {
    "40001": "serialisation failure",
    "40P01": "deadlock",
    "23505": "two transactions inserted the same key, and this one came second",
}
"""SQLSTATE -> meaning. Nothing of such a transaction was kept. PostgreSQL may report a lost race as
a duplicate key, so that is tried again as well: a real duplicate is found by reading first."""
READING: dict[str, dict[str, Any]] = {
    "sqlite": {"planner_reading": True},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}
"""Options of a reading connection. A serialisable reader could be made to start again."""
QUEUE = text(f"LOCK TABLE {VERSIONS.name} IN SHARE UPDATE EXCLUSIVE MODE")
"""Who lost once waits here for its turn, before its snapshot is taken (LOCK takes none). Without a
queue, many writers of the same rows abort each other most of the time. Readers pass."""
MIGRATION_LOCK = 0x5C02E914
"""Advisory lock of PostgreSQL: any fixed number of our own."""


class Schema(Record, frozen=True, kw_only=True):
    """The tables of one store, and how they came to be."""

    name: str
    """Of the store: ``gate``, ``ledger``, ``effects``."""
    steps: tuple[Step, ...]
    """Step i turns version i into i + 1. A released step is never changed: it must not use tables
    of `METADATA` that a later step has altered."""

    @property
    def version(self) -> int:
        """The version that this release reads and writes."""
        return len(self.steps)


def open_database(url: str, *schemas: Schema) -> Engine:
    """Return an engine for `url`, its tables brought up to date for `schemas`.

    Raises ConfigError for a URL that is not SQLite or PostgreSQL, StoreError when the database
    cannot be reached, SchemaVersionError when it is newer than this release.
    """
    engine = _engine(url)
    try:
        migrate(engine, *schemas)
    except BaseException:
        engine.dispose()
        raise
    return engine


def migrate(engine: Engine, *schemas: Schema) -> None:
    """Bring the tables of each schema up to date; change nothing when they are.

    Raises SchemaVersionError when the database is newer than this release.
    """
    with reading(engine) as connection:
        known = engine.dialect.has_table(connection, VERSIONS.name)
        behind = [s for s in schemas if not known or _version(connection, s, engine) < s.version]
    if behind:
        _migrate(engine, behind)


def in_transaction(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run `work` in one serialisable transaction, again if it loses a race, and return its result.

    Raises StoreError when it lost every time, and when the database fails: whether a transaction
    whose connection broke was kept is then unknown, so repeat only what is idempotent.
    """
    queues = engine.dialect.name == "postgresql"
    for attempt in range(NUM_ATTEMPTS):
        try:
            with _begun(engine) as connection:
                if attempt and queues:
                    connection.execute(QUEUE)
                return work(connection)
        except _errors(engine) as error:
            if not _lost_a_race(error):
                raise _failure(engine, error) from error
            lost = error
            if not queues:
                time.sleep(random.random() * min(LONGEST_PAUSE_S, 0.002 * 2**attempt))  # noqa: S311
    advice = "fewer writers, or try again"
    message = (
        f"{_name(engine)}: lost to other writers {NUM_ATTEMPTS} times ({_told(lost)}); {advice}"
    )
    raise StoreError(message) from lost


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Give one serialisable transaction: kept when the block ends, undone when it raises.

    Raises StoreError when it loses a race: prefer `in_transaction`, which tries again.
    """
    try:
        with _begun(engine) as connection:
            yield connection
    except _errors(engine) as error:
        raise _failure(engine, error) from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Give one consistent snapshot of the database, for reading only; it waits for nobody."""
    options = READING[engine.dialect.name]
    try:
        with engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection
    except _errors(engine) as error:
        raise _failure(engine, error) from error


@contextmanager
def _begun(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection, connection.begin():
        yield connection


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend not in DRIVERS:
            raise ConfigError(f"{parsed.render_as_string()!r}: {_URL_ADVICE}")
        return _configured(backend, parsed.set(drivername=DRIVERS[backend]))
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"not a database URL; {_URL_ADVICE}") from error
    except ModuleNotFoundError as error:
        advice = 'pip install "scorepin[postgres]"'
        raise ConfigError(f"the driver {error.name!r} is not installed; {advice}") from error


_URL_ADVICE = "give sqlite:///file.db or postgresql+psycopg://user:password@host:port/name"


def _configured(backend: str, url: Any) -> Engine:
    if backend == "postgresql":
        engine = create_engine(url, isolation_level="SERIALIZABLE")
        event.listen(engine, "connect", _prepare_postgresql)
        return engine
    if url.database in (None, "", ":memory:"):
        raise ConfigError("a planner store must outlive its process; give sqlite:///file.db")
    engine = create_engine(url, connect_args={"timeout": BUSY_S})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # else the driver begins, deferred, when it thinks fit
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "journal_mode=WAL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _prepare_postgresql(connection: Any, _record: object) -> None:
    # A scan of a whole table conflicts with every writer of that table; an index scan with few.
    # Where only a scan will do, it now looks so dear that it would be compiled first: 80 ms.
    connection.execute("SET enable_seqscan = off")
    connection.execute("SET jit = off")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get("planner_reading", False)
    if connection.info.get("query_only", False) is not reads_only:
        connection.exec_driver_sql(f"PRAGMA query_only={int(reads_only)}")
        connection.info["query_only"] = reads_only
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def _errors(engine: Engine) -> tuple[type[Exception], ...]:
    """Return what a database's errors are: SQLAlchemy's, and the driver's own."""
    return (DBAPIError, engine.dialect.loaded_dbapi.Error)


def _lost_a_race(error: Exception) -> bool:
    cause = getattr(error, "orig", error)
    busy = str(getattr(cause, "sqlite_errorname", "")).startswith("SQLITE_BUSY")
    return busy or getattr(cause, "sqlstate", None) in RETRIED_STATES


def _failure(engine: Engine, error: Exception) -> StoreError:
    advice = "try again" if _lost_a_race(error) else "check that it is there and can be written"
    return StoreError(f"{_name(engine)}: {_told(error)}; {advice}")


def _told(error: Exception) -> str:
    """Return the driver's words."""
    return str(getattr(error, "orig", error)).strip()


def _name(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _migrate(engine: Engine, schemas: list[Schema]) -> None:
    """Take every missing step in one transaction, which other processes wait for."""
    isolation = {} if engine.dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    try:
        with engine.connect().execution_options(**isolation) as connection, connection.begin():
            if engine.dialect.name == "postgresql":  # each statement sees what others have kept
                connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            VERSIONS.create(connection, checkfirst=True)
            for schema in schemas:
                _step_up(connection, schema, engine)
    except _errors(engine) as error:
        raise _failure(engine, error) from error


def _step_up(connection: Connection, schema: Schema, engine: Engine) -> None:
    version = _version(connection, schema, engine)
    for step in schema.steps[version:]:
        step(connection)
    if version == 0:
        connection.execute(insert(VERSIONS).values(name=schema.name, version=schema.version))
    else:
        change = update(VERSIONS).where(VERSIONS.c.name == schema.name)
        connection.execute(change.values(version=schema.version))


def _version(connection: Connection, schema: Schema, engine: Engine) -> int:
    found = connection.scalar(select(VERSIONS.c.version).where(VERSIONS.c.name == schema.name))
    if found is not None and found > schema.version:
        advice = f"newer than {schema.version}, the newest that this release reads"
        message = f"{_name(engine)}: schema {schema.name!r} is at {found}, {advice}"
        raise SchemaVersionError(f"{message}; upgrade scorepin")
    return found or 0
