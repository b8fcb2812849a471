"""The CHAMP data: which distinct solutions a problem has, and which of them are known to be right.

A label comes from one of two sources, and the first wins:

- a human marked the first wrong step (0) or found none (1);
- the problem's answer is one integer, and the model's one-sentence summary holds exactly one
  integer that the problem does not (1 where it is the answer, 0 otherwise). This says that the
  answer is right, not that each step is: of the human-marked solutions it can label, about one in
  five reaches the right answer through a wrong step. It labels nothing where in doubt.

Solutions that differ only in white space are one solution; blank lines are dropped from the text.
"""

import re
from pathlib import Path

import msgspec

from harness.errors import InputFileError

__all__ = ["Problem", "Solution", "read_problems"]

_INTEGER = re.compile(r"-?\d+")

_MINUS = "\N{MINUS SIGN}"

_NUMBER_IN_TEXT = re.compile(rf"(?<![\w.^/*{_MINUS}-])[-{_MINUS}]?\d[\d,]*(?![\w^/*%]|\.\d)")
"""A whole number that is not part of a power, product, fraction, decimal or name."""

_SOLUTION_AT = -3
"""A conversation ends: solution, request for a summary, summary."""
_SUMMARY_AT = -1


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct solution of a problem."""

    text: str
    label: int | None
    """1 right, 0 wrong, None unknown."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with its distinct solutions, in the order of the data's conversation names."""

    name: str
    text: str
    solutions: tuple[Solution, ...]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None
    """None where the model's answer did not fit."""


class _Conversation(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[_Message]


class _Annotation(msgspec.Struct, frozen=True, kw_only=True):
    start_idx: int | None
    """Where the first wrong step begins; None: no wrong step."""


class _RawProblem(msgspec.Struct, frozen=True, kw_only=True):
    text: str = msgspec.field(name="_text")
    answer: str = msgspec.field(name="_answer")
    conversations: dict[str, _Conversation]
    annotations: dict[str, _Annotation] = msgspec.field(name="fws_annotations")


class _RawData(msgspec.Struct, frozen=True, kw_only=True):
    problems: dict[str, _RawProblem]


def read_problems(path: Path) -> tuple[Problem, ...]:
    """Read the data file and return its problems sorted by name.

    Raises InputFileError where the file is not shaped as expected.
    """
    try:
        data = msgspec.json.decode(path.read_bytes(), type=_RawData)
    except msgspec.DecodeError as error:
        raise InputFileError(f"{path}: not the CHAMP data that was expected: {error}") from error
    return tuple(_problem(name, raw) for name, raw in sorted(data.problems.items()))


def _problem(name: str, raw: _RawProblem) -> Problem:
    found = [
        (_tidy(solution), _label(key, conversation, raw), key in raw.annotations)
        for key, conversation in sorted(raw.conversations.items())
        if (solution := _text_at(conversation, _SOLUTION_AT))
    ]
    by_text: dict[str, Solution] = {}
    # Human marks first, then labelled before unlabelled: the first label of a text is kept.
    for text, label, _ in sorted(found, key=lambda item: (not item[2], item[1] is None)):
        by_text.setdefault(" ".join(text.split()), Solution(text=text, label=label))
    order = dict.fromkeys(" ".join(text.split()) for text, _, _ in found)
    return Problem(name=name, text=_tidy(raw.text), solutions=tuple(by_text[key] for key in order))


def _label(key: str, conversation: _Conversation, raw: _RawProblem) -> int | None:
    annotation = raw.annotations.get(key)
    if annotation is not None:
        return int(annotation.start_idx is None)
    return _answer_label(_text_at(conversation, _SUMMARY_AT), raw)


def _answer_label(summary: str, raw: _RawProblem) -> int | None:
    if not _INTEGER.fullmatch(raw.answer):
        return None
    stated, answer = _integers(raw.text), int(raw.answer)
    claimed = _integers(summary) - stated
    if answer in stated or len(claimed) != 1:
        return None
    return int(claimed == {answer})


def _integers(text: str) -> set[int]:
    found = (match.group() for match in _NUMBER_IN_TEXT.finditer(text))
    return {int(number.replace(",", "").replace(_MINUS, "-")) for number in found}


def _text_at(conversation: _Conversation, place: int) -> str:
    messages = conversation.messages
    return (messages[place].text or "") if len(messages) >= -place else ""


def _tidy(text: str) -> str:
    """Collapse white space within lines and drop blank lines."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)
