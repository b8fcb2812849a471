"""Keeps a ledger's events in SQLite or PostgreSQL, where several processes share them.

Rules kept here:

* one row an event, appended, never changed; (ledger, number) is the primary key, so two writers
  cannot both add the next event;
* an event is added in the transaction that read all events before it;
* a log with a gap, or with a row that is no event, is refused, with its place.

It does not know what an event means.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    String,
    Table,
    Text,
    insert,
    select,
    text,
)

from harness.codec import canonical_bytes
from harness.errors import CorruptFileError, InvalidRecordError
from harness.planner.database import METADATA, Schema, in_transaction, open_database, reading
from harness.planner.ledger.events import Event, decode_event
from harness.planner.ledger.journal import Log
from harness.planner.ledger.ledger import BranchLedger

__all__ = ["EVENTS", "SCHEMA", "SqlJournal", "open_ledger"]

T = TypeVar("T")

EVENTS = Table(
    "planner_ledger_events",
    METADATA,
    Column("ledger_id", String, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("payload", Text, nullable=False),
)
"""One row an event: canonical JSON, numbered from 1 in each ledger."""

LOCK = text(f"LOCK TABLE {EVENTS.name} IN SHARE ROW EXCLUSIVE MODE")
"""PostgreSQL, before anything else: writers queue up and lose no race, since this statement alone
takes no snapshot. SQLite queues them itself."""


def _create(connection: Connection) -> None:
    EVENTS.create(connection)


SCHEMA = Schema(name="ledger", steps=(_create,))


def open_ledger(url: str, ledger_id: str = "main") -> BranchLedger:
    """Open the ledger `ledger_id` of a database, and finish what a crash left half done.

    Raises what `open_database` raises, and CorruptFileError for a log that was tampered with.
    """
    engine = open_database(url, SCHEMA)
    try:
        return BranchLedger(SqlJournal(engine, ledger_id))
    except BaseException:
        engine.dispose()
        raise


class SqlJournal:
    """The events of one ledger in one database."""

    def __init__(self, engine: Engine, ledger_id: str) -> None:
        """Use an engine whose database has the tables of `SCHEMA`."""
        self._engine, self._ledger_id = engine, ledger_id

    def read(self, after: int) -> Sequence[Event]:
        """Return the events after event `after`, in order."""
        with reading(self._engine) as connection:
            return _SqlLog(connection, self._ledger_id).after(after)

    def write(self, work: Callable[[Log], T]) -> T:
        """Run `work` in one transaction, again from its beginning when it lost a race."""

        def locked(connection: Connection) -> T:
            if connection.dialect.name == "postgresql":
                connection.execute(LOCK)
            return work(_SqlLog(connection, self._ledger_id))

        return in_transaction(self._engine, locked)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


class _SqlLog:
    """The events of one ledger, inside one transaction."""

    def __init__(self, connection: Connection, ledger_id: str) -> None:
        self._connection, self._ledger_id = connection, ledger_id

    def after(self, number: int) -> Sequence[Event]:
        query = (
            select(EVENTS.c.number, EVENTS.c.payload)
            .where(EVENTS.c.ledger_id == self._ledger_id, EVENTS.c.number > number)
            .order_by(EVENTS.c.number)
        )
        return self._decoded(self._connection.execute(query), number)

    def append(self, number: int, event: Event) -> None:
        payload = canonical_bytes(event).decode()
        values = {"ledger_id": self._ledger_id, "number": number, "payload": payload}
        self._connection.execute(insert(EVENTS).values(**values))

    def _decoded(self, rows: Iterable[Any], after: int) -> list[Event]:
        events: list[Event] = []
        for expected, (number, payload) in enumerate(rows, start=after + 1):
            where = f"event {number} of ledger {self._ledger_id!r}"
            if number != expected:
                message = f"{where} follows event {expected - 1}: {number - expected} are missing"
                raise CorruptFileError(f"{message}; restore the database from a backup")
            try:
                events.append(decode_event(payload.encode()))
            except InvalidRecordError as error:
                raise CorruptFileError(f"{where}: {error}; restore it from a backup") from error
        return events
