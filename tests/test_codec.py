import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness import codec
from harness.codec import canonical_bytes, check_version, decode, digest, encode, parse
from harness.errors import CorruptFileError, InvalidRecordError, SchemaVersionError
from harness.records import CommitRecord, ReplayRecord
from harness.records.document import Document
from harness.records.scores import to_wire
from tests.examples import a_commit, a_replay, a_tolerance_file, a_verdict

BAD_JSON = {
    "nothing": b"",
    "cut in half": b'{"scores": {"a": 1.0',
    "two documents": b"{}{}",
    "a key twice": b'{"scores": {"a": 1.0, "a": 2.0}}',
    "a key twice, deep": b'{"x": [{"y": {"z": 1, "z": 1}}]}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "minus Infinity": b'{"a": -Infinity}',
    "a number beyond floats": b'{"a": 1e999}',
    "an integer beyond reason": b'{"a": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "half a surrogate pair as a key": b'{"\\udc00": 1}',
    "nested without end": b"[" * 200_000,
    "single quotes": b"{'a': 1}",
    "a comma too many": b'{"a": 1,}',
}


@pytest.mark.parametrize("data", BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_refused_and_told_where(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"^log\.jsonl:7: not valid JSON"):
        parse(data, "log.jsonl:7")


def test_a_whole_surrogate_pair_is_read() -> None:
    assert parse(b'{"a": "\\ud83d\\ude00"}', "here") == {"a": "😀"}


def test_canonical_bytes_do_not_depend_on_insertion_order() -> None:
    assert (
        canonical_bytes({"b": 1, "a": {"d": 2.0, "c": -0.0}}) == b'{"a":{"c":-0.0,"d":2.0},"b":1}'
    )
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 1, "b": 2})


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_with_the_same_bits(value: float) -> None:
    back = parse(canonical_bytes(value), "here")
    assert back == value
    assert math.copysign(1, back) == math.copysign(1, value)


UNWRITABLE: dict[str, Any] = {
    "nan": {"a": [math.nan]},
    "inf": {"a": math.inf},
    "minus inf": {"a": (1, -math.inf)},
    "numpy float": np.float32(1.0),
    "numpy double": {"a": np.float64(1.0)},
    "half a surrogate pair": "\ud800",
    "an object": {"a": object()},
}


@pytest.mark.parametrize("value", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_json_cannot_hold_is_never_written(value: object) -> None:
    with pytest.raises(InvalidRecordError, match="cannot be written"):
        canonical_bytes(value)


@pytest.mark.parametrize("raw", [[], "x", 1, None, 1.5, True])
def test_a_document_is_an_object(raw: object) -> None:
    with pytest.raises(InvalidRecordError, match=r"^here: expected a JSON object"):
        decode(CommitRecord, raw, "here")


@pytest.mark.parametrize("version", [None, 0, -1, True, "1", 1.0, [1]])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    raw = {**parse(encode(a_commit()), "here"), "schema_version": version}
    with pytest.raises(SchemaVersionError, match=r"^here: no usable schema_version"):
        decode(CommitRecord, raw, "here")


def test_a_missing_version_is_refused() -> None:
    raw = parse(encode(a_commit()), "here")
    del raw["schema_version"]
    with pytest.raises(SchemaVersionError, match="is it a Scorepin file"):
        decode(CommitRecord, raw, "here")


def test_a_newer_version_is_refused_with_advice() -> None:
    raw = {**parse(encode(a_commit()), "here"), "schema_version": 2}
    with pytest.raises(SchemaVersionError, match=r"schema_version 2 is newer than 1.*upgrade"):
        decode(CommitRecord, raw, "here")


class Third(Document, frozen=True, kw_only=True):
    """A document at its third version."""

    schema_version: int = 3
    steps: str


def one_step_up(raw: dict[str, Any]) -> dict[str, Any]:
    version = raw["schema_version"]
    return {"steps": f"{raw['steps']}{version}", "schema_version": version + 1}


def test_older_versions_are_upgraded_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (1, 2):
        monkeypatch.setitem(codec.UPGRADES, ("Third", version), one_step_up)
    assert check_version(Third, {"schema_version": 1}, "here") == 1
    assert decode(Third, {"schema_version": 1, "steps": ""}, "here").steps == "12"
    assert decode(Third, {"schema_version": 2, "steps": ""}, "here").steps == "2"
    assert decode(Third, {"schema_version": 3, "steps": ""}, "here").steps == ""
    assert decode(Third, {"schema_version": 1, "steps": ""}, "here").schema_version == 3


def test_unknown_fields_survive_at_every_depth() -> None:
    raw = parse(encode(a_tolerance_file()), "here")
    raw["later"] = {"a": [1, {"b": None}]}
    raw["build"]["later"] = "x"
    raw["build"]["verifier"]["head"]["later"] = 1
    raw["tolerances"][0]["later"] = []
    raw["tolerances"][0]["axes"][0]["later"] = {"deep": True}
    written = encode(decode(type(a_tolerance_file()), raw, "here"))
    assert json.loads(written) == raw
    assert written == canonical_bytes(raw)


def test_a_field_named_unknown_fields_cannot_smuggle_scores_in() -> None:
    raw = parse(encode(a_commit()), "here")
    raw["unknown_fields"] = {"scores": {"z": 9.0}}
    with pytest.raises(InvalidRecordError, match="unknown_fields"):
        decode(CommitRecord, raw, "here")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.text(min_size=1, max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(NAMES.map("later_".__add__), JSON, max_size=3), st.booleans())
def test_commits_round_trip(unknown: dict[str, Any], committed: bool) -> None:  # noqa: FBT001
    commit = replace(a_commit(committed=committed), unknown_fields=unknown)
    assert decode(CommitRecord, parse(encode(commit), "here"), "here") == commit


@given(st.dictionaries(NAMES, FINITE | st.sampled_from([math.nan, math.inf, -math.inf])))
def test_replays_round_trip_with_their_non_finite_scores(scores: dict[str, float]) -> None:
    replay = a_replay(scores=to_wire(scores))
    back = decode(ReplayRecord, parse(encode(replay), "here"), "here")
    assert back == replay
    assert encode(back) == encode(replay)
    assert [math.isfinite(s) for s in back.numeric_scores().values()] == [
        math.isfinite(scores[branch_id]) for branch_id in back.scores
    ]


@given(st.dictionaries(NAMES, FINITE, min_size=1))
def test_a_commit_keeps_every_bit_of_its_scores(scores: dict[str, float]) -> None:
    own = {**scores, "a": 0.0, "b": 0.0, "c": 0.0}
    back = decode(CommitRecord, parse(encode(a_commit(scores=own)), "here"), "here")
    assert {k: v.hex() for k, v in back.scores.items()} == {k: v.hex() for k, v in own.items()}


def test_the_other_documents_round_trip() -> None:
    for document in (a_tolerance_file(), a_verdict()):
        assert decode(type(document), parse(encode(document), "here"), "here") == document
