"""Decides whether a tolerance file is whole: seals it with its digest, and checks that when read.

Rules kept here:

* the digest is over the canonical bytes of everything but itself, unknown fields included, in the
  version the file was written in;
* a version that this release cannot read is told before a digest that does not match;
* a file that was edited, cut or damaged is refused: there is no way to repair a measurement.

It does not know which tolerance a record is judged by; `harness.judge.tolerances` does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from harness.codec import check_version, decode, digest, encode, parse
from harness.errors import CorruptFileError, InputFileError
from harness.files import read_bytes, write_atomic
from harness.judge.tolerances import Tolerances
from harness.records.tolerance import ToleranceFile

__all__ = ["SUFFIX", "load_tolerances", "read_tolerance_file", "seal", "write_tolerances"]

SUFFIX = ".tolerance.json"
"""Ending of a tolerance file's name; only such files of a directory are loaded."""

ADVICE = "edited by hand or damaged; calibrate again"


def seal(file: ToleranceFile) -> bytes:
    """Return the canonical bytes of `file` with its digest in place, whatever digest it had."""
    return encode(replace(file, digest=_digest_of(parse(encode(file), "tolerance file"))))


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
    raw = _parsed(path)
    check_version(ToleranceFile, raw, str(path))
    if raw.get("digest") != _digest_of(raw):
        raise CorruptFileError(f"{path}: its digest does not match its content: {ADVICE}")
    return decode(ToleranceFile, raw, str(path))


def load_tolerances(*paths: Path | str) -> Tolerances:
    """Return the tolerances of files, and of all ``*.tolerance.json`` in directories.

    Raises InputFileError when a path or a directory holds none, and what `read_tolerance_file`
    raises; InvalidRecordError, naming both files, when two contradict each other.
    """
    if not paths:
        raise InputFileError("no tolerance file or directory is given")
    found = list(dict.fromkeys(file for path in paths for file in _expanded(Path(path))))
    files = tuple(read_tolerance_file(path) for path in found)
    return Tolerances(files=files, names=tuple(map(str, found)))


def _parsed(path: Path) -> Any:
    try:
        return parse(read_bytes(path), str(path))
    except CorruptFileError as error:
        raise CorruptFileError(f"{error}: cut off, {ADVICE}") from error


def _digest_of(raw: dict[str, Any]) -> str:
    return digest({name: value for name, value in raw.items() if name != "digest"})


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
