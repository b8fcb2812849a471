"""The quantities that the original report of score drift gives, as this build shows them.

Its setting: three candidates a step, speculative batches of 12, replays in batches of 3, retries,
and an audit that re-plans a step when its replay does not give the committed scores.

How each is counted here:

* a vector is reproduced when every score has the same bits, a winner when the same branch wins;
* a gap is the distance between the two best committed scores; gaps are those of the decisions whose
  winner was not reproduced;
* a retry recurs when a replay that did not reproduce the vector does not reproduce it again, either
  executed again as it was, or with the decision in another batch of that size;
* a re-plan is false when nothing was wrong and the winner stood: under the naive rule every vector
  that is not reproduced is re-planned, under ours every fault, of the replay in smaller batches or
  of the committed computation executed again. The report's 11.8 % is its 99.2 % less its 87.4 %.

Nothing is tuned to the report. It was another model on another machine.
"""

from collections.abc import Sequence

from calibrate.power.detection import rate, rate_if_any
from calibrate.power.stage import Staged
from calibrate.statistics import Rate
from harness.judge.movement import incomparable, movement
from harness.judge.ranking import margin, winner
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.document import Record

__all__ = [
    "REPORTED",
    "SMALL_GAP",
    "Published",
    "Reported",
    "largest_shift",
    "published",
    "reproduces",
]

SMALL_GAP = 0.03
"""The gap below which the report saw its disagreement, in the score unit."""


class Published(Record, frozen=True, kw_only=True):
    """The report's quantities, measured."""

    winner_reproduced: Rate
    """Replays in smaller batches with the committed winner."""
    vector_reproduced: Rate
    """Replays in smaller batches with every score's bits."""
    flips_below_gap: Rate | None
    """Of the decisions whose winner changed, those with a gap below `SMALL_GAP`; None for none."""
    decisions_below_gap: Rate | None
    """Of all decisions, those with such a gap; None where none has two branches."""
    largest_flipped_gap: float | None
    """Largest gap of a decision whose winner changed; None for none."""
    largest_shift: float | None
    """Largest movement of a score; None when no replay can be compared."""
    retry_recurrence: Rate | None
    """Of the replays that diverged, those that diverge when executed again; None for none."""
    retry_elsewhere: Rate | None
    """Of the same, those that diverge in another batch of that size; None for none."""
    naive_replans: Rate
    """False re-plans under the naive rule."""
    our_replans: Rate
    """False re-plans under ours."""


class Reported(Record, frozen=True, kw_only=True):
    """One quantity as the report gives it."""

    field: str
    """The field of `Published` that stands beside it."""
    words: str
    """What it is."""
    figure: str
    """What the report gives."""


REPORTED = (
    Reported(field="winner_reproduced", words="winner reproduced", figure="99.2 %"),
    Reported(field="vector_reproduced", words="full vector reproduced", figure="87.4 %"),
    Reported(field="flips_below_gap", words="changed winners with a gap < 0.03", figure="most"),
    Reported(field="decisions_below_gap", words="all decisions with a gap < 0.03", figure="-"),
    Reported(field="largest_flipped_gap", words="largest gap of a changed winner", figure="0.03"),
    Reported(field="largest_shift", words="largest shift", figure="0.04"),
    Reported(field="retry_recurrence", words="retry recurs, same batch", figure="61 %"),
    Reported(field="retry_elsewhere", words="retry recurs, another batch", figure="61 %"),
    Reported(field="naive_replans", words="false re-plans, naive rule", figure="11.8 %"),
    Reported(field="our_replans", words="false re-plans, our rule", figure="< 0.5 %"),
)
"""In the order they are told. The report does not say which kind of retry it counts."""


def published(staged: Staged, our_faults: Sequence[bool]) -> Published:
    """Return the quantities; `our_faults` are the decisions that our rule calls a fault."""
    commits, replays = staged.commits, staged.reconstruction
    gaps = [margin(commit.scores) for commit in commits]
    kept = [_keeps_winner(*pair) for pair in zip(commits, replays, strict=True)]
    same = _reproduced(commits, replays)
    flipped = [gap for gap, keeps in zip(gaps, kept, strict=True) if not keeps and gap is not None]
    return Published(
        winner_reproduced=rate(kept),
        vector_reproduced=rate(same),
        flips_below_gap=rate_if_any(gap < SMALL_GAP for gap in flipped),
        decisions_below_gap=rate_if_any(gap < SMALL_GAP for gap in gaps if gap is not None),
        largest_flipped_gap=max(flipped, default=None),
        largest_shift=largest_shift(commits, replays),
        retry_recurrence=_recurrence(same, _reproduced(commits, staged.retried)),
        retry_elsewhere=_recurrence(same, _reproduced(commits, staged.elsewhere)),
        naive_replans=rate(keeps and not one for keeps, one in zip(kept, same, strict=True)),
        our_replans=rate(keeps and fault for keeps, fault in zip(kept, our_faults, strict=True)),
    )


def reproduces(commit: CommitRecord, replay: ReplayRecord) -> bool:
    """Return whether every score has the committed bits."""
    scores = replay.numeric_scores()
    return (
        incomparable(commit.scores, scores) is None
        and movement(commit.scores, scores).bitwise_equal
    )


def largest_shift(commits: Sequence[CommitRecord], replays: Sequence[ReplayRecord]) -> float | None:
    """Return the largest movement of a score; None when no replay can be compared."""
    vectors = [(c.scores, r.numeric_scores()) for c, r in zip(commits, replays, strict=True)]
    return max((movement(*pair).delta for pair in vectors if not incomparable(*pair)), default=None)


def _recurrence(before: Sequence[bool], after: Sequence[bool]) -> Rate | None:
    """Return how often what was not reproduced before is not reproduced after."""
    return rate_if_any(not again for once, again in zip(before, after, strict=True) if not once)


def _reproduced(commits: Sequence[CommitRecord], replays: Sequence[ReplayRecord]) -> list[bool]:
    return [reproduces(*pair) for pair in zip(commits, replays, strict=True)]


def _keeps_winner(commit: CommitRecord, replay: ReplayRecord) -> bool:
    scores = replay.numeric_scores()
    return incomparable(commit.scores, scores) is None and winner(commit.scores) == winner(scores)
