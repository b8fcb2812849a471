"""The published quantities of four decisions that were made up for it."""

import pytest
from msgspec.structs import replace

from calibrate.power.published import REPORTED, Published, published
from calibrate.power.stage import Staged
from calibrate.statistics import Rate
from harness.records import CommitRecord, ReplayRecord
from tests.examples import a_commit, a_replay

WIDE, NARROW = {"a": 1.5, "b": 0.25, "c": -2.0}, {"a": 1.5, "b": 1.49, "c": -2.0}
VECTORS = {
    "stands": (WIDE, {}),
    "moves": (WIDE, {"b": 0.28}),
    "flips": (NARROW, {"b": 1.52}),
    "is lost": (WIDE, {"c": float("nan")}),
}
"""Decision -> committed scores, and what changes in smaller batches."""


def a_decision(name: str, scores: dict[str, float]) -> CommitRecord:
    return a_commit(decision_id=name, commit_id=name, scores=scores)


def replays(changes: dict[str, dict[str, float]]) -> tuple[ReplayRecord, ...]:
    return tuple(
        a_replay(decision_id=name, commit_id=name, scores={**scores, **changes.get(name, {})})
        for name, (scores, _) in VECTORS.items()
    )


MOVED = {name: change for name, (_, change) in VECTORS.items()}
STAGED = Staged(
    commits=tuple(a_decision(name, scores) for name, (scores, _) in VECTORS.items()),
    honest=(replays({}),),
    reconstruction=replays(MOVED),
    retried=replays(MOVED),
    elsewhere=replays({"flips": {"b": 1.51}}),
    planted=(),
)


def counts(rate: Rate | None) -> tuple[int, int] | None:
    return None if rate is None else (rate.num_events, rate.num_trials)


def found(our_faults: tuple[bool, ...] = (False,) * 4, **changes: object) -> Published:
    return published(replace(STAGED, **changes), our_faults)


def test_what_is_reproduced() -> None:
    assert counts(found().winner_reproduced) == (2, 4)
    assert counts(found().vector_reproduced) == (1, 4)
    assert found().largest_shift == pytest.approx(0.03)


def test_gaps_are_those_of_changed_winners() -> None:
    """The lost decision has no winner either; its gap is wide."""
    assert counts(found().flips_below_gap) == (1, 2)
    assert counts(found().decisions_below_gap) == (1, 4)
    assert found().largest_flipped_gap == 1.25
    only = found(reconstruction=replays({"flips": MOVED["flips"]}))
    assert only.largest_flipped_gap == pytest.approx(0.01)


def test_a_retry_recurs_when_what_diverged_diverges_again() -> None:
    assert counts(found().retry_recurrence) == (3, 3)
    assert counts(found().retry_elsewhere) == (1, 3)
    calm = found(reconstruction=replays({}))
    assert (calm.retry_recurrence, calm.flips_below_gap, calm.largest_flipped_gap) == (None,) * 3
    assert counts(calm.vector_reproduced) == (4, 4)


def test_a_false_replan_is_one_where_the_winner_stood() -> None:
    """`moves` alone: the vector differs and the winner is the same."""
    assert counts(found().naive_replans) == (1, 4)
    assert counts(found().our_replans) == (0, 4)
    assert counts(found(our_faults=(False, True, True, True)).our_replans) == (1, 4)


def test_every_reported_figure_stands_beside_a_measured_one() -> None:
    assert [one.field for one in REPORTED] == list(Published.__struct_fields__)
