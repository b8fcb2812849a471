"""Batches: every row once, in the order asked for, as wide as it must be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.conditions.batching import Batch, RowShape, chunk, plan_batches
from harness.errors import ConfigError
from harness.records.batching import (
    Batching,
    Companions,
    FixedWidth,
    Order,
    Padded,
    PaddingSide,
    Solo,
)

SHAPES = st.lists(
    st.builds(
        RowShape,
        num_tokens=st.integers(1, 60),
        decision_id=st.sampled_from(["d10", "d2", "d1", "z"]),
    ),
    max_size=30,
)
OPTIONS: dict[str, Any] = {
    "side": st.sampled_from(PaddingSide),
    "max_rows": st.integers(1, 9),
    "order": st.sampled_from(Order),
    "companions": st.sampled_from(Companions),
}
PADDED = st.builds(Padded, **OPTIONS)
FIXED = st.builds(FixedWidth, width=st.integers(60, 99), **OPTIONS)
BATCHINGS = st.one_of(st.just(Solo()), PADDED, FIXED)


def rows(*spec: tuple[int, str]) -> list[RowShape]:
    return [RowShape(num_tokens=count, decision_id=name) for count, name in spec]


def order(batches: tuple[Batch, ...]) -> list[int]:
    return [row for batch in batches for row in batch.rows]


@given(shapes=SHAPES, batching=BATCHINGS, seed=st.integers())
def test_every_row_stands_in_one_batch(
    shapes: list[RowShape], batching: Batching, seed: int
) -> None:
    batches = plan_batches(shapes, batching, seed)
    assert sorted(order(batches)) == list(range(len(shapes)))
    assert all(batch.rows for batch in batches)
    assert plan_batches(shapes, batching, seed) == batches


@given(shapes=SHAPES, batching=BATCHINGS)
def test_a_batch_is_as_wide_as_it_must_be(shapes: list[RowShape], batching: Batching) -> None:
    for batch in plan_batches(shapes, batching, 0):
        longest = max(shapes[row].num_tokens for row in batch.rows)
        fixed = isinstance(batching, FixedWidth)
        assert batch.width == (batching.width if isinstance(batching, FixedWidth) else longest)
        assert batch.width >= longest or not fixed
        assert batch.side is getattr(batching, "side", None)


@given(shapes=SHAPES, batching=st.one_of(PADDED, FIXED))
def test_batches_are_full_but_for_the_last_of_their_kind(
    shapes: list[RowShape], batching: Padded | FixedWidth
) -> None:
    batches = plan_batches(shapes, batching, 0)
    assert all(len(batch.rows) <= batching.max_rows for batch in batches)
    short = [batch for batch in batches if len(batch.rows) < batching.max_rows]
    kinds = {shape.decision_id for shape in shapes}
    assert len(short) <= (1 if batching.companions is Companions.ANY else len(kinds))


@given(shapes=SHAPES, batching=st.one_of(PADDED, FIXED))
def test_decisions_are_kept_apart_when_asked(
    shapes: list[RowShape], batching: Padded | FixedWidth
) -> None:
    if batching.companions is Companions.SAME_DECISION:
        for batch in plan_batches(shapes, batching, 0):
            assert len({shapes[row].decision_id for row in batch.rows}) == 1


@given(shapes=SHAPES, max_rows=st.integers(1, 9), companions=st.sampled_from(Companions))
def test_the_order_asked_for(shapes: list[RowShape], max_rows: int, companions: Companions) -> None:
    for kind in (Order.GIVEN, Order.LENGTH):
        batching = Padded(max_rows=max_rows, order=kind, companions=companions)
        found = order(plan_batches(shapes, batching, 0))
        expected = list(range(len(shapes)))
        if kind is Order.LENGTH:
            expected.sort(key=lambda row: (shapes[row].num_tokens, row))
        if companions is Companions.SAME_DECISION:
            first = [shapes[row].decision_id for row in expected]
            expected.sort(key=lambda row: first.index(shapes[row].decision_id))
        assert found == expected


def test_decisions_keep_the_order_of_the_file_and_not_of_their_names() -> None:
    shapes = rows((3, "d10"), (4, "d2"), (5, "d10"), (6, "d2"))
    batching = Padded(companions=Companions.SAME_DECISION)
    assert [batch.rows for batch in plan_batches(shapes, batching, 0)] == [(0, 2), (1, 3)]


def test_the_seed_shuffles_and_nothing_else() -> None:
    shapes = rows(*[(5, "d")] * 40)
    shuffled = Padded(order=Order.SHUFFLED)
    first = order(plan_batches(shapes, shuffled, 1))
    assert first != list(range(40))
    assert order(plan_batches(shapes, shuffled, 1)) == first
    assert order(plan_batches(shapes, shuffled, 2)) != first
    assert plan_batches(shapes, Padded(), 1) == plan_batches(shapes, Padded(), 2)


def test_a_row_alone_has_no_padding() -> None:
    assert plan_batches(rows((3, "a"), (9, "a")), Solo(), 0) == (
        Batch(rows=(0,), width=3, side=None),
        Batch(rows=(1,), width=9, side=None),
    )


def test_a_row_longer_than_the_width_is_refused() -> None:
    shapes = rows((3, "a"), (9, "a"))
    assert plan_batches(shapes, FixedWidth(width=9), 0)[0].width == 9
    with pytest.raises(ConfigError, match="a row has 9 tokens, the fixed width is 8; raise"):
        plan_batches(shapes, FixedWidth(width=8), 0)


@given(st.lists(st.integers()), st.integers(1, 9))
def test_chunks_are_the_whole(values: list[int], size: int) -> None:
    parts = list(chunk(values, size))
    assert [value for part in parts for value in part] == values
    assert all(len(part) == size for part in parts[:-1])
    assert all(parts)
