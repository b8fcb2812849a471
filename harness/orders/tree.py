"""A summation tree: in which order a kernel adds its terms, as a value.

A leaf is a term by its index; a node is one rounded addition of what its children give. A node of
more than two children is a fused addition: its terms are brought to one exponent and rounded once,
as matrix units do. Addition commutes, so a tree has no left and right: children stand by their
smallest leaf and nodes in post-order, and two trees are equal when they round alike.

What it does not know: how wide the accumulator is, and what the terms are.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from harness.codec import digest
from harness.records.document import Record

__all__ = ["SummationTree", "TreeBuilder", "tree_of"]

Nested = int | Sequence[Any]
"""A term, or the parts that are added together."""


class SummationTree(Record, frozen=True, kw_only=True, dict=True):
    """The order in which `num_terms` terms are added."""

    num_terms: int
    """Leaves: 0 to num_terms - 1."""
    nodes: tuple[tuple[int, ...], ...]
    """Children of each addition; addition k has id num_terms + k and follows its children."""

    def __post_init__(self) -> None:
        """Every id but the last is somebody's child, exactly once, and stands before its parent."""
        ids = [child for children in self.nodes for child in children]
        last = self.num_terms + len(self.nodes) - 1
        if self.num_terms < 1 or sorted(ids) != list(range(last)):
            raise ValueError("a summation tree uses every term and every addition exactly once")
        for at, children in enumerate(self.nodes, self.num_terms):
            if len(children) < 2 or max(children) >= at:
                raise ValueError("an addition takes two or more parts that stand before it")

    @cached_property
    def digest(self) -> str:
        """Digest of the tree: the order fingerprint of one sum."""
        return digest([self.num_terms, self.nodes])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of terms below each id, `[num_terms + additions]`."""
        found = [1] * self.num_terms
        for children in self.nodes:
            found.append(sum(found[child] for child in children))
        return tuple(found)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The addition above each id; -1 above the root."""
        found = [-1] * len(self.sizes)
        for at, children in enumerate(self.nodes, self.num_terms):
            for child in children:
                found[child] = at
        return tuple(found)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Additions above each id, `[num_terms + additions]`; 0 at the root."""
        found = [0] * len(self.sizes)
        for at in reversed(range(len(self.sizes) - 1)):
            found[at] = found[self.parents[at]] + 1
        return tuple(found)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Terms in drawing order: those below one addition stand together."""
        found: list[int] = []
        waiting = [len(self.sizes) - 1]
        while waiting:
            at = waiting.pop()
            if at < self.num_terms:
                found.append(at)
            else:
                waiting.extend(reversed(self.nodes[at - self.num_terms]))
        return tuple(found)

    def below(self, at: int) -> "tuple[SummationTree, tuple[int, ...]]":
        """Return the tree below id `at` over its own terms, and which terms they are, sorted."""
        first, last = self._span(at)
        terms = tuple(sorted(self.leaves[first:last]))
        builder, new = TreeBuilder(len(terms)), {term: own for own, term in enumerate(terms)}
        for addition in range(self.num_terms, at + 1):
            children = self.nodes[addition - self.num_terms]
            if all(child in new for child in children):
                new[addition] = builder.add(new[child] for child in children)
        return builder.finish(new[at]), terms

    def _span(self, at: int) -> tuple[int, int]:
        """Return the places in drawing order that are below id `at`."""
        first = at
        while first >= self.num_terms:
            first = self.nodes[first - self.num_terms][0]
        start = self.leaves.index(first)
        return start, start + self.sizes[at]

    @property
    def widest(self) -> int:
        """Most parts of one addition; 1 for a single term."""
        return max((len(children) for children in self.nodes), default=1)


class TreeBuilder:
    """Collects additions in any order and gives the canonical tree."""

    def __init__(self, num_terms: int) -> None:
        """Begin with the terms alone."""
        self._num_terms = num_terms
        self._children: list[list[int]] = []

    def add(self, children: Iterable[int] = ()) -> int:
        """Make an addition of these ids and return its id; more may join it later."""
        self._children.append(list(children))
        return self._num_terms + len(self._children) - 1

    def join(self, addition: int, child: int) -> None:
        """Put one more id under an addition."""
        self._children[addition - self._num_terms].append(child)

    def depths(self, root: int) -> tuple[int, ...]:
        """Return the additions above each term: a quick mark of a tree, not its identity."""
        found = [0] * (self._num_terms + len(self._children))
        for at in range(root, self._num_terms - 1, -1):
            for child in self._below(at):
                found[child] = found[at] + 1
        return tuple(found[: self._num_terms])

    def finish(self, root: int) -> SummationTree:
        """Return the canonical tree below `root`; an addition of one part is that part."""
        smallest: dict[int, int] = {}
        new: dict[int, int] = {}
        nodes: list[tuple[int, ...]] = []
        for at in self._post_order(root):
            below = self._below(at)
            smallest[at] = min((smallest[child] for child in below), default=at)
        for at in self._post_order(root, smallest):
            below = [new[child] for child in self._sorted(at, smallest)]
            if len(below) < 2:
                new[at] = below[0] if below else at
            else:
                new[at] = self._num_terms + len(nodes)
                nodes.append(tuple(below))
        return SummationTree(num_terms=self._num_terms, nodes=tuple(nodes))

    def _below(self, at: int) -> list[int]:
        return [] if at < self._num_terms else self._children[at - self._num_terms]

    def _sorted(self, at: int, smallest: dict[int, int]) -> list[int]:
        return sorted(self._below(at), key=lambda child: smallest.get(child, 0))

    def _post_order(self, root: int, smallest: dict[int, int] | None = None) -> list[int]:
        found, waiting = [], [root]
        while waiting:
            at = waiting.pop()
            found.append(at)
            waiting.extend(self._sorted(at, smallest or {}))
        return found[::-1]


def tree_of(nested: Nested) -> SummationTree:
    """Return the tree of a nested sequence: ``[[0, 1], 2]`` adds 0 and 1, then 2."""
    builder = TreeBuilder(_count(nested))
    root = builder.add()
    waiting = [(nested, root)]
    while waiting:
        part, above = waiting.pop()
        if isinstance(part, int):
            builder.join(above, part)
        else:
            own = builder.add()
            builder.join(above, own)
            waiting.extend((inner, own) for inner in part)
    return builder.finish(root)


def _count(nested: Nested) -> int:
    found, waiting = 0, [nested]
    while waiting:
        part = waiting.pop()
        if isinstance(part, int):
            found += 1
        else:
            waiting.extend(part)
    return found
