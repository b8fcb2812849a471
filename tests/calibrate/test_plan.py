from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calibrate.axes import PADDED_RULES, Axis, Placement, find_axis, required_axes
from calibrate.compositions import REPEATS, Composition, plan_compositions
from calibrate.config import Arm, Sweep
from calibrate.plan import plan_appeal, plan_processes, process_compositions
from harness.conditions.batching import RowShape
from harness.conditions.reduction_order import Attention, ReductionOrderSpec
from harness.errors import ConfigError, UnsupportedConditionError
from harness.records import PrecisionName
from harness.records.batching import Batching, FixedWidth, Padded, PaddingSide, Solo
from tests.calibrate.example_runs import a_config, an_arm

WIDEST = 40


def shapes(lengths: list[int], branches: int = 2) -> tuple[RowShape, ...]:
    return tuple(
        RowShape(num_tokens=length, decision_id=f"d{at // branches}")
        for at, length in enumerate(lengths)
    )


def planned(lengths: list[int], batching: Batching, **sweep: Any) -> tuple[Composition, ...]:
    chosen = Sweep(**{"rows": (2, 3, 4), "reference_rows": 4, **sweep})
    return plan_compositions(shapes(lengths), an_arm(batching=batching), chosen, seed=0)


def named(compositions: tuple[Composition, ...]) -> dict[str, Composition]:
    return {composition.name: composition for composition in compositions}


sides = st.sampled_from(PaddingSide)
batchings = st.one_of(
    st.just(Solo()),
    st.builds(Padded, side=sides, max_rows=st.integers(1, 9)),
    st.builds(FixedWidth, side=sides, max_rows=st.integers(1, 9), width=st.just(WIDEST)),
)
sweeps = st.builds(
    Sweep,
    rows=st.lists(st.integers(1, 12), max_size=3).map(tuple),
    reference_rows=st.integers(1, 12),
    sides=st.sets(sides).map(lambda found: tuple(sorted(found))),
)
lengths_of_rows = st.lists(st.integers(1, WIDEST), min_size=1, max_size=60)


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps, seed=st.integers(0, 9))
def test_every_composition_holds_every_row_once_and_nothing_else(
    lengths: list[int], batching: Batching, sweep: Sweep, seed: int
) -> None:
    compositions = plan_compositions(shapes(lengths), an_arm(batching=batching), sweep, seed)
    assert len({c.name for c in compositions}) == len(compositions)
    for composition in compositions:
        rows = [row for batch in composition.batches for row in batch.rows]
        assert sorted(rows) == list(range(len(lengths))), composition.name
        for batch in composition.batches:
            assert batch.width >= max(lengths[row] for row in batch.rows)
        assert composition.cost == sum(len(b.rows) * b.width for b in composition.batches)


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps)
def test_batches_stay_within_the_mode(lengths: list[int], batching: Batching, sweep: Sweep) -> None:
    batches = [
        batch
        for composition in plan_compositions(
            shapes(lengths), an_arm(batching=batching), sweep, seed=0
        )
        for batch in composition.batches
    ]
    if isinstance(batching, Solo):
        assert {len(batch.rows) for batch in batches} == {1}
        assert {batch.side for batch in batches} == {None}
        return
    assert isinstance(batching, Padded | FixedWidth)
    assert max(len(batch.rows) for batch in batches) <= batching.max_rows
    assert {batch.side for batch in batches} == {batching.side, *sweep.sides}
    if isinstance(batching, FixedWidth):
        assert {batch.width for batch in batches} == {WIDEST}


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps)
def test_no_composition_repeats_another_but_the_repeats(
    lengths: list[int], batching: Batching, sweep: Sweep
) -> None:
    compositions = plan_compositions(shapes(lengths), an_arm(batching=batching), sweep, seed=0)
    first, *_, again, fresh = compositions
    assert [again.name, fresh.name] == [f"{kind}{first.name}" for kind in REPEATS]
    assert again.batches == fresh.batches == first.batches
    counts = Counter(composition.batches for composition in compositions)
    assert counts.pop(first.batches) == 3
    assert set(counts.values()) <= {1}


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps)
def test_neighbours_change_at_the_same_shape_and_slot(
    lengths: list[int], batching: Batching, sweep: Sweep
) -> None:
    compositions = plan_compositions(shapes(lengths), an_arm(batching=batching), sweep, seed=0)
    found = [c for c in compositions if c.name.startswith("neighbours-")]
    if len(found) < 2:
        return
    one, other = (Placement(composition, np.array(lengths)) for composition in found)
    for name in ("num_rows", "width", "side", "slot"):
        assert (getattr(one, name) == getattr(other, name)).all(), name
    assert (one.members != other.members).any()


def test_all_neighbours_change_where_there_are_enough_batches() -> None:
    compositions = named(planned(list(range(20, 4, -1)), Padded(max_rows=4)))
    by_row = [
        {row: set(batch.rows) for batch in compositions[name].batches for row in batch.rows}
        for name in ("neighbours-4-a", "neighbours-4-b")
    ]
    assert all(by_row[0][row] & by_row[1][row] == {row} for row in range(16))


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps)
def test_the_two_shares_part_the_compositions(
    lengths: list[int], batching: Batching, sweep: Sweep
) -> None:
    config = a_config("unused", arms=(an_arm(batching=batching),), sweep=sweep)
    every = plan_compositions(shapes(lengths), config.arms[0], sweep, config.seed)
    first, second, guard, _ = (
        [c.name for c in process_compositions(config, plan, shapes(lengths))]
        for plan in plan_processes(config, 7)
    )
    assert sorted(first + second) == sorted(c.name for c in every)
    assert f"fresh-{every[0].name}" in second
    assert {every[0].name, f"again-{every[0].name}"} <= set(first)
    assert guard == [c.name for c in every if not c.name.startswith(REPEATS)]


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps)
def test_the_exact_process_scores_each_row_alone_as_the_others_do(
    lengths: list[int], batching: Batching, sweep: Sweep
) -> None:
    config = a_config("unused", arms=(an_arm(batching=batching),), sweep=sweep)
    *_, exact = plan_processes(config, 7)
    (alone,) = process_compositions(config, exact, shapes(lengths))
    assert [len(batch.rows) for batch in alone.batches] == [1] * len(lengths)
    assert alone in plan_compositions(shapes(lengths), config.arms[0], sweep, config.seed)
    assert exact.is_optional


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps, chosen=st.integers(0, 29))
def test_an_appeal_runs_the_batches_of_its_decisions_whole_and_no_others(
    lengths: list[int], batching: Batching, sweep: Sweep, chosen: int
) -> None:
    config = a_config("unused", arms=(an_arm(batching=batching),), sweep=sweep)
    rows = shapes(lengths)
    named = rows[min(2 * chosen, len(rows) - 1)].decision_id
    _, _, reference, _ = plan_processes(config, 7)
    appeal = plan_appeal(config, 0, 7, [named])
    mine = {at for at, row in enumerate(rows) if row.decision_id == named}
    heard = process_compositions(config, appeal, rows)
    for part, whole in zip(heard, process_compositions(config, reference, rows), strict=True):
        assert part.name == whole.name
        assert list(part.batches) == [b for b in whole.batches if mine & set(b.rows)]
    assert (appeal.num_decisions, appeal.is_optional) == (reference.num_decisions, True)


@given(lengths=lengths_of_rows, batching=batchings, sweep=sweeps)
def test_a_pair_counts_for_an_axis_only_where_that_axis_alone_differs(
    lengths: list[int], batching: Batching, sweep: Sweep
) -> None:
    compositions = plan_compositions(shapes(lengths), an_arm(batching=batching), sweep, seed=0)
    tokens = np.array(lengths)
    placements = [Placement(composition, tokens) for composition in compositions]
    number = {p.name: np.full(len(lengths), float(at)) for at, p in enumerate(placements)}
    rows = np.arange(len(lengths))
    for axis, (varied, fixed) in PADDED_RULES.items():
        found = find_axis(axis, placements, number, rows)
        for left, right, row in zip(found.left, found.right, found.decision_of_row, strict=True):
            one, other = placements[int(left)], placements[int(right)]
            assert getattr(one, varied)[row] != getattr(other, varied)[row]
            for name in fixed:
                assert getattr(one, name)[row] == getattr(other, name)[row], (axis, name)


NORMAL = [5 + at * 7 % 23 for at in range(240)]  # lengths mixed as in a decisions file


@pytest.mark.parametrize(
    "batching",
    [
        Solo(),
        Padded(max_rows=8),
        Padded(max_rows=8, side=PaddingSide.LEFT),
        FixedWidth(max_rows=8, width=WIDEST),
    ],
    ids=lambda batching: type(batching).__name__,
)
def test_every_required_axis_is_exercised_for_most_decisions(batching: Batching) -> None:
    compositions = planned(NORMAL, batching)
    placements = [Placement(composition, np.array(NORMAL)) for composition in compositions]
    scores = {placement.name: np.zeros(len(NORMAL)) for placement in placements}
    owners = np.arange(len(NORMAL)) // 2
    required = required_axes(batching)
    assert len(required) >= (1 if isinstance(batching, Solo) else 3)
    for axis in (*required, Axis.REPEAT_SAME_PROCESS, Axis.REPEAT_FRESH_PROCESS):
        found = find_axis(Axis(axis), placements, scores, owners)
        assert np.unique(found.decision_of_row).size > 0.8 * len(NORMAL) / 2, axis


EDGES: dict[str, tuple[list[int], Batching, list[str]]] = {
    "one row": (
        [7],
        Padded(max_rows=8),
        ["rows-4", "wide-4", "left-4", "again-rows-4", "fresh-rows-4"],
    ),
    "one row alone": ([7], Solo(), ["solo", "again-solo", "fresh-solo"]),
    "no room for companions": (
        [7, 8, 9],
        Padded(max_rows=1),
        ["rows-1", "wide-1", "left-1", "shuffled-1", "again-rows-1", "fresh-rows-1"],
    ),
    "equal lengths that are a multiple of 8": (
        [16] * 9,
        Padded(max_rows=2),
        [
            "rows-2",
            "solo",
            "reversed-2",
            "left-2",
            "neighbours-2-b",  # rows-2 is its other half
            "shuffled-2",
            "again-rows-2",
            "fresh-rows-2",
        ],
    ),
}


@pytest.mark.parametrize("case", EDGES)
def test_compositions_at_the_edges(case: str) -> None:
    lengths, batching, expected = EDGES[case]
    assert [c.name for c in planned(lengths, batching)] == expected


def test_sizes_above_the_arms_are_left_out_and_its_own_is_measured() -> None:
    names = named(planned(NORMAL, Padded(max_rows=6), rows=(2, 5, 7, 32), reference_rows=99))
    assert [n for n in names if n.startswith("rows-")] == ["rows-6", "rows-2", "rows-5"]


def test_a_row_beyond_the_fixed_width_is_named() -> None:
    with pytest.raises(ConfigError, match=r"decision 'd1' has a row of 41 tokens.*width is 40"):
        planned([7, 8, 41], FixedWidth(width=WIDEST))


def test_the_seed_moves_the_shuffle_and_nothing_else() -> None:
    one, other = (
        named(plan_compositions(shapes(NORMAL), an_arm(), Sweep(), seed)) for seed in (0, 1)
    )
    assert [name for name in one if one[name] != other[name]] == ["shuffled-8"]


def test_processes_of_two_arms() -> None:
    arms = an_arm(), an_arm(precision=PrecisionName.FLOAT32)
    plans = plan_processes(a_config("unused", arms=arms, guard_decisions=20), 60)
    assert {plan.process_id: str(plan.condition.precision) for plan in plans} == {
        "arm-0/measure-0": "bfloat16",
        "arm-0/measure-1": "bfloat16",
        "arm-0/reference": "float32",
        "arm-0/exact": "float64",
        "arm-1/measure-0": "float32",
        "arm-1/measure-1": "float32",
        "arm-1/reference": "float64",  # which is exact already
    }
    assert [plan.num_decisions for plan in plans] == [60, 60, 20, 20, 60, 60, 20]


def test_exact_decisions_are_among_the_guards_and_may_be_none() -> None:
    def num_exact(**changes: Any) -> list[int]:
        plans = plan_processes(a_config("unused", **changes), 60)
        return [plan.num_decisions for plan in plans if plan.process_id == "arm-0/exact"]

    assert num_exact(exact_decisions=7) == [7]
    assert num_exact(exact_decisions=30, guard_decisions=9) == [9]
    assert num_exact(exact_decisions=0) == []


def test_float64_runs_with_a_kernel_that_has_it() -> None:
    order = ReductionOrderSpec(name="vendor", attention=Attention.FLASH, num_threads=1)
    assert an_arm(reduction_order=order).exact.reduction_order.label == "vendor+math+threads:1"
    own = ReductionOrderSpec(name="vendor", attention=Attention.EAGER)
    assert an_arm(reduction_order=own).exact.reduction_order == own


def test_the_guards_take_no_more_decisions_than_there_are() -> None:
    plans = plan_processes(a_config("unused", guard_decisions=100), 60)
    assert [plan.num_decisions for plan in plans] == [60, 60, 60, 20]


def test_an_arm_without_a_reference_is_refused() -> None:
    arm: Arm = replace(an_arm(), precision=PrecisionName.FLOAT64)
    with pytest.raises(UnsupportedConditionError, match="no finer reference"):
        plan_processes(a_config("unused", arms=(arm,)), 60)
