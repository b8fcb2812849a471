"""Writes tolerance files and loads them, from files and folders, with what was withdrawn of them.

Rules kept here:

* a tolerance file is sealed (`harness.sealed`): one that was edited, cut or damaged is refused,
  since there is no way to repair a measurement;
* what was withdrawn of a file is read with it.

It does not know which tolerance a record is judged by; `harness.judge.tolerances` does.
"""

from collections.abc import Iterator
from pathlib import Path

from harness.errors import InputFileError
from harness.files import write_atomic
from harness.judge.tolerances import Tolerances
from harness.records.tolerance import ToleranceFile
from harness.sealed import read_sealed, seal
from harness.withdrawals import read_withdrawals

__all__ = ["SUFFIX", "load_tolerances", "read_tolerance_file", "seal", "write_tolerances"]

SUFFIX = ".tolerance.json"
"""Ending of a tolerance file's name; only such files of a directory are loaded."""

ADVICE = "edited by hand or damaged; calibrate again"


def write_tolerances(path: Path, file: ToleranceFile, *, overwrite: bool = False) -> None:
    """Write `file`, sealed, so that it is there whole or not at all.

    Raises InputFileError when `path` exists and `overwrite` is false, StoreError when the disk
    refuses.
    """
    write_atomic(path, seal(file), overwrite=overwrite)


def read_tolerance_file(path: Path) -> ToleranceFile:
    """Return the tolerance file at `path`.

    Raises InputFileError when it cannot be read, CorruptFileError when it was cut or edited,
    SchemaVersionError and InvalidRecordError when its format is not one of this release.
    """
    return read_sealed(ToleranceFile, path, ADVICE)


def load_tolerances(*paths: Path | str) -> Tolerances:
    """Return the tolerances of files, and of all ``*.tolerance.json`` in directories.

    Raises InputFileError when a path or a directory holds none, and what `read_tolerance_file`
    raises, for what was withdrawn of it too; InvalidRecordError, naming both files, when two
    contradict each other.
    """
    if not paths:
        raise InputFileError("no tolerance file or directory is given")
    found = list(dict.fromkeys(file for path in paths for file in _expanded(Path(path))))
    return Tolerances(
        files=tuple(read_tolerance_file(path) for path in found),
        names=tuple(map(str, found)),
        withdrawals=tuple(one for path in found for one in read_withdrawals(path)),
    )


def _expanded(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    names = sorted(path.glob(f"*{SUFFIX}"))
    if not names:
        raise InputFileError(
            f"{path}: holds no *{SUFFIX} file; name the file itself, or write one with "
            "`scorepin calibrate`"
        )
    yield from names
