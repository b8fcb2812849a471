"""Decides whether a later step stands free of a step that diverged, by looking at their payloads.

`Taint` holds what is no longer the same in the branch: the diverged step's call and response, as
recorded and as posed, and those of every step found to depend on it. A later step is reached

* if it declares a dependency on a tainted step;
* if its arguments mention a value of a tainted call or response, changed or not;
* if its response shows a value that only one of the two worlds has.

Text is compared by words. A word is mentioned where it stands alone or, from three bytes on, inside
another word; of a text without words every character counts. Case and Unicode form do not matter.
`true`, `false`, `null` and the empty text are in every second response, so they count only where
the two worlds differ. The check errs on the side of dependence: one common word is enough.

What it cannot see: a value that was transformed (hashed, summed, translated) on its way into a
call, a state of the world that neither payload shows, and a decision taken because of a response
without citing it. Declared dependencies are the cure for these.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from harness.planner.effects.step import SideEffectStep
from harness.records.document import Record

__all__ = ["Dependence", "Taint"]

NUM_BYTES_INSIDE = 3
"""A word this long counts inside another word too; shorter ones are inside too many."""

_WORD = re.compile(r"[^\W_]+")
_BOTH = {"true", "false"}
"""One of them changed means the other one may stand there."""


class Dependence(StrEnum):
    """How a step depends on a tainted one."""

    DECLARED = "declared dependencies"
    """It names a tainted step among its dependencies."""
    ARGUMENTS = "arguments"
    """Its arguments mention a value of a tainted call or response."""
    RESPONSE = "response"
    """Its response shows a value that only one of the two worlds has."""


class Part(StrEnum):
    """What a piece of text is in a JSON value."""

    VALUE = "value"
    """A text with something in it, or a number."""
    MARK = "mark"
    """`true`, `false`, `null` or the empty text."""
    NAME = "name"
    """A field's name."""


class Piece(Record, frozen=True, kw_only=True):
    """One scalar or field name in a JSON value."""

    place: tuple[str | int, ...]
    """Names and positions that lead to it."""
    part: Part
    """What it is."""
    text: str
    """The scalar or the name, as text."""


class Taint:
    """What is no longer the same in a branch; grows as dependent steps are found."""

    def __init__(self, recorded: SideEffectStep, posed: SideEffectStep) -> None:
        """Start from the step that diverged, as recorded and as posed."""
        self._step_ids: set[str] = set()
        self._values: set[str] = set()
        self._names: set[str] = set()
        self._changed: set[str] = set()
        one, other = _pieces_of(recorded), _pieces_of(posed)
        self._add(recorded.step_id, one | other, one ^ other)

    def add(self, step: SideEffectStep) -> None:
        """Take in a dependent step: what it would have done and got in the branch is unknown."""
        pieces = _pieces_of(step)
        self._add(step.step_id, pieces, pieces)

    def reaches(self, step: SideEffectStep) -> Dependence | None:
        """Return how `step` depends on what is tainted, or None if it stands free."""
        if self._step_ids.intersection(step.dependencies or ()):
            return Dependence.DECLARED
        asked, shown = set(_pieces(step.arguments)), set(_pieces(step.payload))
        values, names = _said(asked, Part.VALUE), _said(asked, Part.NAME)
        pairs = (
            (Dependence.ARGUMENTS, values, self._values),
            (Dependence.ARGUMENTS, values, self._names),
            (Dependence.ARGUMENTS, names, self._values),
            (Dependence.ARGUMENTS, _said(asked, Part.VALUE, Part.MARK), self._changed),
            (Dependence.RESPONSE, _said(shown, Part.VALUE, Part.MARK), self._changed),
        )
        for meet in (_share, _reach_inside):  # the cheap look first: a long taint is dear to search
            for dependence, said, tainted in pairs:
                if meet(said, tainted):
                    return dependence
        return None

    def _add(self, step_id: str, pieces: set[Piece], changed: set[Piece]) -> None:
        self._step_ids.add(step_id)
        self._values |= _words(pieces, Part.VALUE)
        self._names |= _words(pieces, Part.NAME)
        self._changed |= _words(changed, Part.VALUE, Part.MARK)
        if self._changed & _BOTH:
            self._changed |= _BOTH


def _pieces_of(step: SideEffectStep) -> set[Piece]:
    return {*_pieces(step.arguments, ("arguments",)), *_pieces(step.payload, ("payload",))}


def _pieces(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[Piece]:
    """Yield the scalars and field names of a JSON value."""
    waiting = [(value, place)]
    while waiting:
        inner, at = waiting.pop()
        if isinstance(inner, dict):
            yield from (Piece(place=at, part=Part.NAME, text=name) for name in inner)
            waiting += [(inner[name], (*at, name)) for name in inner]
        elif isinstance(inner, list | tuple):
            waiting += [(item, (*at, index)) for index, item in enumerate(inner)]
        else:
            yield _scalar(inner, at)


def _scalar(value: Any, place: tuple[str | int, ...]) -> Piece:
    if value is None or isinstance(value, bool) or value == "":
        text = "null" if value is None else str(value).lower()
        return Piece(place=place, part=Part.MARK, text=text)
    text = str(value)
    if isinstance(value, float) and value.is_integer():  # 5.0 and 5 are one number in JSON
        text = f"{text} {int(value)}" if "e" in text else str(int(value))
    return Piece(place=place, part=Part.VALUE, text=text)


def _words(pieces: Iterable[Piece], *parts: Part) -> set[str]:
    """Return what tells each piece apart: its words, or of a text without any its characters."""
    folded = [_folded(piece.text) for piece in pieces if piece.part in parts]
    return {word for text in folded for word in _WORD.findall(text) or _symbols(text)}


def _said(pieces: Iterable[Piece], *parts: Part) -> set[str]:
    """Return all that could mention something: words, and the characters between them."""
    folded = [_folded(piece.text) for piece in pieces if piece.part in parts]
    return {word for text in folded for word in (*_WORD.findall(text), *_symbols(text))}


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _symbols(text: str) -> set[str]:
    return {character for character in text if not (character.isalnum() or character.isspace())}


def _share(some: set[str], others: set[str]) -> bool:
    return not some.isdisjoint(others)


def _reach_inside(some: set[str], others: set[str]) -> bool:
    return _is_inside(some, others) or _is_inside(others, some)


def _is_inside(words: set[str], others: set[str]) -> bool:
    """Whether a long enough word stands inside one of the others."""
    text = "\n".join(others)  # no word has a line break in it
    return any(len(word.encode()) >= NUM_BYTES_INSIDE and word in text for word in words)
