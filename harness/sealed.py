"""Sealed documents: files that hold the digest of their own content.

Rules kept here:

* the digest is over the canonical bytes of everything but itself, unknown fields included, in the
  version the file was written in;
* a version that this release cannot read is told before a digest that does not match;
* a file that was edited, cut or damaged is refused, with the advice of the one who reads it.
"""

from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from harness.codec import check_version, decode, digest, encode, parse
from harness.errors import CorruptFileError
from harness.files import read_bytes
from harness.records.tolerance import ToleranceFile
from harness.records.withdrawal import Withdrawals

__all__ = ["read_sealed", "seal"]

D = TypeVar("D", ToleranceFile, Withdrawals)


def seal(document: D) -> bytes:
    """Return the canonical bytes of `document` with its digest in place, whatever it had."""
    raw = parse(encode(document), type(document).__name__)
    return encode(replace(document, digest=_digest_of(raw)))


def read_sealed(kind: type[D], path: Path, advice: str) -> D:
    """Return the sealed document at `path`; `advice` ends the message about a damaged one.

    Raises InputFileError when it cannot be read, CorruptFileError when it was cut or edited,
    SchemaVersionError and InvalidRecordError when its format is not one of this release.
    """
    try:
        raw = parse(read_bytes(path), str(path))
    except CorruptFileError as error:
        raise CorruptFileError(f"{error}: cut off, {advice}") from error
    check_version(kind, raw, str(path))
    if raw.get("digest") != _digest_of(raw):
        raise CorruptFileError(f"{path}: its digest does not match its content: {advice}")
    return decode(kind, raw, str(path))


def _digest_of(raw: dict[str, Any]) -> str:
    return digest({name: value for name, value in raw.items() if name != "digest"})
