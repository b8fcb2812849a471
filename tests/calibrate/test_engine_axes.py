"""Axes of an engine's batches: what is planted in one is found in it."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrate.axes import GENERAL, Axis, compare_axes, required_axes
from calibrate.compositions import Composition, plan_compositions
from calibrate.config import Sweep
from calibrate.engine_axes import EnginePlacement, engine_rules
from calibrate.flight_compositions import FlightTraits
from harness.conditions.batching import Batch, RowShape
from harness.conditions.flight import EngineStep, Flight, StepSlot
from harness.errors import StoreError
from harness.records.batching import InFlight
from harness.records.tolerance import AxisStatus
from tests.calibrate.example_runs import an_arm
from tests.calibrate.imagined_engine import imagined_steps

TRAITS = FlightTraits(decodes=True, caches_prefixes=True, chunks=True)
LENGTHS = np.array([12 + at * 5 % 9 for at in range(60)])
OWNERS = np.arange(60) // 3


def compositions(traits: FlightTraits) -> tuple[Composition, ...]:
    rows = [RowShape(num_tokens=int(n), decision_id=str(at)) for at, n in enumerate(LENGTHS)]
    arm = an_arm(batching=InFlight(max_rows=8))
    return plan_compositions(rows, arm, Sweep(rows=(2, 5), reference_rows=4), 0, traits)


def placed(traits: FlightTraits = TRAITS) -> list[EnginePlacement]:
    def steps(batch: Batch) -> tuple[EngineStep, ...]:
        return imagined_steps(batch, LENGTHS.tolist(), num_reasoning=traits.num_reasoning, cached=8)

    return [
        EnginePlacement(one, [steps(batch) for batch in one.batches], LENGTHS, traits)
        for one in compositions(traits)
    ]


Planted = Callable[[EnginePlacement], NDArray[np.int64]]


def moved(planted: Planted, traits: FlightTraits = TRAITS) -> set[Axis]:
    """Return the axes in which scores that follow `planted` are found to move."""
    places = placed(traits)
    scores = {place.name: planted(place).astype(np.float64) for place in places}
    return {
        rows.axis
        for rows in compare_axes(places, scores, OWNERS)
        if rows.finding(0.95).status is AxisStatus.MOVED
    }


def by(name: str) -> Planted:
    return lambda place: getattr(place, name)


def test_every_axis_is_exercised_and_nothing_moves_where_nothing_is_planted() -> None:
    places = placed()
    scores = {place.name: np.ones(len(LENGTHS)) for place in places}
    found = compare_axes(places, scores, OWNERS)
    assert [rows.axis for rows in found] == [
        axis for axis in Axis if axis in GENERAL or axis in engine_rules(TRAITS)
    ]
    statuses = {rows.axis: rows.finding(0.95).status for rows in found}
    exercised = {axis for axis, status in statuses.items() if status is AxisStatus.INVARIANT}
    assert exercised == set(statuses)


ALONE = {
    Axis.PREFIX_CACHE: "cached",
    Axis.CHUNK_BOUNDARIES: "chunks",
    Axis.PREEMPTION: "preempted",
    Axis.DECODES_BESIDE: "decodes",
}


@pytest.mark.parametrize("axis", ALONE)
def test_what_follows_one_axis_is_found_in_it_alone(axis: Axis) -> None:
    found = moved(by(ALONE[axis])) - {Axis.COMBINED}
    # A prompt that begins anew, or out of the cache, is cut at other places.
    others = {Axis.PREFIX_CACHE, Axis.PREEMPTION} if axis is Axis.CHUNK_BOUNDARIES else set()
    assert axis in found
    assert found <= {axis, *others}


def test_the_number_of_rows_is_told_from_what_they_do() -> None:
    found = moved(by("num_rows"))
    assert Axis.NUM_ROWS in found
    assert found.isdisjoint({Axis.ROW_POSITION, Axis.COMPANIONS, Axis.POSITION_IN_STEP})


def test_a_neighbours_content_is_told_from_its_shape() -> None:
    found = moved(by("members"))
    assert Axis.COMPANIONS in found
    assert Axis.COMPANIONS not in moved(by("shape"))
    assert Axis.COMPANIONS not in moved(by("prefills"))


def test_repeats_are_never_told_to_move_by_what_a_plan_says() -> None:
    for name in ("members", "shape", "arrangement", "arrivals", "offset"):
        assert moved(by(name)).isdisjoint({Axis.REPEAT_SAME_PROCESS, Axis.REPEAT_FRESH_PROCESS})


def test_a_reasoning_judge_exercises_the_number_of_rows() -> None:
    traits = FlightTraits(decodes=True, chunks=True, num_reasoning=3)
    assert Axis.NUM_ROWS in moved(by("num_rows"), traits)


def one_flight(*steps: tuple[tuple[int, int, int], ...], extra: int = 0) -> EnginePlacement:
    """Return the placement of two rows of 10 and 12 tokens in one flight with these steps."""
    batch = Batch(rows=(0, 1), width=12, side=None, flight=Flight(extra_tokens=extra))
    ran = tuple(
        EngineStep(
            slots=tuple(
                StepSlot(request=r, num_tokens=n, num_computed_tokens=c) for r, n, c in step
            )
        )
        for step in steps
    )
    composition = Composition(name="one", batches=(batch,))
    return EnginePlacement(composition, [ran], np.array([10, 12]), TRAITS)


def test_a_row_is_described_by_its_own_steps() -> None:
    place = one_flight(((0, 10, 0), (1, 4, 0)), ((0, 1, 10), (1, 8, 4)))
    assert place.num_rows.tolist() == [2, 2]
    assert place.slot.tolist() == [0, 1]
    assert place.offset.tolist() == [0, 1]
    assert place.prefills.tolist() == [4, 10]  # the first row's score was read in the first step
    assert place.decodes.tolist() == [0, 1]
    assert place.cached.tolist() == [0, 0]
    assert place.chunks[0] != place.chunks[1]


def test_what_an_engine_did_after_the_score_does_not_count() -> None:
    short = one_flight(((0, 10, 0), (1, 12, 0)))
    long = one_flight(((0, 10, 0), (1, 12, 0)), ((0, 1, 10), (1, 1, 12)), extra=1)
    for name in ("num_rows", "members", "shape", "arrangement", "chunks", "decodes"):
        assert getattr(short, name).tolist() == getattr(long, name).tolist(), name


def test_a_request_that_began_anew_was_preempted_once() -> None:
    place = one_flight(((0, 6, 0), (1, 12, 0)), ((0, 6, 0),), ((0, 4, 6),))
    assert place.preempted.tolist() == [1, 0]
    assert place.cached.tolist() == [0, 0]
    twice = one_flight(((0, 6, 0), (1, 12, 0)), ((0, 6, 0),), ((0, 10, 0),))
    assert twice.preempted.tolist() == [2, 0]


def test_tokens_out_of_the_cache_are_counted() -> None:
    assert one_flight(((0, 2, 8), (1, 12, 0))).cached.tolist() == [8, 0]


def test_steps_that_end_too_early_are_refused() -> None:
    with pytest.raises(StoreError, match="end before its score was read"):
        one_flight(((0, 10, 0), (1, 4, 0)))


def test_all_axes_of_the_engine_are_needed_for_equal_memberships() -> None:
    rules = engine_rules(TRAITS)
    needed = required_axes(InFlight(max_rows=8), rules)
    assert set(needed) == set(rules) - {Axis.ROW_ORDER}
    assert required_axes(InFlight(max_rows=1), rules) == (Axis.ROW_ORDER,)
    fewer = engine_rules(FlightTraits())
    assert Axis.PREFIX_CACHE not in fewer
    assert Axis.DECODES_BESIDE not in fewer
    assert Axis.PREEMPTION not in fewer
