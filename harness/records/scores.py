"""Score vectors: branch id -> score. What is usable, and how a non-finite score is written.

A commit's scores are finite. A replay's may not be: that is a finding, so it must survive the file
format, as one of three words instead of a number.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

from harness.errors import InvalidRecordError

__all__ = ["NonFinite", "Score", "check_finite", "finite_scores", "from_wire", "to_wire"]


class NonFinite(StrEnum):
    """A score that is no finite number."""

    NAN = "nan"
    """Not a number."""
    INF = "inf"
    """Positive infinity."""
    MINUS_INF = "-inf"
    """Negative infinity."""


Score = float | NonFinite
"""A score as a replay record holds it."""


def check_finite(scores: Mapping[str, float]) -> None:
    """Raise InvalidRecordError unless `scores` holds a score, and only finite numbers."""
    if not scores:
        raise InvalidRecordError("the score vector is empty")
    for branch_id, score in scores.items():
        if not math.isfinite(_number(branch_id, score)):
            raise InvalidRecordError(f"the score of branch {branch_id!r} is not finite: {score!r}")


def finite_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return a checked copy of `scores` as plain floats: numpy's float64 and ints included."""
    check_finite(scores)
    return {branch_id: float(score) for branch_id, score in scores.items()}


def to_wire(scores: Mapping[str, Score]) -> dict[str, Score]:
    """Return `scores` with each non-finite one as its word.

    Raises InvalidRecordError for a score that is neither a number nor one of the words.
    """
    return {branch_id: _wire_score(branch_id, score) for branch_id, score in scores.items()}


def from_wire(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return `scores` as floats."""
    return {branch_id: float(score) for branch_id, score in scores.items()}


def _wire_score(branch_id: str, score: Score) -> Score:
    value = float(score) if isinstance(score, NonFinite) else _number(branch_id, score)
    return value if math.isfinite(value) else NonFinite(str(value))


def _number(branch_id: str, score: object) -> float:
    if not isinstance(branch_id, str):
        raise InvalidRecordError(f"a branch id is a string, found {branch_id!r}")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise InvalidRecordError(f"the score of branch {branch_id!r} is not a number: {score!r}")
    try:
        return float(score)
    except OverflowError as error:
        raise InvalidRecordError(f"the score of branch {branch_id!r} is too large") from error
