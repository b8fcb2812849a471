"""A gate over rows, and branches to commit through it: change one thing, see what follows."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy

from harness.planner import Branch, BranchVerdict, CommitGate, Resource, ResourceVersion, by_id, pin
from harness.planner.commit_store import CommitStore
from harness.planner.resources.row import RowResource

OPENED: list[CommitStore] = []
"""Stores to be closed when their database goes."""

ACCEPTED = BranchVerdict(accepted=True, score=0.75)


def postgres_url() -> str:
    """Return the server's URL; a missing server fails the test that needs it."""
    url = os.environ.get("SCOREPIN_POSTGRES_URL", "")
    assert url, 'no server: export SCOREPIN_POSTGRES_URL="$(scripts/postgres)"'
    return url


@contextmanager
def a_database(backend: str, folder: Path) -> Iterator[str]:
    """Give the URL of an empty database, and remove it afterwards."""
    if backend == "sqlite":
        yield f"sqlite:///{folder}/planner.db"
        close_stores()
        return
    server = sqlalchemy.make_url(postgres_url())
    name = f"test_{uuid4().hex}"
    admin = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        close_stores()
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


def close_stores() -> None:
    while OPENED:
        OPENED.pop().close()


def a_gate(url: str, *names: str, others: Iterable[Resource] = (), **changes: Any) -> CommitGate:
    """Return a gate over rows of its own database, and over `others`."""
    store = CommitStore.open(url)
    OPENED.append(store)
    rows = [RowResource(store.engine, name) for name in names]
    return CommitGate(store=store, resources=by_id(*rows, *others), **changes)


def a_version(token: str, generation: int) -> ResourceVersion:
    return ResourceVersion(token=token, generation=generation)


def row(name: str) -> str:
    return f"row:planner_rows/{name}"


def seen(gate: CommitGate, resource: str) -> ResourceVersion | None:
    return pin(gate.resources[resource], gate.store).version


def content(gate: CommitGate, resource: str) -> bytes | None:
    return gate.resources[resource].read().content


def a_branch(
    gate: CommitGate,
    branch_id: str,
    reads: Iterable[str] = (),
    writes: dict[str, bytes | None] | None = None,
    **changes: Any,
) -> Branch:
    """Return an accepted branch that has read `reads`, and what it writes, as they are now."""
    writes = writes or {}
    fields: dict[str, Any] = {
        "decision_id": "d1",
        "read_set": {name: seen(gate, name) for name in (*reads, *writes)},
        "write_set": writes,
        "verdict": ACCEPTED,
    }
    return Branch(branch_id=branch_id, **(fields | changes))
