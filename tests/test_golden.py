from pathlib import Path

import pytest

from harness.codec import decode, encode, parse
from harness.records import CommitRecord, ReplayRecord, ToleranceFile, Verdict
from harness.records.document import Document
from harness.records.withdrawal import Withdrawals
from harness.tolerance_file import read_tolerance_file
from scripts.regenerate_golden import COMMAND, FOLDER, documents

KINDS: dict[str, type[Document]] = {
    "commit": CommitRecord,
    "replay": ReplayRecord,
    "tolerance": ToleranceFile,
    "verdict": Verdict,
    "withdrawals": Withdrawals,
}


@pytest.mark.parametrize("name", documents())
def test_this_release_writes_the_golden_bytes(name: str) -> None:
    found, expected = documents()[name], (FOLDER / name).read_bytes()
    at = next((n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), -1)
    assert found == expected, (
        f"{name} differs from byte {at}: found ...{found[at : at + 60]!r}, the golden file has "
        f"...{expected[at : at + 60]!r}; if the format was meant to change: {COMMAND}"
    )


GOLDEN = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_every_golden_file_is_read_and_written_back_unchanged(path: Path) -> None:
    kind = KINDS[path.name.partition("-")[0]]
    document = decode(kind, parse(path.read_bytes(), path.name), path.name)
    if document.schema_version == kind.newest_schema_version():
        assert encode(document) == path.read_bytes()


def test_every_version_of_every_format_has_a_golden_file() -> None:
    expected = {
        f"{name}-{version}.json"
        for name, kind in KINDS.items()
        for version in range(1, kind.newest_schema_version() + 1)
    }
    assert {path.name for path in GOLDEN} == expected, f"write the missing ones: {COMMAND}"


def test_the_golden_tolerance_file_is_sealed() -> None:
    assert read_tolerance_file(FOLDER / "tolerance-1.json").digest.startswith("sha256:")
