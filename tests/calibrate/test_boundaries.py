"""The search for sizes at which a result switches, on scorers whose switches are known."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calibrate import boundaries
from calibrate.boundaries import MOST_REFINED, find_switches, is_searchable, refined, search_arm
from calibrate.compositions import plan_compositions
from calibrate.config import Sweep
from harness.conditions.batching import Batch, RowShape
from harness.records import AxisSearch, Switch
from harness.records.batching import Batching, FixedWidth, Padded, PaddingSide, Solo
from tests.calibrate.example_runs import a_config, an_arm

LENGTHS = (5, 9, 9, 12, 17, 23, 23, 30)
ROWS = tuple(RowShape(num_tokens=n, decision_id=f"d{at}") for at, n in enumerate(LENGTHS))


def class_of(thresholds: Sequence[int]) -> Callable[[int], int]:
    return lambda size: sum(size >= threshold for threshold in thresholds)


def pairs(switches: Sequence[Switch]) -> list[tuple[int, int]]:
    return [(switch.last, switch.first) for switch in switches]


@given(
    thresholds=st.sets(st.integers(2, 200), max_size=8),
    coarse=st.sets(st.integers(2, 199), max_size=6),
)
def test_every_switch_is_found_between_two_sizes_that_follow_each_other(
    thresholds: set[int], coarse: set[int]
) -> None:
    of = class_of(sorted(thresholds))
    found = find_switches([1, 200, *coarse], lambda a, b: of(a) == of(b), most=1000)
    assert pairs(found.switches) == [(size - 1, size) for size in sorted(thresholds)]
    assert {1, 200, *coarse} <= set(found.sizes)
    assert list(found.sizes) == sorted(set(found.sizes))


def test_a_needle_takes_few_sizes() -> None:
    of = class_of([777])
    found = find_switches([1, 1024], lambda a, b: of(a) == of(b))
    assert pairs(found.switches) == [(776, 777)]
    assert len(found.sizes) <= 12


def test_where_nothing_switches_nothing_more_is_tried() -> None:
    found = find_switches([1, 2, 64], lambda _a, _b: True)
    assert (found.sizes, found.switches) == ((1, 2, 64), ())


@given(most=st.integers(2, 60), top=st.integers(2, 500))
def test_a_search_that_runs_out_tells_the_gaps(most: int, top: int) -> None:
    found = find_switches([1, top], lambda _a, _b: False, most=most)
    assert len(found.sizes) == min(max(most, 2), top)
    assert pairs(found.switches) == list(pairwise(found.sizes))
    gaps = [first - last for last, first in pairs(found.switches)]
    assert max(gaps) <= 2 * min(gaps) + 1  # the widest is halved first


def test_switches_that_undo_each_other_are_seen_only_if_a_size_lies_between() -> None:
    of = {size: 7 <= size < 9 for size in range(1, 17)}
    assert find_switches([1, 16], lambda a, b: of[a] == of[b]).switches == ()
    found = find_switches([1, 8, 16], lambda a, b: of[a] == of[b])
    assert pairs(found.switches) == [(6, 7), (8, 9)]


class Scorer:
    """Scores a row by its index, plus a bit that switches with the batch."""

    def __init__(self, bit: Callable[[Batch, int], float]) -> None:
        self.bit, self.batches = bit, list[Batch]()

    def __call__(self, batches: Sequence[Batch]) -> list[list[float]]:
        self.batches += batches
        return [
            [batch.rows[slot] + self.bit(batch, slot) for slot in range(len(batch.rows))]
            for batch in batches
        ]


def searched(bit: Callable[[Batch, int], float], batching: Batching) -> dict[str, AxisSearch]:
    found = search_arm(ROWS, an_arm(batching=batching), Sweep(reference_rows=3), Scorer(bit))
    return {search.axis: search for search in found}


def test_the_number_of_rows_is_searched_at_a_fixed_width_in_a_fixed_slot() -> None:
    scorer = Scorer(lambda batch, slot: 0.5 * (len(batch.rows) >= 11) + slot)
    found = search_arm(ROWS, an_arm(batching=Padded(max_rows=32)), Sweep(rows=(5, 99)), scorer)
    assert pairs(found[0].switches) == [(10, 11)]
    assert found[0].axis == "num_rows"
    assert {1, 2, 3, 4, 5, 8, 16, 32} <= set(found[0].sizes)
    assert max(found[0].sizes) == 32
    copies = [batch for batch in scorer.batches if len(set(batch.rows)) == 1]
    assert {batch.width - LENGTHS[batch.rows[0]] for batch in copies} == {0}
    assert found[1].switches == ()


def test_the_width_is_searched_with_the_same_rows_in_the_same_slots() -> None:
    found = searched(lambda batch, slot: 0.5 * (batch.width >= 19) * (slot == 1), Padded())
    assert pairs(found["padded_width"].switches) == [(18, 19)]
    assert (found["padded_width"].sizes[0], found["padded_width"].sizes[-1]) == (9, 32)
    assert found["num_rows"].switches == ()
    assert found["padded_width"].held == "3 rows, the same in every slot"
    assert min(found["padded_width"].probe_lengths) == 5


def test_a_switch_that_moves_one_probe_is_seen_and_with_too_few_probes_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bit(batch: Batch, slot: int) -> float:
        return 0.5 * (len(batch.rows) >= 4 and batch.rows[0] == 7)

    assert pairs(searched(bit, Padded())["num_rows"].switches) == [(3, 4)]
    monkeypatch.setattr(boundaries, "_spread", lambda items, _most: list(items)[:1])
    assert searched(bit, Padded())["num_rows"].switches == ()


def test_bits_are_compared_so_minus_zero_moved_and_nan_did_not() -> None:
    at_zero = Scorer(lambda batch, _slot: -0.0 if len(batch.rows) >= 3 else 0.0)

    def zeros(batches: Sequence[Batch]) -> list[list[float]]:
        return [[at_zero.bit(batch, 0)] * len(batch.rows) for batch in batches]

    arm = an_arm(batching=FixedWidth(width=40, max_rows=8))
    assert pairs(search_arm(ROWS, arm, Sweep(), zeros)[0].switches) == [(2, 3)]
    found = search_arm(ROWS, arm, Sweep(), lambda batches: [[math.nan]] * len(batches))
    assert found[0].switches == ()


@pytest.mark.parametrize(
    ("batching", "axes"),
    [
        (Solo(), []),
        (FixedWidth(width=40), ["num_rows"]),
        (FixedWidth(width=40, max_rows=1), []),
        (Padded(), ["num_rows", "padded_width"]),
        (Padded(max_rows=1), ["padded_width"]),
    ],
    ids=str,
)
def test_only_what_can_vary_is_searched(batching: Batching, axes: list[str]) -> None:
    assert list(searched(lambda _batch, _slot: 0.0, batching)) == axes
    assert is_searchable(an_arm(batching=batching)) == (not isinstance(batching, Solo))


@pytest.mark.parametrize("side", PaddingSide)
def test_the_arms_own_side_is_padded(side: PaddingSide) -> None:
    scorer = Scorer(lambda _batch, _slot: 0.0)
    search_arm(ROWS, an_arm(batching=Padded(side=side)), Sweep(), scorer)
    assert {batch.side for batch in scorer.batches} == {side}


def test_the_cost_is_bounded_whatever_switches() -> None:
    rows = tuple(RowShape(num_tokens=n, decision_id=f"d{n}") for n in range(1, 3001))
    scorer = Scorer(lambda batch, _slot: len(batch.rows) + batch.width / 4096)
    found = search_arm(rows, an_arm(batching=Padded(max_rows=512)), Sweep(), scorer)
    assert {len(search.sizes) for search in found} == {boundaries.MOST_SIZES}
    assert len(scorer.batches) <= boundaries.MOST_SIZES * (6 + 3)


def found_at(axis: str, *firsts: int, top: int = 64) -> AxisSearch:
    return AxisSearch(
        axis=axis,
        held="",
        sizes=(1, top),
        switches=tuple(Switch(last=first - 1, first=first) for first in firsts),
        probe_lengths=(5,),
    )


def test_a_sweep_becomes_dense_around_the_switches_of_all_arms() -> None:
    config = a_config("unused", sweep=Sweep(rows=(3, 12)))
    searches = {0: [found_at("num_rows", 4)], 1: [found_at("padded_width", 32, 64)]}
    sweep = refined(config, searches).sweep
    assert sweep.rows == (3, 12, 4, 5)
    assert sweep.widths == (31, 32, 33, 63, 64)
    assert replace(sweep, rows=(3, 12), widths=()) == config.sweep


def test_nothing_found_leaves_the_config_as_it_was() -> None:
    config = a_config("unused")
    assert refined(config, {}) == refined(config, {0: [found_at("num_rows")]}) == config


def test_a_refined_sweep_is_bounded() -> None:
    everywhere = [found_at("num_rows", *range(2, 60)), found_at("padded_width", *range(2, 60))]
    sweep = refined(a_config("unused", sweep=Sweep(rows=())), {0: everywhere}).sweep
    for sizes in (sweep.rows, sweep.widths):
        assert len(sizes) <= 3 * MOST_REFINED
        assert (min(sizes), max(sizes)) == (1, 60)


def test_widths_of_a_sweep_are_measured_where_rows_fit() -> None:
    arm, sweep = an_arm(batching=Padded(max_rows=2)), Sweep(rows=(), widths=(16, 99, 16))
    plain = plan_compositions(ROWS, arm, replace(sweep, widths=()), 0)
    dense = plan_compositions(ROWS, arm, sweep, 0)
    added = [c for c in dense if c.name not in {other.name for other in plain}]
    assert [composition.name for composition in added] == ["wide-2-16"]
    assert [batch.width for batch in added[0].batches] == [16, 16, 23, 30]
