"""An effect store in a database, SQLite or PostgreSQL, for several processes.

Every change is one serialisable transaction of `harness.planner.database`; what `effects` returns
was true at one moment. Responses are kept as the bytes that were hashed, so a payload that was
edited in the database shows by its digest.

Needs SQLAlchemy: ``pip install "scorepin[planner]"``.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import (
    Column,
    Connection,
    LargeBinary,
    String,
    Table,
    insert,
    select,
    update,
)

from harness.planner.database import METADATA, Schema, in_transaction, open_database, reading
from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.store import (
    StoredEffect,
    refuse_conflict,
    refuse_retiring,
    stored_effect,
)

__all__ = ["EFFECTS", "SCHEMA", "SqlEffectStore"]

EFFECTS = Table(
    "planner_effects",
    METADATA,
    Column("token", String, primary_key=True),
    Column("request_digest", String, nullable=False),
    Column("payload", LargeBinary),
    Column("expires_at", String),
    Column("superseded_by", String),
)
CONTAMINATED = Table(
    "planner_contaminated_branches",
    METADATA,
    Column("branch_id", String, primary_key=True),
    Column("reason", String, nullable=False),
)

NUM_TOKENS = 500
"""Tokens asked for in one statement; SQLite before 3.32 allowed 999 parameters."""


def _create(connection: Connection) -> None:
    METADATA.create_all(connection, [EFFECTS, CONTAMINATED])


SCHEMA = Schema(name="effects", steps=(_create,))
"""1: tokens with their responses, and contaminated branches."""


class SqlEffectStore:
    """Token -> response, in the database at a URL."""

    def __init__(self, url: str) -> None:
        """Open the database and bring its tables up to date.

        Raises ConfigError, StoreError and SchemaVersionError as `open_database` does.
        """
        self._engine = open_database(url, SCHEMA)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def put(self, step: SideEffectStep) -> None:
        """Keep a step's response under its token."""
        new = stored_effect(step)
        in_transaction(self._engine, lambda connection: _put(connection, new))

    def effects(self, tokens: Iterable[str]) -> Mapping[str, StoredEffect]:
        """Return what is held under each of the tokens that is known."""
        wanted = list(dict.fromkeys(tokens))
        with reading(self._engine) as connection:
            return _held(connection, wanted)

    def retire(self, token: str, *, superseded_by: str | None = None) -> None:
        """Evict a token's response, or note the token that supersedes it."""
        in_transaction(self._engine, lambda connection: _retire(connection, token, superseded_by))

    def contaminate(self, branch_id: str, reason: str) -> None:
        """Mark a branch as contaminated; the first reason stays."""
        in_transaction(self._engine, lambda connection: _contaminate(connection, branch_id, reason))

    def contamination(self, branch_id: str) -> str | None:
        """Return why a branch is contaminated; None where it is not."""
        with reading(self._engine) as connection:
            return _contamination(connection, branch_id)


def _put(connection: Connection, new: StoredEffect) -> None:
    held = _held(connection, [new.token]).get(new.token)
    refuse_conflict(held, new)
    if held is None:
        row = {name: getattr(new, name) for name in new.__struct_fields__}
        connection.execute(insert(EFFECTS).values(**row))


def _held(connection: Connection, tokens: list[str]) -> dict[str, StoredEffect]:
    held: dict[str, StoredEffect] = {}
    for start in range(0, len(tokens), NUM_TOKENS):
        wanted = select(EFFECTS).where(EFFECTS.c.token.in_(tokens[start : start + NUM_TOKENS]))
        for token, request, payload, expires_at, superseded_by in connection.execute(wanted):
            held[token] = StoredEffect(
                token=token,
                request_digest=request,
                payload=payload,
                expires_at=expires_at,
                superseded_by=superseded_by,
            )
    return held


def _retire(connection: Connection, token: str, superseded_by: str | None) -> None:
    refuse_retiring(_held(connection, [token]).get(token), token, superseded_by)
    change = {"payload": None} if superseded_by is None else {"superseded_by": superseded_by}
    connection.execute(update(EFFECTS).where(EFFECTS.c.token == token).values(**change))


def _contaminate(connection: Connection, branch_id: str, reason: str) -> None:
    if _contamination(connection, branch_id) is None:
        connection.execute(insert(CONTAMINATED).values(branch_id=branch_id, reason=reason))


def _contamination(connection: Connection, branch_id: str) -> str | None:
    reasons = select(CONTAMINATED.c.reason).where(CONTAMINATED.c.branch_id == branch_id)
    return connection.scalar(reasons)
