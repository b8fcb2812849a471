import gc
import math
import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calibrate.observations import ObservationStore, ProcessFacts, StoredRow
from harness.errors import StoreError
from harness.messages import Scored
from harness.verifiers import ResolvedCondition
from tests.calibrate.example_runs import a_store, an_identity
from tests.examples import a_build, a_precision, an_order, digest_of

ROWS = tuple(
    StoredRow(
        decision_id=f"d{at // 2}",
        branch_id=f"b{at % 2}",
        num_tokens=5 + at,
        num_dropped=0,
        content_digest=digest_of(str(at)),
    )
    for at in range(4)
)


def facts(**changes: Any) -> ProcessFacts:
    condition = ResolvedCondition(
        precision_mode=a_precision(), reduction_order=an_order(), loaded_digest=digest_of("a")
    )
    return replace(ProcessFacts(build=a_build(), condition=condition), **changes)


def begin(store: ObservationStore, process_id: str = "p") -> None:
    store.settle_process(process_id, facts(), ROWS)


def bits(scores: list[float]) -> list[bytes]:
    return [struct.pack("<d", score) for score in scores]


def test_scores_come_back_by_composition_and_row(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        begin(store)
        store.append("p", "rows-2", 0, (1, 0), Scored(scores=(1.5, -2.0)))
        store.append("p", "rows-2", 1, (2, 3), Scored(scores=(0.25, 4.0)))
        store.append("p", "solo", 0, (0,), Scored(scores=(7.0,)))
        store.append("q", "solo", 0, (0,), Scored(scores=(8.0,)))
    with a_store(tmp_path) as store:
        assert store.scores("p") == {"rows-2": {1: 1.5, 0: -2.0, 2: 0.25, 3: 4.0}, "solo": {0: 7.0}}
        assert store.num_batches("p") == {"rows-2": 2, "solo": 1}
        assert store.num_batches("r") == {}
        assert store.num_observations() == 6
        assert store.rows() == ROWS
        assert store.facts() == {"p": facts()}


SPECIAL = [-0.0, 0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1, 2.0, 1e22]


def test_every_kind_of_float_comes_back_with_its_bits(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.append("p", "all", 0, range(len(SPECIAL)), Scored(scores=tuple(SPECIAL)))
    with a_store(tmp_path) as store:
        found = store.scores("p")["all"]
    assert bits([found[at] for at in range(len(SPECIAL))]) == bits(SPECIAL)


@given(score=st.floats(allow_nan=False))
def test_any_finite_float_survives_as_the_stored_text(score: float) -> None:
    assert bits([float(repr(score))]) == bits([score])


@pytest.mark.parametrize("table", ["run", "rows", "processes", "searches", "observations"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET rowid = 1"])
def test_what_is_stored_is_neither_changed_nor_deleted(
    tmp_path: Path, table: str, statement: str
) -> None:
    with a_store(tmp_path) as store:
        begin(store)
        store.append("p", "solo", 0, (0,), Scored(scores=(7.0,)))
        store.append_search("p", ())
    columns = {"run": "key", "processes": "process_id", "searches": "process_id"}
    column = columns.get(table, "row")
    with sqlite3.connect(tmp_path / "observations.sqlite") as db:
        query = statement.format(table).replace("rowid", column)
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(query)
    db.close()


def test_the_same_batch_is_not_stored_twice(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.append("p", "solo", 0, (0, 1), Scored(scores=(7.0, 8.0)))
        with pytest.raises(StoreError, match="UNIQUE"):
            store.append("p", "solo", 0, (2, 1), Scored(scores=(9.0, 9.0)))
        assert store.scores("p") == {"solo": {0: 7.0, 1: 8.0}}


def test_a_batch_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        with pytest.raises(ValueError, match="shorter"):
            store.append("p", "solo", 0, (0, 1), Scored(scores=(7.0,)))
        assert store.num_observations() == 0


def test_a_transaction_that_an_interrupt_abandons_says_nothing(tmp_path: Path) -> None:
    """Ctrl-C may come when it has begun and its `with` does not hold it yet."""
    path = tmp_path / "s.sqlite"
    with a_store(path) as store:
        begin(store)
        store.append("p", "solo", 0, [0], Scored(scores=(1.0,)))
        abandoned = store._transaction()
        database = abandoned.__enter__()
        database.execute("INSERT INTO observations VALUES ('p', 'solo', 1, 0, 0, '2.0')")
    del abandoned  # with the store closed: a message from here on would be a warning, an error
    gc.collect()
    with a_store(path) as store:
        assert store.scores("p") == {"solo": {0: 1.0}}


def test_a_second_run_is_refused_at_once_and_the_first_goes_on(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        begin(store)
        with pytest.raises(StoreError, match=r"observations\.sqlite: another run is using it"):
            a_store(tmp_path).__enter__()
        store.append("p", "solo", 0, (0,), Scored(scores=(7.0,)))
    with a_store(tmp_path) as store:
        assert store.num_observations() == 1


OTHERS = {
    "config_digest": "begun with another config; .*another --run folder",
    "decisions_digest": "begun with other decisions; .*another --run folder",
    "scorepin_version": r"begun with scorepin 0\.1\.0; .*another --run folder",
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_store_of_another_run_is_refused(tmp_path: Path, field: str) -> None:
    with a_store(tmp_path) as store:
        begin(store)
    with pytest.raises(StoreError, match=OTHERS[field]):
        a_store(tmp_path, **{field: "other"}).__enter__()
    with a_store(tmp_path) as store:
        assert store.rows() == ROWS


@pytest.mark.parametrize("field", OTHERS)
def test_a_run_that_loaded_nothing_leaves_no_trace(tmp_path: Path, field: str) -> None:
    with a_store(tmp_path, **{field: "mistaken"}):
        pass
    with a_store(tmp_path) as store:
        begin(store)
        assert store.identity == an_identity()


def test_a_resumed_run_was_created_when_it_was_first_started(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        begin(store)
    with a_store(tmp_path, created_at="2027-01-01T00:00:00+00:00") as store:
        assert store.identity == an_identity()


FOUND_OTHERWISE: dict[str, tuple[ProcessFacts, tuple[StoredRow, ...], str]] = {
    "build": (
        facts(build=a_build(libraries={"torch": "2.14.1", "onednn": "3.11"})),
        ROWS,
        r"another build than p: libraries\.torch; resume with",
    ),
    "condition": (
        facts(condition=replace(facts().condition, loaded_digest=digest_of("b"))),
        ROWS,
        "condition resolves in another way",
    ),
    "rows": (facts(), (replace(ROWS[0], num_tokens=99), *ROWS[1:]), "tokenized in another way"),
    "fewer rows at first": (facts(), (ROWS[1], ROWS[0]), "tokenized in another way"),
}


@pytest.mark.parametrize("case", FOUND_OTHERWISE)
def test_a_process_that_finds_something_else_is_refused(tmp_path: Path, case: str) -> None:
    found, rows, message = FOUND_OTHERWISE[case]
    with a_store(tmp_path) as store:
        begin(store)
        with pytest.raises(StoreError, match=message):
            store.settle_process("p", found, rows)
        assert (store.facts(), store.rows()) == ({"p": facts()}, ROWS)


def test_another_process_of_another_build_is_refused(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        begin(store)
        other = facts(build=a_build(device_name="Another CPU"))
        with pytest.raises(StoreError, match="q: another build than p: device_name"):
            store.settle_process("q", other, ROWS)
        assert set(store.facts()) == {"p"}


def test_a_process_may_have_fewer_rows_or_more(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        store.settle_process("p", facts(), ROWS[:2])
        assert store.rows() == ROWS[:2]
        store.settle_process("q", facts(), ROWS)
        store.settle_process("p", facts(), ROWS[:2])
        assert store.rows() == ROWS


def test_a_full_disk_keeps_what_was_stored_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        begin(store)
        store.append("p", "solo", 0, (0,), Scored(scores=(7.0,)))
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreError, match="disk is full; free some space and run again"):
            store.append("p", "wide", 0, range(5000), Scored(scores=tuple([0.1] * 5000)))
    with a_store(tmp_path) as store:
        assert store.num_batches("p") == {"solo": 1}
        store.append("p", "wide", 0, range(5000), Scored(scores=tuple([0.1] * 5000)))
        assert store.num_observations() == 5001


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def _foreign(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE commits (id TEXT)")
    db.commit()
    db.close()


def _folder(path: Path) -> None:
    path.mkdir()


NO_STORES: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbage": (_garbage, "not an observation store; move it away"),
    "another database": (_foreign, "not an observation store; move it away"),
    "a folder": (_folder, "cannot be opened; check the permissions"),
}


@pytest.mark.parametrize("case", NO_STORES)
def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path, case: str) -> None:
    make, message = NO_STORES[case]
    path = tmp_path / "observations.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=message):
        a_store(tmp_path).__enter__()
    assert (path.read_bytes() if path.is_file() else b"") == before


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _scribble(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(b"\xff" * (path.stat().st_size // 2))


@pytest.mark.parametrize("damage", [_cut, _scribble])
def test_a_damaged_store_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with a_store(tmp_path) as store:
        begin(store)
        store.append("p", "wide", 0, range(5000), Scored(scores=tuple([0.1] * 5000)))
    damage(tmp_path / "observations.sqlite")
    with pytest.raises(StoreError, match=r"damaged; move it away"), a_store(tmp_path) as store:
        store.scores("p")


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(StoreError, match="run"):
        a_store(tmp_path / "run").__enter__()


def as_nobody(folder: Path) -> str:
    """Return the error of a store in `folder`, opened in a child without root's rights."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = "opened"
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            with a_store(folder) as store:
                begin(store)
        except StoreError as error:
            text = str(error)
        finally:
            os.write(writing, text.encode())
            os._exit(0)
    os.waitpid(child, 0)
    return os.read(reading, 10_000).decode()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that any user may reach, as those of `tmp_path` are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_folder_that_cannot_be_written_is_refused(open_folder: Path) -> None:
    assert as_nobody(open_folder) == "opened"
    open_folder.chmod(0o555)
    for file in open_folder.iterdir():
        file.chmod(0o444)
    assert "permissions of the file and its folder" in as_nobody(open_folder)
