"""Commit records and replay records: a score vector with the invocation that produced it."""

from enum import StrEnum

from msgspec.structs import force_setattr

from harness.codec import digest
from harness.errors import InvalidRecordError
from harness.records.document import Document
from harness.records.invocation import Invocation
from harness.records.scores import Score, finite_scores, from_wire, to_wire

__all__ = ["CommitRecord", "ReplayRecord", "ScoreUnit", "commit_id_of"]


class ScoreUnit(StrEnum):
    """Space in which scores are compared."""

    LOGIT = "logit"
    """Raw logits, log-odds, log-likelihoods: natural-log units."""
    GRADE = "grade"
    """Units of the grading scale."""


class CommitRecord(Document, frozen=True, kw_only=True):
    """Scores of one decision's branches, written when they were computed."""

    commit_id: str
    """Unique in its log."""
    decision_id: str
    """The decision that was scored."""
    scores: dict[str, float]
    """Branch id -> score in `score_unit`, all finite, `[branches]`."""
    invocation: Invocation
    """How they were computed, as resolved."""
    committed: bool = True
    """Whether the planner acted on them; false for a speculative run."""
    winner: str | None = None
    """The branch that was acted on, if one was."""
    score_unit: ScoreUnit = ScoreUnit.LOGIT
    """Space of the scores."""
    num_truncated: int = 0
    """Branches whose rows lost tokens to the length limit."""

    def __post_init__(self) -> None:
        """A commit is finite, complete, and its winner is one of its branches."""
        force_setattr(self, "scores", finite_scores(self.scores))
        if self.winner is not None and self.winner not in self.scores:
            message = f"the winner {self.winner!r} is not among the scored branches"
            raise InvalidRecordError(message)
        unscored = self.invocation.batch_membership.branch_ids - self.scores.keys()
        if unscored:
            raise InvalidRecordError(f"branch {min(unscored)!r} was computed but has no score")


class ReplayRecord(Document, frozen=True, kw_only=True):
    """Scores of the same decision, computed again."""

    commit_id: str
    """The commit that this replays."""
    decision_id: str
    """The decision that was scored."""
    scores: dict[str, Score]
    """Branch id -> score; a non-finite one is kept as ``nan``, ``inf`` or ``-inf``."""
    invocation: Invocation
    """How they were computed, as resolved."""
    replica: str = ""
    """Name of the server that replayed; the drift alarm is kept per replica."""
    notes: tuple[str, ...] = ()
    """What could not be reconstructed, in words."""

    def __post_init__(self) -> None:
        """A replay's score is a number or the word for one that is not finite."""
        force_setattr(self, "scores", to_wire(self.scores))

    def numeric_scores(self) -> dict[str, float]:
        """Return the scores as floats, non-finite ones included."""
        return from_wire(self.scores)


def commit_id_of(decision_id: str, scores: dict[str, float], invocation: Invocation) -> str:
    """Return an id that is the same for the same decision, scores and invocation."""
    return digest([decision_id, finite_scores(scores), invocation]).removeprefix("sha256:")[:16]
