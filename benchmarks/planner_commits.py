"""Commits per second through the gate, beside the bare driver doing the same statements.

The statements of the gate are recorded once, with their parameters. Then, in turn, a gate and a
bare driver (`sqlite3`, `psycopg`) each make all of the commits on a new database with the same
settings; the ratio is of the two rates. Each commit checks two rows, writes one, and is durable.

    python -m benchmarks.planner_commits                                  # SQLite
    python -m benchmarks.planner_commits --postgres "$(scripts/postgres)" # and PostgreSQL
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import sqlalchemy
from sqlalchemy import Engine, event

from harness.planner import (
    Branch,
    BranchVerdict,
    CommitGate,
    ResourceVersion,
    by_id,
    commit_branch,
    statement,
)
from harness.planner.commit_store import CommitStore
from harness.planner.resources.row import RowResource

NUM_ROWS = 10
Statement = tuple[str, Any]


def branches(num_commits: int) -> list[Branch]:
    """Return branches that commit in order, their versions known beforehand."""
    return [_branch(number) for number in range(num_commits)]


def _branch(number: int) -> Branch:
    own, other = number % NUM_ROWS, (number + 1) % NUM_ROWS
    seen = {own: number // NUM_ROWS, other: (number + NUM_ROWS - other) // NUM_ROWS}
    return Branch(
        branch_id=f"branch-{number}",
        decision_id=f"decision-{number}",
        read_set={_row(row): _version(generation) for row, generation in seen.items()},
        write_set={_row(own): b"content of a row %d" % number},
        verdict=BranchVerdict(accepted=True, score=0.5),
    )


def _row(number: int) -> str:
    return f"row:planner_rows/{number}"


def _version(generation: int) -> ResourceVersion:
    return ResourceVersion(token=str(generation), generation=generation)


@contextmanager
def new_database(server: str | None) -> Iterator[str]:
    """Give the URL of an empty database: in a file, or on a PostgreSQL server."""
    if server is None:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/planner.db"
        return
    name = f"benchmark_{uuid4().hex}"
    admin = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        url = sqlalchemy.make_url(server).set(database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


@contextmanager
def new_gate(server: str | None) -> Iterator[CommitGate]:
    """Give a gate over the rows of an empty database."""
    with new_database(server) as url:
        store = CommitStore.open(url)
        rows = [RowResource(store.engine, str(number)) for number in range(NUM_ROWS)]
        yield CommitGate(store=store, resources=by_id(*rows))
        store.close()


def through_the_gate(gate: CommitGate, todo: list[Branch]) -> None:
    """Commit every branch."""
    for branch in todo:
        commit_branch(branch, gate)


def recorded(engine: Engine, work: Callable[[], None]) -> list[Statement]:
    """Return the statements that `work` executes; None is the end of a transaction."""
    statements: list[Statement] = []
    execute = statement.execute

    def note(cursor: Any, text: str, given: Any) -> None:
        statements.append((text, given))
        execute(cursor, text, given)

    def note_own(_connection: Any, _cursor: Any, text: str, given: Any, *_rest: Any) -> None:
        statements.append((text, given))

    event.listen(engine, "before_cursor_execute", note_own)  # BEGIN
    event.listen(engine, "commit", lambda _connection: statements.append(("COMMIT", None)))
    statement.__dict__["execute"] = note
    try:
        work()
    finally:
        statement.__dict__["execute"] = execute
    return statements


def with_the_bare_driver(engine: Engine, statements: list[Statement]) -> None:
    """Execute the statements on one connection of the driver, and fetch what they give."""
    holder = engine.raw_connection()
    connection: Any = holder.driver_connection
    if engine.dialect.name == "postgresql":
        connection.set_isolation_level(4)  # as the gate's: serialisable
    for text, given in statements:
        if text == "COMMIT":
            connection.commit()
            continue
        cursor = connection.execute(text, given)
        if cursor.description:
            cursor.fetchall()
    holder.close()


def seconds(work: Callable[[], None]) -> float:
    """Return how long `work` takes, with nothing else to collect."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(server: str | None, num_commits: int, num_rounds: int) -> dict[str, Any]:
    """Return both rates, in commits per second, over rounds that alternate between the two."""
    todo = branches(num_commits)
    with new_gate(server) as gate:
        statements = recorded(gate.store.engine, lambda: through_the_gate(gate, todo))
    gate_s, bare_s = [], []
    for _ in range(num_rounds):
        with new_gate(server) as gate:
            gate_s.append(seconds(lambda: through_the_gate(gate, todo)))
        with new_gate(server) as gate:
            engine = gate.store.engine
            bare_s.append(seconds(lambda: with_the_bare_driver(engine, statements)))  # noqa: B023
            if len(gate.store.commits()) != num_commits:
                raise RuntimeError("the bare driver did not make the same commits")
    ratios = [bare / gate for bare, gate in zip(bare_s, gate_s, strict=True)]
    return {
        "num_commits": num_commits,
        "num_rounds": num_rounds,
        "statements_per_commit": len(statements) / num_commits,
        "gate_commits_per_s": num_commits / statistics.median(gate_s),
        "bare_commits_per_s": num_commits / statistics.median(bare_s),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgres", metavar="URL")
    asked = parser.parse_args()
    figures = {"sqlite": measure(None, asked.commits, asked.rounds)}
    if asked.postgres:
        figures["postgresql"] = measure(asked.postgres, asked.commits, asked.rounds)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
