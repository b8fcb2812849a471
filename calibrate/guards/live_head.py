"""Whether the head is alive: scores follow the input, and every load has the same weights.

Not known here: a row read at a wrong place that still depends on the branch; a part that is
initialised anew but with the same seed at every load, which only the loader's own check for missing
weights sees.
"""

import math

import numpy as np

from calibrate.guards.finding import NOTHING_COMPARED, GuardName, finding, name_of, some_of
from calibrate.sensitivity import Indices, Scores
from harness.conditions.precision import unit_roundoff
from harness.errors import InvalidRecordError
from harness.records import GuardFinding, PrecisionName
from harness.records.document import Record

__all__ = ["HeadEvidence", "live_head"]


class HeadEvidence(Record, frozen=True, kw_only=True, eq=False):
    """Scores of one arm, and of fresh processes under the identical condition."""

    precision: PrecisionName
    """The arm's precision."""
    scores: Scores
    """`[rows]`."""
    fresh_scores: tuple[Scores, ...]
    """One `[rows]` for each further load in a process of its own."""
    decision_of_row: Indices
    """`[rows]`: the decision of each row."""
    weights_digests: tuple[str, ...]
    """Digest of the weights, one for every load of every arm."""
    fine_scores: Scores = np.zeros(0)
    """`[fine rows]`: the first of the same rows in the reference precision, where chance makes no
    two scores equal; empty where branches may share what is scored, as reduced steps do."""
    contents: tuple[str, ...] = ()
    """Digest of what each row holds; empty for all unlike."""
    names: tuple[str, ...] = ()
    """Decision ids for the evidence; empty to number them."""

    def __post_init__(self) -> None:
        """All scores are over the same rows, the fine ones over the first of them."""
        if self.fine_scores.ndim != 1 or self.fine_scores.size > self.decision_of_row.size:
            raise InvalidRecordError(f"fine scores are `[rows]`: found {self.fine_scores.shape}")
        shape = self.decision_of_row.shape
        for scores in (self.scores, *self.fresh_scores):
            if scores.ndim != 1 or scores.shape != shape:
                raise InvalidRecordError(f"scores are not `[rows]` {shape}: found {scores.shape}")


def live_head(evidence: HeadEvidence) -> GuardFinding:
    """Return whether the scores follow the input and every load has the same head.

    A fresh load under the identical condition may differ by rounding, about u x the spread of the
    scores; a head initialised anew differs by about the spread. The boundary is again the midpoint
    in logarithms, sqrt(u), for the mean difference. A smaller part initialised anew is for
    `rounding` to find: give it the fresh repeats among its compositions.
    """
    if evidence.scores.size == 0:
        return finding(GuardName.LIVE_HEAD, [NOTHING_COMPARED], "")
    if not all(np.isfinite(s).all() for s in (evidence.scores, *evidence.fresh_scores)):
        return finding(GuardName.LIVE_HEAD, [f"non-finite scores in {evidence.precision}"], "")
    dead = _dead(evidence) or _unread(evidence)
    problems = [problem for problem in (dead, *_reloaded(evidence)) if problem]
    summary = (
        f"{evidence.precision}: {np.unique(evidence.scores).size} distinct scores in "
        f"{evidence.scores.size} rows, standard deviation {evidence.scores.std():.3g}; "
        f"{len(evidence.weights_digests)} loads with equal weights; "
        f"{len(evidence.fresh_scores)} fresh loads differ by at most {_farthest(evidence):.3g}"
    )
    return finding(GuardName.LIVE_HEAD, problems, summary)


def _dead(evidence: HeadEvidence) -> str | None:
    if np.ptp(evidence.scores) == 0:
        return (
            f"the head is constant: {evidence.scores[0]} for all {evidence.scores.size} rows "
            f"in {evidence.precision}"
        )
    decisions, counts = np.unique(evidence.decision_of_row, return_counts=True)
    if counts.max() > 1 and not _varies_within(evidence.scores, evidence.decision_of_row):
        return (
            f"the branch does not matter: within each of {decisions.size} decisions all scores "
            f"are equal in {evidence.precision}"
        )
    return None


def _unread(evidence: HeadEvidence) -> str | None:
    """Say which decisions score all of their unlike branches alike in the reference precision.

    A row that is read before its branch begins does that: pooled at a pad token's id inside the
    prompt, say. Nothing is said where the reference's scores lie on a lattice so coarse that
    decisions share scores too.
    """
    values: dict[int, dict[str, float]] = {}
    for row, score in enumerate(evidence.fine_scores):
        content = evidence.contents[row] if evidence.contents else str(row)
        values.setdefault(int(evidence.decision_of_row[row]), {})[content] = float(score)
    contents = {content: score for mine in values.values() for content, score in mine.items()}
    per_decision = {(at, score) for at, mine in values.items() for score in mine.values()}
    shared = len(per_decision) > len(set(contents.values()))
    tied = [at for at, mine in values.items() if len(mine) > 1 and len(set(mine.values())) == 1]
    if shared or not tied:
        return None
    named = some_of(name_of(np.intp(at), evidence.names) for at in tied)
    return (
        f"the branch does not matter in {len(tied)} of {len(values)} decisions: all of their "
        f"branches have one and the same score in the reference precision too ({named})"
    )


def _varies_within(scores: Scores, decision_of_row: Indices) -> bool:
    by_decision = np.lexsort((scores, decision_of_row))
    same_decision = np.diff(decision_of_row[by_decision]) == 0
    return bool((np.diff(scores[by_decision])[same_decision] > 0).any())


def _reloaded(evidence: HeadEvidence) -> list[str]:
    problems = []
    if len(set(evidence.weights_digests)) != 1:
        problems.append(f"weights differ between loads: {list(evidence.weights_digests)}")
    if not evidence.fresh_scores:
        problems.append(f"{NOTHING_COMPARED}: no fresh load was scored")
    allowed = math.sqrt(unit_roundoff(evidence.precision)) * _spread(evidence.scores)
    for load, fresh in enumerate(evidence.fresh_scores, start=1):
        apart = float(np.abs(fresh - evidence.scores).mean())
        if apart > allowed:
            problems.append(
                f"fresh load {load} differs under the identical condition by {apart:.3g} in the "
                f"mean over {fresh.size} rows in {evidence.precision}, where rounding allows "
                f"{allowed:.3g}"
            )
    return problems


def _spread(scores: Scores) -> float:
    return float(np.abs(scores - np.median(scores)).mean())


def _farthest(evidence: HeadEvidence) -> float:
    apart = (float(np.abs(fresh - evidence.scores).max()) for fresh in evidence.fresh_scores)
    return max(apart, default=0.0)
