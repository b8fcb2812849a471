"""The two bases of every record: a frozen part, and a document that stands alone in a file."""

from typing import Any

import msgspec

__all__ = ["Document", "Record"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen, keyword-only value, checked once in its constructor."""


class Document(Record, frozen=True, kw_only=True):
    """A record that is a file, or a line of one: versioned, and tolerant of unknown fields."""

    schema_version: int = 1
    """Version of the format; see docs/formats.md for the history of each."""
    unknown_fields: dict[str, Any] = {}
    """Fields of a later minor release, kept so that reading and writing back loses nothing."""

    @classmethod
    def newest_schema_version(cls) -> int:
        """Return the version that this release writes."""
        field = next(f for f in msgspec.structs.fields(cls) if f.name == "schema_version")
        return int(field.default)
