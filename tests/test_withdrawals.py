"""What an alarm puts out of use, on disk: read with its tolerance file, and never passed over."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import CorruptFileError, EvidenceError, SchemaVersionError
from harness.judge.tolerances import NoTolerance, Tolerances, UsableTolerance
from harness.records import ToleranceFile
from harness.records.withdrawal import Withdrawal
from harness.tolerance_file import load_tolerances, read_tolerance_file, write_tolerances
from harness.withdrawals import read_withdrawals, sidecar, withdraw
from tests.examples import a_bound, a_commit, a_tolerance, a_tolerance_file, a_withdrawal

NOW = "2026-03-01T12:00:00Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tolerances(tmp_path / "cpu.tolerance.json", a_tolerance_file())
    return tmp_path / "cpu.tolerance.json"


def of(file: ToleranceFile, **changes: Any) -> Withdrawal:
    """Return a withdrawal of the first tolerance of `file`."""
    mine = {"tolerance_id": file.tolerance_id(file.tolerances[0]), "file_digest": file.digest}
    return a_withdrawal(**{**mine, **changes})


def withdrawn(path: Path, **changes: Any) -> Withdrawal:
    file = read_tolerance_file(path)
    withdraw(path, file, [of(file, **changes)])
    return of(file, **changes)


def test_a_withdrawn_tolerance_judges_nothing_and_says_why(path: Path) -> None:
    assert isinstance(load_tolerances(path).lookup(a_commit(), NOW), UsableTolerance)
    withdrawn(path)
    for given in (path, path.parent):
        found = load_tolerances(given).lookup(a_commit(), NOW)
        assert isinstance(found, NoTolerance)
        assert found.reason == (
            "the tolerance was withdrawn at 2026-02-03T04:05:06+00:00: replica 'replica-0' raised "
            "the drift alarm with commit 'c1' (3 of 40 replays beyond the floor; an honest build "
            "raises it with probability 0.01 at most); find out what changed, then calibrate again"
        )


def test_another_tolerance_of_the_file_stays_in_use(path: Path) -> None:
    withdraw(path, read_tolerance_file(path), [of(read_tolerance_file(path), tolerance_id="x")])
    assert isinstance(load_tolerances(path).lookup(a_commit(), NOW), UsableTolerance)


def test_a_file_calibrated_since_is_in_use_and_the_old_entry_is_dropped_in_time(path: Path) -> None:
    withdrawn(path)
    newer = a_tolerance_file(created_at="2026-02-10T00:00:00+00:00")
    write_tolerances(path, newer, overwrite=True)
    assert isinstance(load_tolerances(path).lookup(a_commit(), NOW), UsableTolerance)
    assert len(read_withdrawals(path)) == 1
    again = withdrawn(path, replica="other")
    assert read_withdrawals(path) == (again,)


def test_a_tolerance_is_withdrawn_once_by_the_first_alarm(path: Path) -> None:
    first = withdrawn(path)
    for number in range(5):
        withdrawn(path, replica=f"replica-{number}", commit_id=f"c{number}")
    assert read_withdrawals(path) == (first,)
    size = sidecar(path).stat().st_size
    withdraw(path, read_tolerance_file(path), [])
    assert sidecar(path).stat().st_size == size


def test_several_tolerances_of_one_file_are_kept_side_by_side(path: Path) -> None:
    withdrawn(path)
    file = read_tolerance_file(path)
    withdraw(path, file, [of(file, commit_id="c9", replica="r", alpha=0.5)])
    withdraw(path, file, [a_withdrawal(file_digest=file.digest, tolerance_id="another")])
    assert [one.tolerance_id for one in read_withdrawals(path)] == [
        file.tolerance_id(file.tolerances[0]),
        "another",
    ]


def test_without_a_sidecar_nothing_is_withdrawn(path: Path) -> None:
    assert read_withdrawals(path) == ()
    assert sidecar(path).name == "cpu.tolerance.json.withdrawn.json"


def edited(**changes: Any) -> Any:
    def change(data: bytes) -> bytes:
        raw = json.loads(data)
        raw["withdrawals"][0].update(changes)
        return json.dumps(raw).encode()

    return change


def newer_version(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "schema_version": 2}).encode()


DAMAGE: dict[str, tuple[Any, type[EvidenceError], str]] = {
    "cut": (lambda data: data[:-9], CorruptFileError, "cut off, damaged or edited by hand"),
    "empty": (lambda _: b"", CorruptFileError, "damaged or edited by hand"),
    "another replica": (edited(replica="x"), CorruptFileError, "remove the file if all"),
    "another tolerance": (edited(tolerance_id="x"), CorruptFileError, "calibrate the build again"),
    "emptied": (lambda _: b'{"withdrawals":[],"schema_version":1}', CorruptFileError, "digest"),
    "a newer release's": (newer_version, SchemaVersionError, "upgrade scorepin"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_sidecar_is_an_error_and_never_passed_over(path: Path, case: str) -> None:
    withdrawn(path)
    damage, kind, message = DAMAGE[case]
    sidecar(path).write_bytes(damage(sidecar(path).read_bytes()))
    for read in (read_withdrawals, load_tolerances):
        with pytest.raises(kind, match=message) as caught:
            read(path)
        assert str(sidecar(path)) in str(caught.value)
    with pytest.raises(kind):
        withdrawn(path)


def test_a_file_that_came_from_nowhere_has_nothing_withdrawn() -> None:
    file = a_tolerance_file(tolerances=(a_tolerance(envelope=a_bound(0.5)),))
    loose = Tolerances(files=(file,), withdrawals=(a_withdrawal(),))
    assert isinstance(loose.lookup(a_commit(), NOW), UsableTolerance)
