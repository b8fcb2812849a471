"""The compositions of lanes: every row at its own shape, whatever else is varied."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.axes import Axis, Placement, find_axis, required_axes
from calibrate.compositions import REPEATS, Composition, plan_compositions
from calibrate.config import Sweep
from calibrate.lane_compositions import measured_lanes
from harness.conditions.batching import RowShape
from harness.errors import ConfigError
from harness.records.batching import Batching, FixedWidth, Lane, Lanes, PaddingSide, lane_of
from tests.calibrate.example_runs import an_arm

TABLE = (Lane(rows=4, width=12), Lane(rows=6, width=20), Lane(rows=3, width=41))
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)
LANES = st.builds(
    Lanes,
    lanes=st.just(TABLE),
    side=st.sampled_from(PaddingSide),
    max_rows=st.none() | st.integers(1, 7),
)
NORMAL = [5 + at * 7 % 23 for at in range(240)]  # lengths mixed as in a decisions file


def shapes(lengths: list[int]) -> tuple[RowShape, ...]:
    return tuple(RowShape(num_tokens=n, decision_id=f"d{at // 2}") for at, n in enumerate(lengths))


def planned(lengths: list[int], batching: Batching, seed: int = 0) -> tuple[Composition, ...]:
    return plan_compositions(shapes(lengths), an_arm(batching=batching), Sweep(), seed)


@given(lengths=LENGTHS, batching=LANES, seed=st.integers(0, 9))
def test_every_composition_holds_every_row_once_in_its_own_lane(
    lengths: list[int], batching: Lanes, seed: int
) -> None:
    compositions = planned(lengths, batching, seed)
    assert len({c.name for c in compositions}) == len(compositions)
    for composition in compositions:
        rows = [row for batch in composition.batches for row in batch.rows]
        assert sorted(rows) == list(range(len(lengths))), composition.name
        for batch in composition.batches:
            for row in batch.rows:
                lane = lane_of(lengths[row], TABLE)
                assert lane is not None
                assert (batch.num_rows, batch.width) == (lane.rows, lane.width)
            assert batch.side is batching.side
            assert len(batch.rows) <= min(batch.num_rows or 0, batching.max_rows or 99)
        assert composition.cost == sum((b.num_rows or 0) * b.width for b in composition.batches)


@given(lengths=LENGTHS, batching=LANES)
def test_the_repeats_are_of_the_first_and_nothing_else_is_computed_twice(
    lengths: list[int], batching: Lanes
) -> None:
    first, *others, again, fresh = planned(lengths, batching)
    assert [again.name, fresh.name] == [f"{kind}full" for kind in REPEATS]
    assert again.batches == fresh.batches == first.batches
    different = [composition.batches for composition in (first, *others)]
    assert all(one != two for at, one in enumerate(different) for two in different[:at])


def evidence(lengths: list[int], batching: Batching, axis: str) -> np.ndarray:
    """Return the decisions that exercise `axis`."""
    places = [Placement(c, np.array(lengths)) for c in planned(lengths, batching)]
    scores = {place.name: np.zeros(len(lengths)) for place in places}
    owners = np.arange(len(lengths)) // 2
    return np.unique(find_axis(Axis(axis), places, scores, owners).decision_of_row)


@pytest.mark.parametrize(
    "batching",
    [
        Lanes(lanes=TABLE),
        Lanes(lanes=TABLE, side=PaddingSide.LEFT),
        Lanes(lanes=TABLE, max_rows=2),
        Lanes(lanes=(Lane(rows=32, width=41),)),
        Lanes(lanes=TABLE, max_rows=1),
        Lanes(lanes=(Lane(rows=1, width=24), Lane(rows=1, width=41))),
    ],
    ids=["table", "left", "part-full", "one lane", "one real row", "one row"],
)
def test_every_required_axis_is_exercised_for_most_decisions(batching: Lanes) -> None:
    for axis in (*required_axes(batching), Axis.REPEAT_SAME_PROCESS, Axis.REPEAT_FRESH_PROCESS):
        assert evidence(NORMAL, batching, axis).size > 0.9 * len(NORMAL) / 2, axis
    assert evidence(NORMAL, batching, Axis.PADDED_WIDTH).size == 0
    assert evidence(NORMAL, batching, Axis.PADDING_SIDE).size == 0


def test_required_axes() -> None:
    shared = {Axis.NUM_ROWS, Axis.ROW_POSITION, Axis.COMPANIONS}
    assert set(required_axes(Lanes(lanes=TABLE))) == shared
    assert required_axes(Lanes(lanes=TABLE, max_rows=1)) == (Axis.ROW_ORDER,)
    assert required_axes(Lanes(lanes=(Lane(rows=1, width=9),))) == (Axis.ROW_ORDER,)


def test_real_rows_are_told_from_inert_ones() -> None:
    places = {
        place.name: place
        for place in (Placement(c, np.array([5] * 9)) for c in planned([5] * 9, Lanes(lanes=TABLE)))
    }
    assert places["full"].num_rows.tolist() == [4] * 8 + [1]
    assert places["half"].num_rows.tolist() == [2] * 8 + [1]
    assert places["lone"].num_rows.tolist() == [1, 3, 3, 3, 1, 3, 3, 3, 1]
    assert {rows for place in places.values() for rows in place.padded_rows.tolist()} == {4}
    plain = planned([5] * 9, FixedWidth(width=12, max_rows=4))
    assert set(Placement(plain[0], np.array([5] * 9)).padded_rows.tolist()) == {0}


def test_all_neighbours_change_where_there_are_forwards_enough() -> None:
    found = {c.name: c for c in planned([5] * 16, Lanes(lanes=TABLE))}
    by_row = [
        {row: set(batch.rows) for batch in found[name].batches for row in batch.rows}
        for name in ("full", "neighbours")
    ]
    assert all(by_row[0][row] & by_row[1][row] == {row} for row in range(16))


def test_a_lane_counts_as_measured_when_it_was_filled_twice() -> None:
    lengths = [5] * 8 + [15] * 11 + [30] * 6
    assert measured_lanes(shapes(lengths), Lanes(lanes=TABLE)) == (TABLE[0], TABLE[2])
    assert measured_lanes(shapes(lengths), Lanes(lanes=TABLE, max_rows=5)) == TABLE
    assert measured_lanes(shapes([5]), Lanes(lanes=TABLE)) == ()


def test_the_seed_moves_the_shuffle_and_nothing_else() -> None:
    one, other = ({c.name: c for c in planned(NORMAL, Lanes(lanes=TABLE), seed)} for seed in (0, 1))
    assert [name for name in one if one[name] != other[name]] == ["shuffled"]


def test_a_row_that_fits_no_lane_is_named() -> None:
    with pytest.raises(ConfigError, match=r"decision 'd1' has a row of 41 tokens.*lane is 41"):
        planned([7, 8, 41], Lanes(lanes=TABLE))
