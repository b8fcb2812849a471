"""Lanes: a row's shape follows from its own length, and every forward of a lane has it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.conditions.batching import Batch, RowShape, plan_batches
from harness.errors import ConfigError
from harness.records.batching import Companions, Lane, Lanes, Order, PaddingSide, lane_of

TABLE = (Lane(rows=4, width=9), Lane(rows=3, width=20), Lane(rows=8, width=61))
SHAPES = st.lists(
    st.builds(RowShape, num_tokens=st.integers(1, 60), decision_id=st.sampled_from("abc")),
    max_size=40,
)
LANES = st.builds(
    Lanes,
    lanes=st.just(TABLE),
    side=st.sampled_from(PaddingSide),
    max_rows=st.none() | st.integers(1, 9),
    order=st.sampled_from(Order),
    companions=st.sampled_from(Companions),
)


def rows(*lengths: int, decision_id: str = "d") -> list[RowShape]:
    return [RowShape(num_tokens=count, decision_id=decision_id) for count in lengths]


def shape(batch: Batch) -> tuple[Any, ...]:
    return batch.num_rows, batch.width, batch.side


@given(shapes=SHAPES, batching=LANES, seed=st.integers())
def test_every_row_stands_in_one_forward_of_its_own_lane(
    shapes: list[RowShape], batching: Lanes, seed: int
) -> None:
    batches = plan_batches(shapes, batching, seed)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(shapes)))
    for batch in batches:
        for row in batch.rows:
            lane = lane_of(shapes[row].num_tokens, TABLE)
            assert lane is not None
            assert shape(batch) == (lane.rows, lane.width, batching.side)
        assert 0 < len(batch.rows) <= min(batch.num_rows or 0, batching.max_rows or 99)
        assert batch.num_tokens == (batch.num_rows or 0) * batch.width


@given(shapes=SHAPES, others=SHAPES, batching=LANES)
def test_other_rows_change_no_rows_shape(
    shapes: list[RowShape], others: list[RowShape], batching: Lanes
) -> None:
    alone, together = (
        {row: shape(batch) for batch in plan_batches(given, batching, 0) for row in batch.rows}
        for given in (shapes, [*shapes, *others])
    )
    assert {row: together[row] for row in alone} == alone


@given(shapes=SHAPES, batching=LANES)
def test_forwards_are_full_but_for_the_last_of_each_lane(
    shapes: list[RowShape], batching: Lanes
) -> None:
    together = replace(batching, companions=Companions.ANY)
    for lane in TABLE:
        sizes = [len(b.rows) for b in plan_batches(shapes, together, 0) if b.width == lane.width]
        full = min(lane.rows, batching.max_rows or lane.rows)
        assert sizes[:-1] == [full] * (len(sizes) - 1)


@given(shapes=SHAPES, batching=LANES)
def test_decisions_are_kept_apart_when_asked(shapes: list[RowShape], batching: Lanes) -> None:
    apart = replace(batching, companions=Companions.SAME_DECISION)
    for batch in plan_batches(shapes, apart, 0):
        assert len({shapes[row].decision_id for row in batch.rows}) == 1


def test_rows_enter_in_the_order_asked_for() -> None:
    shapes = rows(7, 3, 5, 15, 8)
    by_length = Lanes(lanes=TABLE, order=Order.LENGTH)
    assert [b.rows for b in plan_batches(shapes, Lanes(lanes=TABLE), 0)] == [(0, 1, 2, 4), (3,)]
    assert [b.rows for b in plan_batches(shapes, by_length, 0)] == [(1, 2, 0, 4), (3,)]


def test_one_column_of_a_lane_is_always_padding() -> None:
    assert [b.width for b in plan_batches(rows(8, 9, 19, 20), Lanes(lanes=TABLE), 0)] == [9, 20, 61]


def test_a_row_that_fits_no_lane_is_named() -> None:
    shapes = [*rows(60), *rows(61, decision_id="long")]
    message = r"'long' has a row of 61 tokens and the widest lane is 61, one of them padding"
    with pytest.raises(ConfigError, match=message):
        plan_batches(shapes, Lanes(lanes=TABLE), 0)
