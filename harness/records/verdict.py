"""Verdicts: what a replay says about a commit."""

from enum import StrEnum

from harness.records.document import Document, Record

__all__ = ["DecisionImpact", "DifferingParameter", "Policy", "Verdict", "VerdictKind"]


class VerdictKind(StrEnum):
    """The seven verdicts."""

    PLAN_NOISE = "plan_noise"
    """The scores never crossed the commit boundary: kept for calibration."""
    RECONSTRUCTION = "reconstruction"
    """Parameterised differently: an observation, whatever the scores."""
    UNJUDGED = "unjudged"
    """Identically parameterised, and no valid tolerance to judge by."""
    EXACT = "exact"
    """Bitwise equal."""
    CONSISTENT = "consistent"
    """Within the floor."""
    DRIFT = "drift"
    """Beyond the floor, within the envelope: an observation that feeds the alarm."""
    DIVERGENCE = "divergence"
    """Beyond the envelope, another branch set, or a non-finite score: the fault."""


class Policy(StrEnum):
    """How a drift is taken."""

    DEFAULT = "default"
    """As an observation."""
    STRICT = "strict"
    """As a fault."""


class DifferingParameter(Record, frozen=True, kw_only=True):
    """One parameter in which commit and replay differ."""

    name: str
    """``build``, ``batch_membership``, ``precision_mode`` or ``reduction_order``, with the part."""
    commit: str
    """Value at commit."""
    replay: str
    """Value at replay."""


class DecisionImpact(Record, frozen=True, kw_only=True):
    """What the movement would have changed in the decision."""

    top1_changed: bool
    """Whether another branch would have won."""
    order_inversions: int
    """Pairs of branches whose order is reversed."""
    within_tie: bool
    """Whether every reversed pair lay within the tolerance at commit."""


class Verdict(Document, frozen=True, kw_only=True):
    """The judgement of one replay, with all it rests on."""

    commit_id: str
    """The commit."""
    decision_id: str
    """The decision."""
    replica: str
    """The server that replayed."""
    kind: VerdictKind
    """The verdict."""
    fault: bool
    """Whether it is a fault under the policy."""
    reason: str
    """Why, in one sentence."""
    delta: float | None = None
    """Largest movement of a score, in the score unit; None when scores were not compared."""
    worst_branch: str | None = None
    """The branch that moved most."""
    floor: float | None = None
    """Floor of the tolerance used."""
    envelope: float | None = None
    """Envelope of the tolerance used."""
    tolerance_id: str | None = None
    """The tolerance used."""
    differing: tuple[DifferingParameter, ...] = ()
    """Parameters that differ."""
    impact: DecisionImpact | None = None
    """What the movement would have changed."""
