import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.codec import canonical_bytes
from harness.errors import (
    CorruptFileError,
    EvidenceError,
    InputFileError,
    InvalidRecordError,
    SchemaVersionError,
    StoreError,
)
from harness.tolerance_file import load_tolerances, read_tolerance_file, seal, write_tolerances
from tests.examples import a_bound, a_build, a_tolerance, a_tolerance_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cpu.tolerance.json"


def test_a_file_comes_back_with_its_digest(path: Path) -> None:
    write_tolerances(path, a_tolerance_file())
    back = read_tolerance_file(path)
    assert replace(back, digest="") == a_tolerance_file()
    assert back.digest.startswith("sha256:")
    assert seal(back) == path.read_bytes()


def test_the_seal_depends_on_content_alone() -> None:
    assert seal(a_tolerance_file(digest="sha256:old")) == seal(a_tolerance_file())
    assert seal(a_tolerance_file(num_truncated=1)) != seal(a_tolerance_file())


def test_an_existing_file_is_not_overwritten_unless_told(path: Path) -> None:
    write_tolerances(path, a_tolerance_file())
    with pytest.raises(InputFileError, match="exists"):
        write_tolerances(path, a_tolerance_file(num_truncated=1))
    assert read_tolerance_file(path).num_truncated == 0
    write_tolerances(path, a_tolerance_file(num_truncated=1), overwrite=True)
    assert read_tolerance_file(path).num_truncated == 1


def test_a_full_disk_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_tolerances(path, a_tolerance_file())
    assert list(path.parent.iterdir()) == []


def edits() -> dict[str, Any]:
    """Return what a hand may do to the parsed file."""

    def deeper(raw: dict[str, Any]) -> None:
        raw["tolerances"][0]["envelope"]["value"] = 1.0

    def below_the_floor(raw: dict[str, Any]) -> None:
        raw["tolerances"][0]["envelope"]["value"] = 0.0

    return {
        "a wider envelope": deeper,
        "a value that breaks a rule": below_the_floor,
        "another build": lambda raw: raw["build"].update(device="cuda"),
        "a new field": lambda raw: raw.update(note="checked by hand"),
        "a new field, deep": lambda raw: raw["build"].update(note="x"),
        "a field less": lambda raw: raw.pop("expires_at"),
        "the digest": lambda raw: raw.update(digest="sha256:" + "0" * 64),
        "no digest": lambda raw: raw.pop("digest"),
        "an empty digest": lambda raw: raw.update(digest=""),
    }


@pytest.mark.parametrize("edit", edits().values(), ids=edits())
def test_a_file_edited_by_hand_is_refused(path: Path, edit: Any) -> None:
    raw = json.loads(seal(a_tolerance_file()))
    edit(raw)
    path.write_bytes(canonical_bytes(raw))
    with pytest.raises(CorruptFileError, match=r"cpu\.tolerance\.json: .*digest.*calibrate again"):
        read_tolerance_file(path)


def test_layout_is_not_content(path: Path) -> None:
    path.write_text(json.dumps(json.loads(seal(a_tolerance_file())), indent=2))
    assert read_tolerance_file(path).num_truncated == 0


def test_every_cut_is_refused(path: Path) -> None:
    whole = seal(a_tolerance_file())
    for end in (*range(0, len(whole), 211), len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(CorruptFileError, match=r"cpu\.tolerance\.json: .*calibrate again"):
            read_tolerance_file(path)


@pytest.mark.parametrize(
    ("version", "error", "why"),
    [
        (2, SchemaVersionError, "newer than 1"),
        (None, SchemaVersionError, "no usable schema_version"),
        ("1", SchemaVersionError, "no usable schema_version"),
    ],
)
def test_the_version_is_told_before_the_digest(
    path: Path, version: object, error: type[EvidenceError], why: str
) -> None:
    path.write_bytes(
        canonical_bytes({**json.loads(seal(a_tolerance_file())), "schema_version": version})
    )
    with pytest.raises(error, match=rf"cpu\.tolerance\.json: .*{why}"):
        read_tolerance_file(path)


def test_another_document_is_no_tolerance_file(path: Path) -> None:
    path.write_bytes(b"[]")
    with pytest.raises(InvalidRecordError, match=r"cpu\.tolerance\.json: expected a JSON object"):
        read_tolerance_file(path)


def test_unknown_fields_are_sealed_and_survive(path: Path) -> None:
    file = replace(a_tolerance_file(), unknown_fields={"later": {"a": 1}, "build": {"later": 2}})
    write_tolerances(path, file)
    back = read_tolerance_file(path)
    assert back.unknown_fields == file.unknown_fields
    assert json.loads(seal(back))["build"]["later"] == 2
    assert seal(back) == path.read_bytes()
    raw = json.loads(path.read_bytes())
    raw["later"]["a"] = 2
    path.write_bytes(canonical_bytes(raw))
    with pytest.raises(CorruptFileError):
        read_tolerance_file(path)


def test_a_directory_gives_its_tolerance_files_and_no_others(tmp_path: Path) -> None:
    write_tolerances(tmp_path / "a.tolerance.json", a_tolerance_file())
    write_tolerances(tmp_path / "b.tolerance.json", a_tolerance_file(build=a_build(device="cuda")))
    (tmp_path / "notes.json").write_text("not one of them")
    tolerances = load_tolerances(tmp_path)
    assert [file.build.device for file in tolerances.files] == ["cpu", "cuda"]
    assert tolerances.names == tuple(str(tmp_path / f"{n}.tolerance.json") for n in "ab")


def test_a_file_named_twice_is_loaded_once(path: Path) -> None:
    write_tolerances(path, a_tolerance_file())
    assert len(load_tolerances(path, str(path), path.parent).files) == 1


def test_two_files_that_contradict_each_other_are_both_named(tmp_path: Path) -> None:
    write_tolerances(tmp_path / "a.tolerance.json", a_tolerance_file())
    wider = a_tolerance(envelope=a_bound(0.5))
    write_tolerances(tmp_path / "b.tolerance.json", a_tolerance_file(tolerances=(wider,)))
    with pytest.raises(InvalidRecordError, match=r"a\.tolerance\.json and .*b\.tolerance\.json"):
        load_tolerances(tmp_path)


def test_a_copy_of_a_file_contradicts_nothing(tmp_path: Path) -> None:
    for name in "ab":
        write_tolerances(tmp_path / f"{name}.tolerance.json", a_tolerance_file())
    assert len(load_tolerances(tmp_path).files) == 2


def test_what_holds_no_tolerances_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no tolerance file or directory is given"):
        load_tolerances()
    with pytest.raises(InputFileError, match=r"holds no \*\.tolerance\.json file"):
        load_tolerances(tmp_path)
    with pytest.raises(InputFileError, match=r"absent\.tolerance\.json: cannot be read"):
        load_tolerances(tmp_path / "absent.tolerance.json")
