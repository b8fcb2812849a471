"""Score vectors: branch id -> score. What is usable, and how a non-finite score is written.

A commit's scores are finite. A replay's may not be: that is a finding, so it must survive the file
format, as one of three words instead of a number.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

__all__ = ["NonFinite", "Score", "check_finite", "from_wire", "to_wire"]


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
    """Raise ValueError unless `scores` holds at least one score and all are finite numbers."""
    if not scores:
        raise ValueError("the score vector is empty")
    for branch_id, score in scores.items():
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise ValueError(f"the score of branch {branch_id!r} is not a number: {score!r}")  # noqa: TRY004
        if not math.isfinite(score):
            raise ValueError(f"the score of branch {branch_id!r} is not finite: {score!r}")


def to_wire(scores: Mapping[str, float]) -> dict[str, Score]:
    """Return `scores` with each non-finite one as its word."""
    return {
        branch_id: float(score) if math.isfinite(score) else NonFinite(str(float(score)))
        for branch_id, score in scores.items()
    }


def from_wire(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return `scores` as floats."""
    return {branch_id: float(score) for branch_id, score in scores.items()}
