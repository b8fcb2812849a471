"""Says a record as a Markdown table: field, type, whether it must be there, meaning."""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from scripts.regenerate_formats.doc_lines import doc_lines, first_sentence

__all__ = ["parts_of", "record_section"]

NOT_IN_FILE = ("unknown_fields",)
"""Kept in memory, merged with the other fields when written."""

NEVER_LEFT_OUT = ("schema_version",)
"""Has a default in memory; a file without it is refused."""

PLAIN = {
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.AnyType: "anything",
}
BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "at least", "pattern": "like"}


def record_section(kind: type, level: int) -> str:
    """Return the section of one record or enum."""
    head = f"{'#' * level} {kind.__name__}\n\n{first_sentence(kind)}\n"
    return head + (_enum_table(kind) if issubclass(kind, Enum) else _record_table(kind))


def parts_of(kind: type) -> tuple[type, ...]:
    """Return the records and enums that a record's fields hold, in field order."""
    if issubclass(kind, Enum):
        return ()
    return tuple(dict.fromkeys(part for field in _fields(kind) for part in _parts(field.type)))


def _record_table(kind: type) -> str:
    fields = _fields(kind)
    docs = doc_lines(kind, tuple(field.name for field in fields))
    rows = [("field", "type", "default", "meaning"), ("---",) * 4]
    info = _struct(kind)
    if info.tag_field:
        rows.append((f"`{info.tag_field}`", f"`{json.dumps(info.tag)}`", "", "Tells it apart."))
    rows += [
        (f"`{field.encode_name}`", _words(field.type), _default(field), docs[field.name])
        for field in fields
    ]
    if len(rows) == 2:
        return "\nNo fields.\n"
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _enum_table(kind: type[Enum]) -> str:
    docs = doc_lines(kind, tuple(kind.__members__))
    rows = [f"| `{member.value}` | {docs[name]} |\n" for name, member in kind.__members__.items()]
    return "\n| value | meaning |\n| --- | --- |\n" + "".join(rows)


def _struct(kind: type) -> inspect.StructType:
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{kind.__name__} is no record")
    return info


def _fields(kind: type) -> list[inspect.Field]:
    return [field for field in _struct(kind).fields if field.name not in NOT_IN_FILE]


def _default(field: inspect.Field) -> str:
    if field.required or field.name in NEVER_LEFT_OUT:
        return "required"
    default = field.default
    if default is msgspec.NODEFAULT:
        factory: Any = field.default_factory
        default = factory()
    return f"`{json.dumps(msgspec.to_builtins(default))}`"


def _parts(info: inspect.Type) -> Iterator[type]:
    """Yield the records and enums within a type, outermost first."""
    if isinstance(info, inspect.StructType | inspect.EnumType):
        yield info.cls
    for name in ("type", "item_type", "key_type", "value_type"):
        inner = getattr(info, name, None)
        if isinstance(inner, inspect.Type):
            yield from _parts(inner)
    for inner in getattr(info, "types", ()):
        yield from _parts(inner)


def _words(info: inspect.Type) -> str:
    return _bare(info) + _bounds(info)


def _bare(info: inspect.Type) -> str:  # noqa: PLR0911 - one line a type
    if isinstance(info, inspect.Metadata):
        return _words(info.type)
    if isinstance(info, inspect.StructType | inspect.EnumType):
        return f"[{info.cls.__name__}](#{info.cls.__name__.lower()})"
    if isinstance(info, inspect.UnionType):
        return " or ".join(map(_words, info.types))
    if isinstance(info, inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in info.values)
    if isinstance(info, inspect.CollectionType):
        return f"list of {_words(info.item_type)}"
    if isinstance(info, inspect.DictType):
        return f"mapping of {_words(info.key_type)} to {_words(info.value_type)}"
    return PLAIN[type(info)]


def _bounds(info: inspect.Type) -> str:
    stated = [
        f"{word} `{value}`"
        for name, word in BOUNDS.items()
        if (value := getattr(info, name, None)) is not None
    ]
    return f", {' and '.join(stated)}" if stated else ""
