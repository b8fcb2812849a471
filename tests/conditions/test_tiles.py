"""Tiles: one order at every place is seen, two are seen too, and then a smaller tile is taken."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import linear

from harness.conditions.tiles import SIZES, Tiles, has_one_order

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def products(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda rows: linear(rows, weight)


def in_turn(rows: torch.Tensor) -> torch.Tensor:
    """Add every row's terms one by one."""
    total = torch.zeros(len(rows), dtype=rows.dtype)
    for column in rows.unbind(1):
        total = total + column
    return total[:, None]


def rest_backwards(rows: torch.Tensor) -> torch.Tensor:
    """Add so, but the last rows of a call backwards: what a kernel does with what is left over."""
    whole = len(rows) // 3 * 3
    return torch.cat([in_turn(rows[:whole]), in_turn(rows[whole:].flip(1))])


@pytest.mark.parametrize("dtype", FLOATS)
def test_two_orders_in_a_tile_are_seen_in_every_dtype(dtype: torch.dtype) -> None:
    like = torch.zeros(1, 48, dtype=dtype)
    for size in SIZES[:-1]:
        assert has_one_order(in_turn, size, like)
        assert not has_one_order(rest_backwards, size, like)


def test_where_places_differ_each_row_is_called_alone() -> None:
    sizes = []

    def noted(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rest_backwards(rows)

    x = torch.randn(10, 48, generator=torch.Generator().manual_seed(0))
    made = Tiles().run("noted", noted, x)
    assert sizes[-10:] == [1] * 10
    assert torch.equal(made, torch.cat([rest_backwards(row[None]) for row in x]))
    assert not torch.equal(made, rest_backwards(x))  # negative control: places did matter


@pytest.mark.parametrize("num_rows", [0, 1, 5, 63, 64, 65, 130])
def test_a_row_has_the_same_bits_in_any_number_of_rows(num_rows: int) -> None:
    chance = torch.Generator().manual_seed(1)
    x, weight = torch.randn(130, 65, generator=chance), torch.randn(7, 65, generator=chance)
    tiles, operator = Tiles(), products(weight)
    whole = tiles.run("products", operator, x)
    assert torch.equal(tiles.run("products", operator, x[:num_rows]), whole[:num_rows])
    assert torch.allclose(whole, operator(x), atol=1e-5)


def test_an_operator_is_tested_once_for_each_shape_and_dtype() -> None:
    calls: list[int] = []

    def probe(rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        return in_turn(rows)

    tiles = Tiles()
    tiles.run("sum", in_turn, torch.zeros(3, 8), probe=probe)
    tested = len(calls)
    tiles.run("sum", in_turn, torch.zeros(30, 8), probe=probe)
    assert len(calls) == tested > 0
    tiles.run("sum", in_turn, torch.zeros(3, 9), probe=probe)
    assert len(calls) == 2 * tested
