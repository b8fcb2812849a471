"""One contract for every kind of resource, then what each of them promises beside it."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import sqlalchemy

from harness.errors import (
    ConfigError,
    InputFileError,
    ScorepinError,
    StoreError,
    VersionConflictError,
)
from harness.planner import FileResource, HttpResource, Resource, S3Object, by_id
from harness.planner.commit_store import SCHEMA
from harness.planner.database import METADATA, in_transaction, open_database
from harness.planner.resources.row import ROWS, RowResource, row_table
from tests.planner.gate_examples import a_database
from tests.planner.object_server import ObjectServer, serving

Make = Callable[[], Resource]
"""Gives a new object for the same resource, as another process would have it."""


def rows(backend: str, folder: Path, stack: ExitStack) -> Make:
    engine = open_database(stack.enter_context(a_database(backend, folder)), SCHEMA)
    stack.callback(engine.dispose)
    return lambda: RowResource(engine, "r")


def objects(kind: type[HttpResource], stack: ExitStack, *, versioned: bool) -> Make:
    server = stack.enter_context(serving())
    server.versioned = versioned
    client = stack.enter_context(httpx.Client(timeout=5, trust_env=False))
    return lambda: kind(server.url("key"), client)


KINDS: dict[str, Callable[[Path, ExitStack], Make]] = {
    "file": lambda folder, _stack: lambda: FileResource(folder / "sub" / "f.txt"),
    "sqlite row": lambda folder, stack: rows("sqlite", folder, stack),
    "postgresql row": lambda folder, stack: rows("postgresql", folder, stack),
    "http": lambda _folder, stack: objects(HttpResource, stack, versioned=False),
    "s3": lambda _folder, stack: objects(S3Object, stack, versioned=False),
    "s3 with versions": lambda _folder, stack: objects(S3Object, stack, versioned=True),
}
MONOTONIC = {"file", "sqlite row", "postgresql row", "s3 with versions"}
"""Kinds whose token never comes back, whatever the bytes."""
PARAMETERS = [
    pytest.param(kind, marks=[pytest.mark.postgres] if kind.startswith("postgresql") else [])
    for kind in KINDS
]


@pytest.fixture(params=PARAMETERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield KINDS[kind](tmp_path, stack)


def token(resource: Resource) -> str:
    found = resource.version()
    assert found is not None
    return found


def test_an_absent_one_has_a_version_and_no_content(make: Make) -> None:
    snapshot = make().read()
    assert snapshot.content is None
    assert snapshot.token == token(make())


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 300])
def test_what_is_written_is_read_with_its_version(make: Make, content: bytes) -> None:
    made = make().write(content, token(make()))
    snapshot = make().read()
    assert (snapshot.content, snapshot.token) == (content, made)
    assert token(make()) == made


def test_other_content_is_another_version(make: Make) -> None:
    tokens = [token(make())]
    for content in (b"a", b"b", b"c"):
        tokens.append(make().write(content, tokens[-1]))
    assert len(set(tokens)) == 4


def test_a_write_on_another_version_changes_nothing(make: Make) -> None:
    absent = token(make())
    first = make().write(b"a", absent)
    second = make().write(b"b", first)
    for stale in (absent, first, "nonsense"):
        with pytest.raises(VersionConflictError, match="nothing was written") as caught:
            make().write(b"c", stale)
        assert make().resource_id in str(caught.value)
        with pytest.raises(VersionConflictError):
            make().write(None, stale)
    snapshot = make().read()
    assert (snapshot.content, snapshot.token) == (b"b", second)


def test_none_deletes_and_it_can_be_made_again(make: Make) -> None:
    gone = make().write(None, make().write(b"a", token(make())))
    assert make().read().content is None
    assert token(make()) == gone
    make().write(b"again", gone)
    assert make().read().content == b"again"


def test_deleting_what_is_absent(make: Make) -> None:
    gone = make().write(None, token(make()))
    assert make().read().content is None
    assert token(make()) == gone


def test_old_bytes_under_a_new_version(make: Make, kind: str) -> None:
    """The gate's own generation covers the kinds where the token does come back."""
    four = make().write(b"four", token(make()))
    back = make().write(b"four", make().write(b"five", four))
    assert (back != four) is (kind in MONOTONIC)


def test_of_many_writers_of_one_version_one_wins(make: Make) -> None:
    seen = make().write(b"start", token(make()))

    def attempt(number: int) -> bool:
        try:
            make().write(b"writer %d" % number, seen)
        except VersionConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(8)))
    assert sum(won) == 1
    assert make().read().content == b"writer %d" % won.index(True)


def test_the_id_is_the_same_in_every_process(make: Make) -> None:
    assert make().resource_id == make().resource_id
    with pytest.raises(ConfigError, match="the same id"):
        by_id(make(), make())


# Files.


def test_a_file_changed_and_put_back_by_an_outsider_is_another_version(tmp_path: Path) -> None:
    file = FileResource(tmp_path / "f")
    seen = file.write(b"four", file.version())
    file.path.write_bytes(b"five")
    os.utime(file.path, ns=(0, 0))
    file.path.write_bytes(b"four")
    assert file.version() != seen


def test_a_file_made_and_removed_by_an_outsider_is_not_seen(tmp_path: Path) -> None:
    """The limit that the module's docstring states."""
    file = FileResource(tmp_path / "f")
    absent = file.version()
    file.path.write_bytes(b"x")
    file.path.unlink()
    assert file.version() == absent


def test_a_counter_tells_apart_what_the_file_system_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same inode again, within one tick of the clock."""
    monkeypatch.setattr("harness.planner.resources.file._mark", lambda _stat: "same")
    file = FileResource(tmp_path / "f")
    four = file.write(b"four", file.version())
    back = file.write(b"four", file.write(b"five", four))
    assert back != four
    with pytest.raises(VersionConflictError):
        file.write(b"six", four)


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file = FileResource(tmp_path / "run.sh")
    file.path.write_bytes(b"old")
    file.path.chmod(0o750)
    made = file.write(b"new", file.version())
    assert file.path.stat().st_mode & 0o777 == 0o750
    assert file.version() == made


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(InputFileError, match="cannot be read"):
        FileResource(tmp_path / "f").read()


def test_a_file_whose_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be opened"):
        FileResource(tmp_path / "f" / "g").version()


# Rows.


def test_a_row_of_a_table_of_the_users_own(tmp_path: Path) -> None:
    table = row_table("orders", sqlalchemy.MetaData())
    engine = open_database(f"sqlite:///{tmp_path}/own.db")
    in_transaction(engine, table.create)
    row = RowResource(engine, "o1", table)
    row.write(b"x", row.version())
    assert row.resource_id == "row:orders/o1"
    assert row.read().content == b"x"
    engine.dispose()


def test_a_table_without_a_version_is_refused(tmp_path: Path) -> None:
    columns = [sqlalchemy.Column(name, sqlalchemy.String) for name in ("name", "content")]
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(ConfigError, match="no column 'version'"):
        RowResource(engine, "x", sqlalchemy.Table("bare", sqlalchemy.MetaData(), *columns))


def test_a_row_joins_only_its_own_database(tmp_path: Path) -> None:
    one, two = (open_database(f"sqlite:///{tmp_path}/{name}.db", SCHEMA) for name in "ab")
    row = RowResource(one, "r")
    in_transaction(one, lambda c: row.within(c).write(b"x", "0"))  # type: ignore[union-attr]
    assert in_transaction(two, row.within) is None
    assert row.read().content == b"x"
    one.dispose()
    two.dispose()


def test_a_deleted_row_stays_as_a_tombstone(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", SCHEMA)
    row = RowResource(engine, "r")
    assert row.write(None, row.write(b"x", "0")) == "2"
    assert ROWS.metadata is METADATA
    engine.dispose()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT * FROM planner_rows").fetchall() == [("r", None, 2)]
    connection.close()


# URLs.


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving() as made:
        yield made


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=5, trust_env=False) as made:
        yield made


def test_a_weak_etag_is_no_version(server: ObjectServer, client: httpx.Client) -> None:
    resource = HttpResource(server.url("k"), client)
    resource.write(b"x", token(resource))
    server.weak = True
    assert resource.version() is None
    assert resource.read().token is None


@pytest.mark.parametrize(("kind", "is_seen"), [(S3Object, True), (HttpResource, False)])
def test_old_bytes_that_an_outsider_put_back_on_a_versioned_server(
    server: ObjectServer,
    client: httpx.Client,
    kind: type[HttpResource],
    is_seen: bool,  # noqa: FBT001
) -> None:
    """The version beside the ETag tells; who does not look at it takes them for the old ones."""
    server.versioned = True
    resource, outsider = kind(server.url("k"), client), HttpResource(server.url("k"), client)
    four = resource.write(b"four", token(resource))
    outsider.write(b"four", outsider.write(b"five", token(outsider)))
    assert (resource.version() != four) is is_seen
    if is_seen:
        with pytest.raises(VersionConflictError):
            resource.write(b"six", four)
        assert resource.read().content == b"four"


def test_a_put_whose_answer_has_no_etag(server: ObjectServer, client: httpx.Client) -> None:
    server.etag_after_put = False
    resource = HttpResource(server.url("k"), client)
    assert resource.write(b"x", token(resource)) == token(resource)


@pytest.mark.parametrize("status", [403, 500])
def test_an_answer_that_is_an_error(
    server: ObjectServer, client: httpx.Client, status: int
) -> None:
    server.status = status
    resource = HttpResource(server.url("k"), client)
    for ask in (resource.version, resource.read):
        with pytest.raises(StoreError, match=f": {status} "):
            ask()


def test_no_answer_to_a_put_is_an_unknown_outcome(
    server: ObjectServer, client: httpx.Client
) -> None:
    resource = HttpResource(server.url("k"), client)
    absent = token(resource)
    server.cut_answer = True
    with pytest.raises(StoreError, match="nobody knows"):
        resource.write(b"x", absent)
    assert resource.read().content == b"x"


def test_nobody_listens(client: httpx.Client) -> None:
    with pytest.raises(StoreError, match="nothing was changed"):
        HttpResource("http://127.0.0.1:9/x", client).version()


def test_a_server_that_ignores_conditions_fails_the_contract(
    server: ObjectServer, client: httpx.Client
) -> None:
    """The negative control: the contract test can see a blind write."""
    server.heeds_conditions = False
    with pytest.raises(pytest.fail.Exception):
        test_a_write_on_another_version_changes_nothing(
            lambda: HttpResource(server.url("k"), client)
        )


def test_every_error_is_ours(server: ObjectServer) -> None:
    closed = httpx.Client(trust_env=False)
    with pytest.raises(ScorepinError, match="no answer"):
        HttpResource("http://127.0.0.1:9/x", closed).read()
    closed.close()
