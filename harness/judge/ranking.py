"""Decides the order of a decision's branches, and what a movement of their scores would change.

Rules kept here:

* scores within the tolerance are ties, and ties are ordered by branch id;
* "within" is made an equivalence by leaders: branches are taken from the highest score down, and
  each joins the group whose leader, its highest score, is at most the tolerance above it, or else
  leads the next group. A chain of small steps therefore never ties two scores further apart than
  the tolerance;
* the winner is the highest score, equal scores by branch id.

It does not know where the tolerance comes from. Groups have edges: a movement across one still
changes the order, which is why a decision whose margin is small is called fragile beforehand.
"""

from collections.abc import Mapping
from itertools import pairwise

from harness.judge.tolerances import check_tolerance
from harness.records.scores import check_finite
from harness.records.verdict import DecisionImpact

__all__ = ["decision_impact", "is_fragile", "margin", "stable_ranking", "winner"]


def stable_ranking(scores: Mapping[str, float], tolerance: float) -> tuple[str, ...]:
    """Return the branch ids from best to worst, scores within `tolerance` tied by branch id.

    Raises InvalidRecordError for an empty or non-finite score vector, InvalidToleranceError for a
    tolerance that is no finite number >= 0.
    """
    limit = check_tolerance(tolerance)
    groups: list[list[str]] = []
    leader = 0.0
    for branch_id in _from_best(scores):
        if not groups or not leader - scores[branch_id] <= limit:
            groups.append([])
            leader = scores[branch_id]
        groups[-1].append(branch_id)
    return tuple(branch_id for group in groups for branch_id in sorted(group))


def winner(scores: Mapping[str, float]) -> str:
    """Return the branch with the highest score; of equal ones the first by branch id."""
    return _from_best(scores)[0]


def margin(scores: Mapping[str, float]) -> float | None:
    """Return the gap between the two best scores; None for a single branch."""
    ranked = _from_best(scores)
    return scores[ranked[0]] - scores[ranked[1]] if len(ranked) > 1 else None


def is_fragile(scores: Mapping[str, float], tolerance: float) -> bool:
    """Return whether the margin is at most `tolerance`: another batch may name another winner.

    Two branches may move towards each other, so a margin is safe only beyond twice the envelope of
    a single score; pass the width that is to be guarded against.
    """
    gap, limit = margin(scores), check_tolerance(tolerance)
    return gap is not None and gap <= limit


def decision_impact(
    commit_scores: Mapping[str, float], replay_scores: Mapping[str, float], tolerance: float
) -> DecisionImpact:
    """Return what the replay's scores would have changed in the decision.

    Both hold the same branches. A pair is inverted when its order is strictly reversed; ties at
    commit or at replay are no inversion.
    """
    gaps = _inverted_gaps(commit_scores, replay_scores)
    return DecisionImpact(
        top1_changed=winner(commit_scores) != winner(replay_scores),
        order_inversions=len(gaps),
        within_tie=max(gaps, default=0.0) <= check_tolerance(tolerance),
    )


def _from_best(scores: Mapping[str, float]) -> list[str]:
    check_finite(scores)
    return sorted(scores, key=lambda branch_id: (-scores[branch_id], branch_id))


def _inverted_gaps(commit: Mapping[str, float], replay: Mapping[str, float]) -> list[float]:
    """Return the commit's gap of each strictly reversed pair.

    Equal ones at commit are ranked as the replay has them, so they are never reversed. Quadratic
    only in a vector whose order changed: where it did not, neighbours tell.
    """
    ranked = sorted(commit, key=lambda branch_id: (-commit[branch_id], -replay[branch_id]))
    if all(replay[better] >= replay[worse] for better, worse in pairwise(ranked)):
        return []
    return [
        commit[better] - commit[worse]
        for at, better in enumerate(ranked)
        for worse in ranked[at + 1 :]
        if replay[better] < replay[worse]
    ]
