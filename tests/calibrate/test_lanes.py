"""The lane planner: no other choice of widths costs fewer tokens."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.lanes import TILE, LanePlan, plan_lanes
from harness.errors import ConfigError
from harness.records.batching import Lane, lane_of

LENGTHS = st.lists(st.integers(1, 70), min_size=32, max_size=120)
ROWS = st.sampled_from([4, 8, 16])


def cheapest(lengths: list[int], rows: int, max_lanes: int) -> int:
    """Return the fewest tokens of any choice of at most `max_lanes` widths, tried one by one."""
    step = TILE // rows  # rows are powers of two here
    widths = list(range(step, max(lengths) + step + 1, step))
    widths = [width for width in widths if width - step <= max(lengths)]
    found = []
    for count in range(1, max_lanes + 1):
        for chosen in combinations(widths, count):
            lanes = tuple(Lane(rows=rows, width=width) for width in chosen)
            going = [lane_of(length, lanes) for length in lengths]
            sizes = [going.count(lane) for lane in lanes]
            if None not in going and all(size >= 2 * rows for size in sizes):
                cost = sum(
                    -(-n // rows) * rows * ln.width for n, ln in zip(sizes, lanes, strict=True)
                )
                found.append(cost)
    return min(found)


@settings(max_examples=40)
@given(lengths=LENGTHS, rows=ROWS, max_lanes=st.integers(1, 3))
def test_no_other_lanes_cost_fewer_tokens(lengths: list[int], rows: int, max_lanes: int) -> None:
    plan = plan_lanes(lengths, rows=rows, max_lanes=max_lanes)
    assert plan.num_padded == cheapest(lengths, rows, max_lanes)


@given(lengths=LENGTHS, rows=st.integers(1, 16), max_lanes=st.integers(1, 9))
def test_every_row_fits_and_every_lane_can_be_calibrated(
    lengths: list[int], rows: int, max_lanes: int
) -> None:
    plan = plan_lanes(lengths, rows=rows, max_lanes=max_lanes)
    assert 1 <= len(plan.lanes) <= max_lanes
    assert all(lane_of(length, plan.lanes) for length in lengths)
    assert sum(use.num_rows for use in plan.uses) == len(lengths)
    for use in plan.uses:
        assert use.num_rows >= 2 * rows
        assert use.lane.rows * use.lane.width % TILE == 0
        assert use.num_forwards * rows >= use.num_rows
    assert 0 < plan.padding_share < 1
    assert plan.num_padded * (1 - plan.padding_share) == pytest.approx(sum(lengths))


@given(lengths=LENGTHS, rows=ROWS)
def test_more_lanes_never_cost_more(lengths: list[int], rows: int) -> None:
    costs = [plan_lanes(lengths, rows=rows, max_lanes=n).num_padded for n in range(1, 7)]
    assert costs == sorted(costs, reverse=True)


def test_what_goes_through_each_lane() -> None:
    plan: LanePlan = plan_lanes([7] * 16 + [20] * 17, rows=8, max_lanes=4)
    assert plan.lanes == (Lane(rows=8, width=8), Lane(rows=8, width=24))
    narrow, wide = plan.uses
    assert (narrow.num_rows, narrow.num_tokens, narrow.num_forwards) == (16, 112, 2)
    assert (wide.num_rows, wide.num_forwards, wide.num_padded) == (17, 3, 3 * 8 * 24)
    assert wide.padding_share == pytest.approx(1 - 340 / 576)


def test_a_row_never_fills_its_lane() -> None:
    assert plan_lanes([8] * 16, rows=8, max_lanes=1).lanes == (Lane(rows=8, width=16),)


def test_too_few_rows_are_told() -> None:
    with pytest.raises(ConfigError, match="15 rows cannot fill a lane of 8 twice; give more"):
        plan_lanes([5] * 15, rows=8, max_lanes=2)
