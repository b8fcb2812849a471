"""Canonical bytes, digests, and versioned decoding of records.

Rules kept here:

* anything hashed is canonical JSON: sorted keys, no white space, shortest round-trip floats, UTF-8;
* a non-finite float is never written as a number: JSON has none, and `null` would be a guess;
* an object with the same key twice is refused, since the reader would silently drop one;
* text is UTF-8: a lone surrogate, which JSON can spell and UTF-8 cannot, is refused when read;
* a document has an integer `schema_version`; older ones are upgraded one step at a time, newer ones
  and missing ones are refused with advice; unknown fields survive a read-write cycle.

It does not know any particular record; those stand in `harness.records`, one layer up, since their
ids are digests.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from harness.errors import CorruptFileError, InvalidRecordError, SchemaVersionError

if TYPE_CHECKING:
    from harness.records.document import Document

__all__ = ["canonical_bytes", "check_version", "decode", "digest", "encode", "parse", "residue"]

D = TypeVar("D", bound="Document")

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: dict[tuple[str, int], Upgrade] = {}
"""(document kind, version it reads) -> upgrade to the next version. Empty: all formats are at 1."""


def canonical_bytes(value: object) -> bytes:
    """Return the canonical JSON of a record or of plain builtins.

    Raises InvalidRecordError for a float that is not finite and for a value that JSON cannot hold.
    """
    try:
        plain = msgspec.to_builtins(value, order="sorted")
        _refuse_non_finite(plain, "$")
        return msgspec.json.encode(plain, order="sorted")
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRecordError(f"cannot be written as JSON: {error}") from error


def digest(value: object) -> str:
    """Return ``sha256:<hex>`` of the canonical bytes of `value`."""
    return f"sha256:{hashlib.sha256(canonical_bytes(value)).hexdigest()}"


def encode(document: "Document") -> bytes:
    """Return the canonical bytes of a document, with the unknown fields it was read with."""
    plain = msgspec.to_builtins(document)
    return canonical_bytes(_overlay(plain, plain.pop("unknown_fields")))


def parse(data: bytes, where: str) -> Any:
    """Parse strict JSON: no duplicate key, no NaN, Infinity or 1e999, nothing cut off.

    Raises CorruptFileError, whose message begins with `where`.
    """
    try:
        return _strict_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{where}: not valid JSON ({error})") from error


def decode(kind: type[D], raw: object, where: str) -> D:
    """Turn parsed JSON into a document of type `kind`, upgraded and checked.

    Raises SchemaVersionError for a missing or newer version and InvalidRecordError for anything
    that breaks a rule of the record; both messages begin with `where`.
    """
    current = _upgraded(kind, raw, where)
    if "unknown_fields" in current:
        raise InvalidRecordError(f"{where}: `unknown_fields` is no field of a file; remove it")
    try:
        document = msgspec.convert(current, kind)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{where}: {error}") from error
    unknown = residue(current, msgspec.to_builtins(document))
    return msgspec.structs.replace(document, unknown_fields=unknown) if unknown else document


def check_version(kind: "type[Document]", raw: object, where: str) -> int:
    """Return the schema version of a parsed document of type `kind`, if this release reads it.

    Raises InvalidRecordError when `raw` is no object, SchemaVersionError when its version is
    missing or newer.
    """
    if not isinstance(raw, dict):
        raise InvalidRecordError(f"{where}: expected a JSON object, found {type(raw).__name__}")
    version, newest = raw.get("schema_version"), kind.newest_schema_version()
    if type(version) is not int or version < 1:
        message = f"{where}: no usable schema_version (found {version!r}); is it a Scorepin file?"
        raise SchemaVersionError(message)
    if version > newest:
        advice = f"newer than {newest}, the newest that this release reads; upgrade scorepin"
        raise SchemaVersionError(f"{where}: schema_version {version} is {advice}")
    return version


def _upgraded(kind: "type[Document]", raw: Any, where: str) -> dict[str, Any]:
    current: dict[str, Any] = raw
    for step in range(check_version(kind, raw, where), kind.newest_schema_version()):
        current = UPGRADES[kind.__name__, step](current)
    return current


def residue(raw: Any, known: Any) -> Any:
    """Return the part of `raw` that `known` does not have (lists by index), or nothing."""
    if isinstance(raw, Mapping) and isinstance(known, Mapping):
        parts = {
            key: residue(value, known[key]) if key in known else value for key, value in raw.items()
        }
        return {
            key: value
            for key, value in parts.items()
            if key not in known or (isinstance(value, dict) and value)
        }
    if isinstance(raw, list) and isinstance(known, list | tuple):
        pairs = {str(at): residue(*pair) for at, pair in enumerate(zip(raw, known, strict=True))}
        return {at: value for at, value in pairs.items() if isinstance(value, dict) and value}
    return {}


def _overlay(known: Any, unknown: Mapping[str, Any]) -> Any:
    """Put a residue back."""
    if isinstance(known, list | tuple):
        return [_overlay(value, unknown.get(str(at), {})) for at, value in enumerate(known)]
    if not isinstance(known, dict):
        return known
    merged = {key: _overlay(value, unknown.get(key, {})) for key, value in known.items()}
    return {**{key: value for key, value in unknown.items() if key not in known}, **merged}


def _refuse_non_finite(value: object, at: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRecordError(f"{value!r} at {at} cannot be written: only finite numbers can")
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_non_finite(inner, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_non_finite(inner, f"{at}[{index}]")


def _strict_json(data: bytes) -> Any:
    value = json.loads(
        data,
        object_pairs_hook=_no_duplicates,
        parse_constant=_no_constant,
        parse_float=_finite_float,
    )
    if b"\\u" in data:
        msgspec.json.encode(value)  # refuses a lone surrogate
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    merged = dict(pairs)
    if len(merged) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return merged


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond the largest float")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
