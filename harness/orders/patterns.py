"""Known orders, built and recognised: a tree's short word.

An order is written from the inside out: how the terms of a part are added, how the terms are parted
(blocks of b in a row, s equal splits, every w-th term), and how the parts are added. A tree that is
none of these is ``other``; its drawing shows it. The word is for people: what is compared is the
digest.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise as neighbours
from itertools import product

from harness.orders.tree import SummationTree, TreeBuilder

__all__ = [
    "Adds",
    "blocked",
    "build",
    "fused",
    "halves",
    "lanes",
    "pairwise",
    "pattern",
    "reversed_order",
    "sequential",
    "split",
]

Adds = Callable[[TreeBuilder, Sequence[int]], int]
"""Adds parts by their ids; returns the id of the sum."""

MOST_TERMS = 4096
"""Larger trees are compared by digest alone: naming them would cost more than measuring them."""


def sequential(builder: TreeBuilder, parts: Sequence[int]) -> int:
    """Add one after another, from the first."""
    total = parts[0]
    for part in parts[1:]:
        total = builder.add([total, part])
    return total


def reversed_order(builder: TreeBuilder, parts: Sequence[int]) -> int:
    """Add one after another, from the last."""
    return sequential(builder, parts[::-1])


def pairwise(builder: TreeBuilder, parts: Sequence[int]) -> int:
    """Add neighbours, then neighbouring sums; an odd one waits."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [builder.add(pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def halves(builder: TreeBuilder, parts: Sequence[int]) -> int:
    """Add the second half onto the first, term by term, until one is left."""
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        low, high = parts[:half], parts[half:]
        parts = [*(builder.add(pair) for pair in zip(low, high, strict=False)), *low[len(high) :]]
    return parts[0]


def fused(width: int) -> Adds:
    """Add `width` terms and the sum so far in one rounded addition."""

    def adds(builder: TreeBuilder, parts: Sequence[int]) -> int:
        groups = [list(parts[at : at + width]) for at in range(0, len(parts), width)]
        total = builder.add(groups[0])
        for group in groups[1:]:
            total = builder.add([total, *group])
        return total

    return adds


def blocked(size: int, inner: Adds, outer: Adds) -> Adds:
    """Add each `size` terms in a row by `inner`, and the sums by `outer`."""

    def adds(builder: TreeBuilder, parts: Sequence[int]) -> int:
        blocks = [parts[at : at + size] for at in range(0, len(parts), size)]
        return outer(builder, [inner(builder, block) for block in blocks])

    return adds


def split(count: int, inner: Adds, outer: Adds) -> Adds:
    """Add `count` parts of nearly equal size by `inner`, and the sums by `outer`."""

    def adds(builder: TreeBuilder, parts: Sequence[int]) -> int:
        edges = [part * len(parts) // count for part in range(count + 1)]
        pieces = [parts[a:b] for a, b in neighbours(edges) if a < b]
        return outer(builder, [inner(builder, piece) for piece in pieces])

    return adds


def lanes(width: int, inner: Adds, outer: Adds) -> Adds:
    """Add every `width`-th term by `inner`, and the lanes' sums by `outer`."""

    def adds(builder: TreeBuilder, parts: Sequence[int]) -> int:
        strides = [parts[lane::width] for lane in range(min(width, len(parts)))]
        return outer(builder, [inner(builder, stride) for stride in strides])

    return adds


def build(num_terms: int, adds: Adds) -> SummationTree:
    """Return the tree in which `adds` adds `num_terms` terms."""
    builder = TreeBuilder(num_terms)
    return builder.finish(adds(builder, range(num_terms)))


@cache
def pattern(tree: SummationTree) -> str:
    """Return the short word of a tree, ``other`` when it has none."""
    if tree.num_terms == 1:
        return "one term"
    if tree.num_terms > MOST_TERMS:
        return f"{tree.num_terms} terms"
    depths = tree.depths[: tree.num_terms]
    for word, adds in _known(tree.num_terms):
        builder = TreeBuilder(tree.num_terms)
        root = adds(builder, range(tree.num_terms))
        if builder.depths(root) == depths and builder.finish(root) == tree:
            return word
    widest = f", up to {tree.widest} at once" if tree.widest > 2 else ""
    return f"other (depth {max(depths)}{widest})"


def _known(num_terms: int) -> Iterator[tuple[str, Adds]]:
    yield from _SIMPLE
    yield from ((f"fused {width}", fused(width)) for width in (2, 4, 8, 16, 32))
    yield from _parted(num_terms, _SIMPLE)
    yield from _parted(num_terms, _LANED)


def _parted(num_terms: int, inners: Sequence[tuple[str, Adds]]) -> Iterator[tuple[str, Adds]]:
    for (inside, inner), (outside, outer) in product(inners, _SIMPLE):
        for size in (2, 4, 8, 16, 32, 64, 128, 256):
            if size < num_terms:
                yield f"lanes {size}: {inside}, then {outside}", lanes(size, inner, outer)
                yield f"blocked {size}: {inside}, then {outside}", blocked(size, inner, outer)
        for count in range(2, 9):
            if count < num_terms:
                yield f"k-split {count}: {inside}, then {outside}", split(count, inner, outer)


_SIMPLE: tuple[tuple[str, Adds], ...] = (
    ("sequential", sequential),
    ("reversed", reversed_order),
    ("pairwise", pairwise),
    ("halves", halves),
)
_LANED = (
    *(
        (f"lanes {width} {word}", lanes(width, sequential, outer))
        for width, (word, outer) in product((2, 4, 8, 16), _SIMPLE)
        if outer is not reversed_order
    ),
    ("blocked 32 lanes 2", blocked(32, lanes(2, sequential, sequential), sequential)),
)
"""The last is how a CPU's bfloat16 tiles add."""
