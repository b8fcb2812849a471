"""Reads the line of doc that stands under each field of a record and each member of an enum.

Python keeps no docstring of a field, so the source is parsed. A field without one is an error: what
a file holds is said where it is defined.
"""

import ast
import inspect
from enum import Enum
from functools import cache
from types import ModuleType

from harness.records.document import Record

__all__ = ["doc_lines", "first_sentence"]


def doc_lines(kind: type, names: tuple[str, ...]) -> dict[str, str]:
    """Return name -> doc for the fields or members `names` of `kind`, base classes included.

    Raises LookupError for a name without a doc.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        module = inspect.getmodule(base)
        if module is not None and issubclass(base, Record | Enum):
            found |= _in_module(module).get(base.__name__, {})
    missing = [name for name in names if name not in found]
    if missing:
        raise LookupError(f"{kind.__name__}.{missing[0]} has no line of doc under it")
    return {name: found[name] for name in names}


def first_sentence(kind: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    return _as_markdown((kind.__doc__ or "").partition("\n\n")[0])


@cache
def _in_module(module: ModuleType) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: _in_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _in_class(node: ast.ClassDef) -> dict[str, str]:
    pairs = zip(node.body, node.body[1:], strict=False)
    return {_target(field): _as_markdown(text) for field, doc in pairs if (text := _text(doc))}


def _target(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _text(node: ast.stmt) -> str:
    value = node.value if isinstance(node, ast.Expr) else None
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return str(value.value) if is_text and isinstance(value, ast.Constant) else ""


def _as_markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")
