"""Decides how a statement that runs in every commit is run: written in Core, compiled once.

SQLAlchemy's execution costs about 30 microseconds a statement, fifteen times a commit; the driver
alone costs one or two. So the text and the order of its parameters are worked out once a dialect,
and then given to the driver's own cursor, inside SQLAlchemy's transaction. Parameters and columns
must be text, whole numbers or bytes, which both drivers carry without conversion.

Errors are the driver's; `in_transaction` and the others of `harness.planner.database` know them.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.sql import ClauseElement

__all__ = ["Statement"]


class _Compiled(NamedTuple):
    """What one dialect makes of a statement."""

    text: str
    constants: Mapping[str, Any]
    """Parameters that stand in the statement itself."""
    order: Sequence[str] | None
    """Names by position, where the driver counts; None where it names."""


class Statement:
    """One Core statement, ready to run."""

    def __init__(self, statement: ClauseElement) -> None:
        """Keep a statement whose parameters are `bindparam`, or the columns of an insert."""
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}
        self._row: Callable[..., Any] | None = None

    def rows(self, connection: Connection, **given: Any) -> list[Any]:
        """Return the rows, each a named tuple."""
        cursor = self._execute(connection, given)
        try:
            found = cursor.fetchall()
            if self._row is None:
                names = [column[0] for column in cursor.description]
                kind: Any = namedtuple("Row", names)  # type: ignore[misc]  # noqa: PYI024
                self._row = kind._make  # named by what the database gives
        finally:
            cursor.close()
        return [self._row(row) for row in found]

    def change(self, connection: Connection, **given: Any) -> int:
        """Run a statement that gives no rows; return how many it changed."""
        cursor = self._execute(connection, given)
        changed = int(cursor.rowcount)
        cursor.close()
        return changed

    def _execute(self, connection: Connection, given: Mapping[str, Any]) -> Any:
        name = connection.dialect.name
        compiled = self._compiled.get(name) or self._compile(connection, given)
        named = {**compiled.constants, **given}
        cursor = connection.connection.cursor()
        execute(
            cursor,
            compiled.text,
            named if compiled.order is None else [named[key] for key in compiled.order],
        )
        return cursor

    def _compile(self, connection: Connection, given: Mapping[str, Any]) -> _Compiled:
        """Compile for the connection's dialect; `given` names the columns of an insert."""
        done = self._statement.compile(dialect=connection.dialect, column_keys=list(given))
        constants = {key: value for key, value in done.params.items() if key not in given}
        order = done.positiontup if done.positional else None  # type: ignore[attr-defined]
        compiled = _Compiled(text=str(done), constants=constants, order=order)
        self._compiled[connection.dialect.name] = compiled
        return compiled


def execute(cursor: Any, text: str, parameters: Any) -> None:
    """Give one statement to the driver."""
    cursor.execute(text, parameters)
