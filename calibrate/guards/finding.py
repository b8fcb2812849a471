"""A guard's finding: passed or not, with what was compared, how much of it, and what was seen.

Rules: zero items compared is a failed guard, never a passed one; a finding names its first few
rows or decisions and counts the rest.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np

from harness.records import GuardFinding

__all__ = ["NOTHING_COMPARED", "GuardName", "finding", "name_of", "some_of"]

NOTHING_COMPARED = "comparison over zero items"
NUM_NAMED = 3  # rows or decisions named in one finding; the rest are counted


class GuardName(StrEnum):
    """The guards."""

    ROUNDING = "rounding"
    """Movement shrinks with the unit roundoff."""
    NEIGHBOURS = "neighbours"
    """At a fixed shape a neighbour's content moves no bit, or the build is marked."""
    LIVE_HEAD = "live_head"
    """Scores follow the input, and every load has the same weights."""
    DISTINCT_ARMS = "distinct_arms"
    """Two arms that claim to differ do."""
    FINITE = "finite"
    """Every score is a finite number."""
    OWN_ERROR = "own_error"
    """The distance from float64 is what rounding gives."""
    INVARIANCE = "invariance"
    """A batch-invariant order moves nothing, and the vendor's order beside it does."""
    CANARY = "canary"
    """Faults planted in a copy of the scores are refused."""


def finding(guard: GuardName, problems: Sequence[str], summary: str) -> GuardFinding:
    """Return the finding: passed when there are no problems; `summary` says what was compared."""
    evidence = "; ".join((*problems, summary)) if summary else "; ".join(problems)
    return GuardFinding(guard=guard, passed=not problems, evidence=evidence)


def name_of(index: np.intp, names: Sequence[str]) -> str:
    """Return the name of a row or decision for the evidence, its number where there is none."""
    return repr(names[int(index)]) if names else str(index)


def some_of(items: Iterable[str]) -> str:
    """Return the first few of `items` as one text, and how many more there are."""
    listed = list(items)
    rest = len(listed) - NUM_NAMED
    return ", ".join(listed[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
