"""The contract that every effect store keeps."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from harness.errors import InvalidRecordError, SchemaVersionError
from harness.planner.effects import EffectStore, MemoryEffectStore, StoredEffect
from harness.planner.effects.sql_store import SqlEffectStore
from tests.planner.effects_examples import LATER, a_step, unrecorded, untokened
from tests.planner.gate_examples import a_database


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EffectStore]:
    if request.param == "memory":
        yield MemoryEffectStore()
        return
    with a_database(request.param, tmp_path) as url:
        database = SqlEffectStore(url)
        yield database
        database.close()


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'effects.db'}"


def held(store: EffectStore) -> StoredEffect | None:
    return store.effects(["token-a"]).get("token-a")


def test_what_is_put_is_found_and_nothing_else(store: EffectStore) -> None:
    step = a_step("a", expires_at=LATER)
    store.put(step)
    store.put(a_step("b"))
    found = store.effects(["token-a", "token-z", "token-a"])
    assert list(found) == ["token-a"]
    assert found["token-a"].payload == b'{"id":"agot"}'
    assert found["token-a"].payload_digest == step.payload_digest
    assert found["token-a"].request_digest == step.request_digest
    assert found["token-a"].expires_at == LATER
    assert not found["token-a"].is_retired
    assert store.effects([]) == {}


def test_many_tokens_are_found_at_once(store: EffectStore) -> None:
    steps = [a_step(str(number)) for number in range(1203)]  # more than two statements hold
    for step in steps[::100]:
        store.put(step)
    found = store.effects(step.token or "" for step in steps)
    assert sorted(found) == sorted(step.token or "" for step in steps[::100])


def test_putting_the_same_again_changes_nothing(store: EffectStore) -> None:
    store.put(a_step("a"))
    before = held(store)
    store.put(a_step("a"))
    assert held(store) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"payload": "other"}, "another payload;"),
        ({"arguments": {}}, "another request_digest;"),
        ({"tool": "other"}, "another request_digest;"),
        ({"expires_at": LATER}, "another expires_at;"),
    ],
)
def test_a_token_stands_for_one_thing(
    store: EffectStore, changes: dict[str, Any], words: str
) -> None:
    store.put(a_step("a"))
    before = held(store)
    with pytest.raises(InvalidRecordError, match=f"token 'token-a' already stands for {words}"):
        store.put(a_step("a", **changes))
    assert held(store) == before


def test_a_step_that_cannot_be_kept_is_refused(store: EffectStore) -> None:
    with pytest.raises(InvalidRecordError, match="step 'a' has no idempotency token"):
        store.put(untokened(a_step("a")))
    with pytest.raises(InvalidRecordError, match="step 'a' has no response"):
        store.put(unrecorded(a_step("a")))
    assert held(store) is None


RETIRE: dict[str, Callable[[EffectStore], None]] = {
    "evicted": lambda store: store.retire("token-a"),
    "superseded": lambda store: store.retire("token-a", superseded_by="token-b"),
}


@pytest.mark.parametrize("how", RETIRE)
def test_a_retired_token_stays_known_and_never_comes_back(store: EffectStore, how: str) -> None:
    store.put(a_step("a"))
    RETIRE[how](store)
    found = held(store)
    assert found is not None
    assert found.is_retired
    assert (found.payload is None) == (how == "evicted")
    assert (found.payload_digest is None) == (how == "evicted")
    assert found.superseded_by == ("token-b" if how == "superseded" else None)
    with pytest.raises(InvalidRecordError, match="token 'token-a' is retired"):
        store.put(a_step("a"))
    assert held(store) == found


def test_what_cannot_be_retired_is_refused(store: EffectStore) -> None:
    with pytest.raises(InvalidRecordError, match="token 'token-a' is not known"):
        store.retire("token-a")
    store.put(a_step("a"))
    with pytest.raises(InvalidRecordError, match="token 'token-a' cannot supersede itself"):
        store.retire("token-a", superseded_by="token-a")
    found = held(store)
    assert found is not None
    assert not found.is_retired


def test_a_contaminated_branch_stays_so_with_its_first_reason(store: EffectStore) -> None:
    assert store.contamination("x") is None
    store.contaminate("x", "first")
    store.contaminate("x", "second")
    assert store.contamination("x") == "first"
    assert store.contamination("y") is None


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["put", "put other", "evict", "supersede"]), st.sampled_from("abc")
        ),
        max_size=12,
    )
)
def test_the_database_does_what_the_dictionary_does(
    events: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    memory = MemoryEffectStore()
    database = SqlEffectStore(sqlite_url(tmp_path_factory.mktemp("model")))
    for event, name in events:
        told = [outcome(store, event, name) for store in (memory, database)]
        assert told[0] == told[1]
        tokens = [f"token-{one}" for one in "abc"]
        assert database.effects(tokens) == memory.effects(tokens)
    database.close()


def outcome(store: EffectStore, event: str, name: str) -> str:
    """Return the words of the refusal, or nothing."""
    try:
        if event == "evict":
            store.retire(f"token-{name}")
        elif event == "supersede":
            store.retire(f"token-{name}", superseded_by="token-a")
        else:
            store.put(a_step(name, payload=event))
    except InvalidRecordError as error:
        return str(error)
    return ""


def test_the_database_outlives_its_process(tmp_path: Path) -> None:
    first = SqlEffectStore(sqlite_url(tmp_path))
    first.put(a_step("a"))
    first.contaminate("x", "why")
    first.close()
    second = SqlEffectStore(sqlite_url(tmp_path))
    assert held(second) == held_in_memory()
    assert second.contamination("x") == "why"
    second.close()


def held_in_memory() -> StoredEffect | None:
    memory = MemoryEffectStore()
    memory.put(a_step("a"))
    return held(memory)


def test_a_payload_edited_in_the_database_shows_by_its_digest(tmp_path: Path) -> None:
    database = SqlEffectStore(sqlite_url(tmp_path))
    database.put(a_step("a"))
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("UPDATE planner_effects SET payload = x'7b7d'"))
    engine.dispose()
    found = held(database)
    assert found is not None
    assert found.payload_digest != a_step("a").payload_digest
    database.close()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    SqlEffectStore(sqlite_url(tmp_path)).close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("UPDATE planner_schema SET version = 99 WHERE name = 'effects'"))
    engine.dispose()
    with pytest.raises(SchemaVersionError, match="'effects' is at 99, newer than 1"):
        SqlEffectStore(sqlite_url(tmp_path))
