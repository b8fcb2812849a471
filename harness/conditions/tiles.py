"""Fixed tiles: an operator over rows, only ever called with one number of rows.

A library picks a kernel, and with it an order of summation, by the shape of a call. Here the rows
of any call are cut into tiles of a fixed size, the last one filled up with zeros, so that the shape
never changes. What is left to fear is that one kernel adds differently at different places of a
tile (the rows that remain after its blocks). So a size counts only if it is seen to have one order:
rows whose exact sum is zero, over many binary orders of magnitude, leave nothing but their rounding
residue, and every row must leave the same residue at the next place of the tile. The largest size
that passes is taken; a tile of one row has one place and needs no test.

What it does not know: whether equal calls give equal bits (the deterministic switches ask for it),
and an order that differs for values unlike those of the test.
"""

import random
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SIZES", "RowOperator", "Tiles", "has_one_order"]

SIZES = (64, 16, 4, 1)
"""Rows of a tile, in the order in which they are tried."""

WIDE, NARROW = 12, 2
"""Binary orders of magnitude of the test's values, either way; narrow where they are exponents."""

_NUM_DRAWS = 4
_ALIGNMENT_BYTES = 64
"""What torch gives a fresh tensor; a kernel may choose its first steps by it."""

RowOperator = Callable[["Tensor"], "Tensor"]
"""From ``[rows, K]`` to ``[rows, ...]``, each row for itself."""


class Tiles:
    """Runs row operators in tiles; knows the size of every operator that it has run."""

    def __init__(self) -> None:
        """Start with no operator known."""
        self._sizes: dict[Hashable, int] = {}

    def run(
        self,
        key: Hashable,
        operator: RowOperator,
        x_mk: "Tensor",
        *,
        probe: RowOperator | None = None,
        magnitudes: int = WIDE,
    ) -> "Tensor":
        """Return `operator` of all rows of `x_mk`.

        `key` tells one operator (with the shapes and dtypes of its constants) from another; `probe`
        is the same operator with constants of plus or minus one, to be tested in its stead.
        """
        known = (key, x_mk.shape[1], x_mk.dtype)
        if known not in self._sizes:
            sizes = (s for s in SIZES if has_one_order(probe or operator, s, x_mk, magnitudes))
            self._sizes[known] = next(sizes)
        return _in_tiles(operator, x_mk, self._sizes[known])


def _in_tiles(operator: RowOperator, x_mk: "Tensor", size: int) -> "Tensor":
    import torch  # noqa: PLC0415 - torch only where it is needed
    from torch.nn.functional import pad  # noqa: PLC0415

    num_rows = x_mk.shape[0]
    missing = -num_rows % size if num_rows else size
    padded_mk = pad(x_mk, (0, 0, 0, missing)) if missing else x_mk.contiguous()
    tiles = torch.split(padded_mk, size)
    if tiles[0].nbytes % _ALIGNMENT_BYTES or padded_mk.data_ptr() % _ALIGNMENT_BYTES:
        tiles = tuple(tile.clone() for tile in tiles)
    if len(tiles) == 1:
        return operator(tiles[0])[:num_rows]
    return torch.cat([operator(tile) for tile in tiles])[:num_rows]


def has_one_order(operator: RowOperator, size: int, like: "Tensor", magnitudes: int = WIDE) -> bool:
    """Return whether every place of a tile of `size` rows adds in the same order.

    `like` gives K, dtype and device. Each draw moves every row on by one place: equal bits link
    each place to the next, and so all of them.
    """
    if size == 1:
        return True
    for seed in range(_NUM_DRAWS):
        rows = _cancelling_rows(size, like, seed, magnitudes)
        moved_on = operator(rows.roll(1, 0))
        if not _same_bits(operator(rows).roll(1, 0), moved_on):
            return False
    return True


def _cancelling_rows(size: int, like: "Tensor", seed: int, magnitudes: int) -> "Tensor":
    """Return rows of pairs ``v, -v`` in shuffled places, `[size, K]`."""
    import torch  # noqa: PLC0415

    chance = random.Random(seed)  # noqa: S311 - a fixed test pattern
    rows = []
    for _ in range(size):
        halves = [
            chance.uniform(1, 2) * 2.0 ** chance.randint(-magnitudes, magnitudes)
            for _ in range(like.shape[1] // 2)
        ]
        row = [*halves, *(-value for value in halves), *[0.0] * (like.shape[1] % 2)]
        chance.shuffle(row)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).to(like.device, like.dtype)


def _same_bits(left: "Tensor", right: "Tensor") -> bool:
    return bool(((left == right) | (left.isnan() & right.isnan())).all())
