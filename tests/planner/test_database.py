import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, select, text

from harness.errors import ConfigError, SchemaVersionError, StoreError
from harness.planner import database
from harness.planner.commit_store import SCHEMA
from harness.planner.database import (
    METADATA,
    Schema,
    in_transaction,
    migrate,
    open_database,
    reading,
    transaction,
)
from tests.planner.gate_examples import a_database

COUNTERS = Table(
    "counters", MetaData(), Column("name", String, primary_key=True), Column("value", Integer)
)


def create(connection: Connection) -> None:
    COUNTERS.create(connection)
    connection.execute(insert(COUNTERS).values(name="n", value=0))


def add_column(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE counters ADD COLUMN note VARCHAR"))


def fail(_connection: Connection) -> None:
    raise RuntimeError("step 2 failed")


ONE = Schema(name="counters", steps=(create,))
TWO = Schema(name="counters", steps=(create, add_column))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_database(request.param, tmp_path) as found:
        yield found


def columns(url: str, *schemas: Schema) -> list[str]:
    engine = open_database(url, *schemas)
    with reading(engine) as connection:
        names = list(connection.execute(text("SELECT * FROM counters")).keys())
    engine.dispose()
    return names


def test_a_database_moves_one_step_at_a_time(url: str) -> None:
    assert columns(url, ONE) == ["name", "value"]
    assert columns(url, ONE) == ["name", "value"]
    assert columns(url, TWO) == ["name", "value", "note"]
    with pytest.raises(SchemaVersionError, match="'counters' is at 2, newer than 1"):
        open_database(url, ONE)


def test_a_step_that_fails_leaves_the_old_version(url: str) -> None:
    broken = Schema(name="counters", steps=(create, add_column, fail))
    columns(url, ONE)
    with pytest.raises(RuntimeError, match="step 2"):
        open_database(url, broken)
    assert columns(url, ONE) == ["name", "value"]


def test_the_gates_tables_are_those_that_are_declared(url: str) -> None:
    engine = open_database(url, SCHEMA, ONE)
    migrate(engine, SCHEMA, ONE)
    found = MetaData()
    with reading(engine) as connection:
        found.reflect(connection)
    engine.dispose()
    gate = {t.name: sorted(t.columns.keys()) for t in METADATA.tables.values()}
    here = {name: sorted(t.columns.keys()) for name, t in found.tables.items()}
    assert here.items() <= (gate | {"counters": ["name", "value"]}).items()
    assert {"planner_branches", "planner_gate_log", "planner_rows"} <= here.keys()


def exit_codes_of_four(target: Callable[..., None], *arguments: object) -> list[int | None]:
    """Run four processes at once; return how each ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    running = [context.Process(target=target, args=arguments) for _ in range(4)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    return [process.exitcode for process in running]


def open_once(url: str) -> None:
    open_database(url, ONE).dispose()


def test_many_processes_open_a_new_database_at_once(url: str) -> None:
    assert exit_codes_of_four(open_once, url) == [0] * 4
    assert columns(url, ONE) == ["name", "value"]


def add(connection: Connection, amount: int) -> int:
    value = int(connection.scalar(select(COUNTERS.c.value)) or 0)
    connection.execute(COUNTERS.update().values(value=value + amount))
    return value + amount


def test_a_transaction_is_kept_or_undone_as_a_whole(url: str) -> None:
    engine = open_database(url, ONE)
    assert in_transaction(engine, lambda c: add(c, 1)) == 1
    with transaction(engine) as connection:
        add(connection, 1)

    def add_and_fail(connection: Connection) -> None:
        add(connection, 5)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        in_transaction(engine, add_and_fail)
    with pytest.raises(RuntimeError), transaction(engine) as connection:
        add_and_fail(connection)
    assert in_transaction(engine, lambda c: add(c, 0)) == 2
    engine.dispose()


def add_many(url: str, times: int) -> None:
    engine = open_database(url, ONE)
    for _ in range(times):
        in_transaction(engine, lambda c: add(c, 1))
    engine.dispose()


def test_no_update_is_lost_between_processes(url: str) -> None:
    open_database(url, ONE).dispose()
    assert exit_codes_of_four(add_many, url, 25) == [0] * 4
    engine = open_database(url, ONE)
    assert in_transaction(engine, lambda c: add(c, 0)) == 100
    engine.dispose()


def test_a_snapshot_does_not_move_and_cannot_be_written(url: str) -> None:
    engine = open_database(url, ONE)
    with reading(engine) as snapshot:
        assert snapshot.scalar(select(COUNTERS.c.value)) == 0
        in_transaction(engine, lambda c: add(c, 1))
        assert snapshot.scalar(select(COUNTERS.c.value)) == 0
    with pytest.raises(StoreError), reading(engine) as snapshot:
        snapshot.execute(COUNTERS.update().values(value=9))
    engine.dispose()


def test_sqlite_survives_a_power_cut(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", ONE)
    with reading(engine) as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    engine.dispose()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_who_always_loses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.001)
    monkeypatch.setattr(database, "NUM_ATTEMPTS", 3)
    engine = open_database(f"sqlite:///{tmp_path}/a.db", ONE)
    rival = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"lost to other writers 3 times \(database is locked\)"):
        in_transaction(engine, lambda c: add(c, 1))
    with pytest.raises(StoreError, match="locked; try again"), transaction(engine):
        pass
    rival.rollback()
    assert in_transaction(engine, lambda c: add(c, 1)) == 1
    rival.close()
    engine.dispose()


BAD_URLS = {
    "not a URL": ("planner.db", "not a database URL"),
    "another database": ("mysql://host/x", "give sqlite:///file.db"),
    "an unknown driver": ("nosuch://host/x", "give sqlite:///file.db|not a database URL"),
    "in memory": ("sqlite://", "must outlive"),
    "in memory by name": ("sqlite:///:memory:", "must outlive"),
}


@pytest.mark.parametrize(("bad", "why"), BAD_URLS.values(), ids=list(BAD_URLS))
def test_a_url_that_cannot_be_used(bad: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_database(bad)


def test_a_password_is_not_in_a_message() -> None:
    with pytest.raises(StoreError, match=r"u:\*\*\*@") as caught:
        open_database("postgresql+psycopg://u:hush@127.0.0.1:9/x")
    assert "hush" not in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open database file"):
        open_database(f"sqlite:///{tmp_path}/none/a.db")
