"""Decides the version of a database row, and replaces it only when that version is still there.

The token is a counter in the row: every write adds one, and a deleted row stays as a tombstone, so
no version ever comes back. A row that never was has version 0.

A row in the gate's own database is checked and written in the commit's transaction: among users of
the gate, and of this module, nothing comes between. Somebody who changes the content in SQL of
their own must add one to the version as well; without that their change is not seen.

Works on SQLite and PostgreSQL, on any table with the columns `name`, `content` and `version`.
"""

from functools import cache, partial
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    insert,
    literal,
    select,
    update,
)

from harness.errors import ConfigError
from harness.planner.database import METADATA, in_transaction, reading
from harness.planner.resources.resource import Snapshot, conflict
from harness.planner.statement import Statement

__all__ = ["ROWS", "RowResource", "row_table"]

NEVER = "0"
"""Version of a row that never was."""


def row_table(name: str, metadata: MetaData) -> Table:
    """Return a table that `RowResource` can use."""
    return Table(
        name,
        metadata,
        Column("name", String, primary_key=True),
        Column("content", LargeBinary),
        Column("version", BigInteger, nullable=False),
    )


ROWS = row_table("planner_rows", METADATA)
"""The gate's own table of rows, for content that needs no table of its own."""


class RowResource:
    """One row, there or not."""

    def __init__(self, engine: Engine, name: str, table: Table = ROWS) -> None:
        """Name the row; raise ConfigError when `table` lacks a column."""
        if missing := {"name", "content", "version"} - set(table.columns.keys()):
            raise ConfigError(f"table {table.name!r} has no column {min(missing)!r}")
        self._engine, self._name, self._table = engine, name, table

    @property
    def resource_id(self) -> str:
        """``row:``, the table and the name."""
        return f"row:{self._table.fullname}/{self._name}"

    def version(self) -> str:
        """Return the token of what is there now."""
        with reading(self._engine) as connection:
            return self._joined(connection).version()

    def read(self) -> Snapshot:
        """Return content and token of what is there now."""
        with reading(self._engine) as connection:
            return self._joined(connection).read()

    def write(self, content: bytes | None, expected: str) -> str:
        """Replace the version `expected`; return the new token."""
        write = partial(JoinedRow.write, content=content, expected=expected)
        return in_transaction(self._engine, lambda connection: write(self._joined(connection)))

    def within(self, connection: Connection) -> "JoinedRow | None":
        """Return the row as part of that transaction, or None in another database."""
        same = connection.engine.url == self._engine.url
        return self._joined(connection) if same else None

    def _joined(self, connection: Connection) -> "JoinedRow":
        return JoinedRow(connection, self._name, self._table)


class JoinedRow:
    """One row, inside somebody's transaction."""

    def __init__(self, connection: Connection, name: str, table: Table) -> None:
        """Use `connection`, whose transaction others begin and end."""
        self._connection, self._name, self._statements = connection, name, _statements(table)
        self.resource_id = f"row:{table.fullname}/{name}"

    def version(self) -> str:
        """Return the token of what is there now."""
        return str(self.read().token)

    def read(self) -> Snapshot:
        """Return content and token of what is there now."""
        rows = self._statements.read.rows(self._connection, row_name=self._name)
        if not rows:
            return Snapshot(content=None, token=NEVER)
        return Snapshot(content=rows[0].content, token=str(rows[0].version))

    def write(self, content: bytes | None, expected: str) -> str:
        """Replace the version `expected`; return the new token."""
        fields: dict[str, object] = {"row_name": self._name, "new_content": content}
        if expected == NEVER:
            changed = self._statements.create.change(self._connection, **fields)
        else:
            seen = int(expected) if expected.isdecimal() else -1
            changed = self._statements.replace.change(self._connection, seen=seen, **fields)
        if changed != 1:
            raise conflict(self.resource_id, expected, self.version())
        return str(int(expected) + 1)


class _Statements(NamedTuple):
    """The three statements of a table; built once."""

    read: Statement
    create: Statement
    replace: Statement


@cache
def _statements(table: Table) -> _Statements:
    columns = table.c
    named = columns.name == bindparam("row_name")
    values = {"content": bindparam("new_content"), "version": columns.version + 1}
    absent = ~select(columns.name).where(named).exists()
    first = select(
        bindparam("row_name", type_=String), bindparam("new_content", type_=LargeBinary), literal(1)
    ).where(absent)
    replaced = update(table).where(named, columns.version == bindparam("seen")).values(values)
    return _Statements(
        read=Statement(select(columns.content, columns.version).where(named)),
        create=Statement(insert(table).from_select(["name", "content", "version"], first)),
        replace=Statement(replaced),
    )
