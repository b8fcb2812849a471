from collections.abc import Callable

import numpy as np
import pytest

from calibrate.axes import (
    GENERAL,
    PADDED_RULES,
    Axis,
    AxisRows,
    Placement,
    compare_axes,
    required_axes,
)
from calibrate.compositions import plan_compositions
from calibrate.config import Sweep
from calibrate.sensitivity import Scores
from harness.conditions.batching import RowShape
from harness.records import AxisStatus
from harness.records.batching import Batching, FixedWidth, Padded, Solo
from tests.calibrate.example_runs import an_arm

LENGTHS = np.array([5 + at * 7 % 23 for at in range(240)])
DECISIONS = np.arange(240) // 2
PADDED = Padded(max_rows=8)

Planted = Callable[[Placement], Scores]


def placements(batching: Batching = PADDED, lengths: Scores = LENGTHS) -> list[Placement]:
    rows = [RowShape(num_tokens=int(n), decision_id=f"d{i // 2}") for i, n in enumerate(lengths)]
    sweep = Sweep(rows=(2, 3, 4), reference_rows=4)
    compositions = plan_compositions(rows, an_arm(batching=batching), sweep, seed=0)
    return [Placement(composition, np.asarray(lengths)) for composition in compositions]


def compared(planted: Planted, batching: Batching = PADDED) -> dict[Axis, AxisRows]:
    """Return every axis's evidence when each row's score is 1 and what `planted` adds."""
    places = placements(batching)
    scores = {place.name: 1.0 + planted(place) for place in places}
    return {rows.axis: rows for rows in compare_axes(places, scores, DECISIONS)}


def moved(planted: Planted, batching: Batching = PADDED) -> set[Axis]:
    return {
        axis
        for axis, rows in compared(planted, batching).items()
        if rows.finding(0.95).status is AxisStatus.MOVED
    }


def by(name: str) -> Planted:
    """Return movement that follows one attribute of a placement, of any size."""
    return lambda place: (getattr(place, name) % 1009) / 1024


def nothing(place: Placement) -> Scores:
    return np.zeros(len(place.slot))


def when_padded(place: Placement) -> Scores:
    return place.padded * place.side / 1024


def test_nothing_planted_moves_nothing_and_everything_is_compared() -> None:
    found = compared(nothing)
    statuses = {axis: rows.finding(0.95).status for axis, rows in found.items()}
    assert set(statuses.values()) == {AxisStatus.INVARIANT}
    assert list(found) == [axis for axis in Axis if axis in {*PADDED_RULES, *GENERAL}]


ATTRIBUTED = {
    Axis.NUM_ROWS: {Axis.NUM_ROWS},
    Axis.PADDED_WIDTH: {Axis.PADDED_WIDTH},
    Axis.PADDING_SIDE: {Axis.PADDING_SIDE},
    Axis.ROW_POSITION: {Axis.ROW_POSITION},
    # other numbers of rows are other companions
    Axis.COMPANIONS: {Axis.COMPANIONS, Axis.NUM_ROWS},
}


@pytest.mark.parametrize("axis", ATTRIBUTED)
def test_movement_in_one_axis_is_found_there_and_nowhere_else(axis: Axis) -> None:
    planted = when_padded if axis is Axis.PADDING_SIDE else by(PADDED_RULES[axis].varied)
    assert moved(planted) == {*ATTRIBUTED[axis], Axis.COMBINED}


def test_one_bit_in_one_row_of_one_composition_is_found() -> None:
    def needle(place: Placement) -> Scores:
        return np.where(np.arange(240) == 77, place.side * 2.0**-52, 0.0)

    rows = compared(needle)[Axis.PADDING_SIDE]
    finding = rows.finding(0.95)
    assert (finding.num_scores_moved, finding.num_decisions_moved) == (1, 1)
    assert finding.max_movement == 2.0**-52
    assert set(rows.decision_of_row[rows.left != rows.right]) == {77 // 2}


def test_movement_of_a_row_that_is_not_padded_is_not_the_sides() -> None:
    def unpadded(place: Placement) -> Scores:
        return ~place.padded * place.side / 1024

    assert Axis.PADDING_SIDE not in moved(unpadded)


def test_movement_with_the_occasion_alone_is_the_repeats() -> None:
    def occasion(start: str) -> Planted:
        return lambda place: np.full(240, 0.5 if place.name.startswith(start) else 0.0)

    assert moved(occasion("again-")) == {Axis.REPEAT_SAME_PROCESS}
    assert moved(occasion("fresh-")) == {Axis.REPEAT_FRESH_PROCESS}


def test_alone_only_the_order_is_exercised() -> None:
    found = compared(by("moment"), Solo())
    statuses = {axis: rows.finding(0.95).status for axis, rows in found.items()}
    assert statuses == {
        Axis.NUM_ROWS: AxisStatus.NOT_EXERCISED,
        Axis.PADDED_WIDTH: AxisStatus.NOT_EXERCISED,
        Axis.PADDING_SIDE: AxisStatus.NOT_EXERCISED,
        Axis.ROW_POSITION: AxisStatus.NOT_EXERCISED,
        Axis.COMPANIONS: AxisStatus.NOT_EXERCISED,
        Axis.ROW_ORDER: AxisStatus.MOVED,
        Axis.COMBINED: AxisStatus.MOVED,
        Axis.REPEAT_SAME_PROCESS: AxisStatus.INVARIANT,
        Axis.REPEAT_FRESH_PROCESS: AxisStatus.INVARIANT,
    }
    assert found[Axis.NUM_ROWS].settings == ()


def test_a_fixed_width_exercises_no_width() -> None:
    found = compared(nothing, FixedWidth(width=32, max_rows=8))
    assert found[Axis.PADDED_WIDTH].finding(0.95).status is AxisStatus.NOT_EXERCISED
    assert found[Axis.PADDING_SIDE].finding(0.95).status is AxisStatus.INVARIANT


def test_what_was_compared_is_said_in_a_few_words() -> None:
    found = compared(nothing)
    assert found[Axis.NUM_ROWS].settings == ("1-4 rows", "8 rows")
    assert found[Axis.PADDED_WIDTH].settings == ("8 widths from 21 to 32 tokens",)
    assert found[Axis.PADDING_SIDE].settings == ("rows-4 / left-4",)
    assert len(found[Axis.COMBINED].settings) == 4
    assert found[Axis.COMBINED].settings[-1].startswith("and ")


REQUIRED: list[tuple[Batching, set[Axis]]] = [
    (Solo(), {Axis.ROW_ORDER}),
    (PADDED, {Axis.NUM_ROWS, Axis.PADDED_WIDTH, Axis.ROW_POSITION, Axis.COMPANIONS}),
    (FixedWidth(width=9), {Axis.NUM_ROWS, Axis.ROW_POSITION, Axis.COMPANIONS}),
]


@pytest.mark.parametrize(("batching", "expected"), REQUIRED)
def test_required_axes(batching: Batching, expected: set[Axis]) -> None:
    assert set(required_axes(batching)) == expected


def test_a_placement_says_where_a_row_stands() -> None:
    rows = next(place for place in placements() if place.name == "left-4")
    assert rows.num_rows[5] == 4
    assert rows.slot[5] == 1
    assert rows.moment[5] == 1
    assert rows.side[5] == 1
    assert rows.width[5] == LENGTHS[4:8].max()
    assert rows.padded[5] == (LENGTHS[5] < LENGTHS[4:8].max())
