"""Axes of batches that were asked of a foreign server: what is planted in one is found in it."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrate.axes import Axis, AxisRows, compare_axes, required_axes
from calibrate.compositions import Composition, plan_compositions
from calibrate.config import Sweep
from calibrate.flight_compositions import FlightTraits, flight_traits
from calibrate.requested_axes import RequestedPlacement, as_requested
from harness.conditions.batching import RowShape
from harness.conditions.flight import Flight
from harness.records.batching import InFlight
from harness.records.engine import Endpoint
from harness.records.tolerance import AxisStatus
from harness.records.verifier import LogOdds
from tests.calibrate.example_runs import an_arm
from tests.verifiers.cases import a_spec

TRAITS = FlightTraits(is_foreign=True)
LENGTHS = np.array([12 + at * 5 % 9 for at in range(60)])
OWNERS = np.arange(60) // 3
Planted = Callable[[RequestedPlacement], NDArray[np.int64]]


def compositions(max_rows: int = 8) -> tuple[Composition, ...]:
    rows = [RowShape(num_tokens=int(n), decision_id=str(at)) for at, n in enumerate(LENGTHS)]
    arm = an_arm(batching=InFlight(max_rows=max_rows))
    return plan_compositions(rows, arm, Sweep(rows=(2, 5), reference_rows=4), 0, TRAITS)


def evidence(planted: Planted, max_rows: int = 8) -> tuple[AxisRows, ...]:
    places = [RequestedPlacement(one, LENGTHS) for one in compositions(max_rows)]
    scores = {place.name: planted(place).astype(np.float64) for place in places}
    return tuple(map(as_requested, compare_axes(places, scores, OWNERS)))


def moved(planted: Planted) -> set[Axis]:
    found = {rows.axis: rows.finding(0.95).status for rows in evidence(planted)}
    assert AxisStatus.NOT_EXERCISED not in found.values()
    return {axis for axis, status in found.items() if status is AxisStatus.MOVED} - {Axis.COMBINED}


def test_a_foreign_server_is_asked_for_nothing_but_who_comes_together() -> None:
    found = compositions()
    names = [one.name for one in found]
    assert {"rows-4", "solo", "reversed-4", "shuffled-8", "again-rows-4"} <= set(names)
    for one in found:
        assert {batch.flight for batch in one.batches} == {Flight()}
        seen = Counter(at for batch in one.batches for at in batch.rows)
        assert seen == Counter(range(len(LENGTHS))), one.name


def test_traits_of_an_endpoint_are_foreign() -> None:
    engine = Endpoint(urls={"float32": "http://h"}, served_model="m", gate=True)
    judge = a_spec("m", LogOdds(yes=("y",), no=("n",)), engine=engine, reasoning_tokens=3)
    assert flight_traits(judge) == FlightTraits(is_foreign=True, gathers=True, num_reasoning=3)


@pytest.mark.parametrize(
    ("attribute", "axes"),
    [
        ("num_rows", {Axis.NUM_ROWS}),
        ("moment", {Axis.ROW_ORDER, Axis.COMPANIONS, Axis.NUM_ROWS, Axis.ARRIVAL_ORDER}),
        ("arrangement", {Axis.ARRIVAL_ORDER, Axis.COMPANIONS, Axis.NUM_ROWS}),
        ("slot", {Axis.ARRIVAL_ORDER}),
    ],
)
def test_what_moves_scores_is_found_on_its_axis(attribute: str, axes: set[Axis]) -> None:
    assert moved(lambda place: getattr(place, attribute)) == axes


def test_nothing_planted_is_nothing_found() -> None:
    assert moved(lambda place: np.zeros_like(place.slot)) == set()


def test_all_but_the_moment_must_be_exercised() -> None:
    place = RequestedPlacement(compositions()[0], LENGTHS)
    needed = required_axes(InFlight(max_rows=8), place.rules)
    assert set(needed) == {Axis.NUM_ROWS, Axis.COMPANIONS, Axis.ARRIVAL_ORDER}


def test_every_finding_says_that_it_was_requested() -> None:
    for rows in evidence(lambda place: place.num_rows):
        assert rows.settings[0].startswith("requested, not observed"), rows.axis
        fresh = rows.axis is Axis.REPEAT_FRESH_PROCESS
        assert rows.settings[0].endswith("the same server") == fresh
    unexercised = evidence(lambda place: place.num_rows, max_rows=1)
    assert [rows.axis for rows in unexercised if not rows.settings]
