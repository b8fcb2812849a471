"""Whether every score is a finite number."""

from collections.abc import Mapping, Sequence

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of, some_of
from calibrate.sensitivity import Scores
from harness.records import GuardFinding

__all__ = ["finite"]


def finite(arms: Mapping[str, Scores], row_names: Sequence[str] = ()) -> GuardFinding:
    """Return whether every score of every arm is finite.

    `arms` maps a name (precision and composition) to `[rows]`; `row_names` are used in the
    evidence, and numbers where they are not given.
    """
    num_scores = sum(scores.size for scores in arms.values())
    if not num_scores:
        return finding(GuardName.FINITE, [NOTHING_COMPARED], "")
    listed = [
        f"{wrong.size} of {scores.size} scores are not finite in {arm}: "
        + some_of(f"row {name_of(row, row_names)} ({scores[row]})" for row in wrong)
        for arm, scores in arms.items()
        if (wrong := np.flatnonzero(~np.isfinite(scores))).size
    ]
    problems = [some_of(listed)] if listed else []
    return finding(GuardName.FINITE, problems, f"{num_scores} scores in {len(arms)} score vectors")
