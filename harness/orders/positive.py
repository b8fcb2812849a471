"""The summation tree of a sum whose terms cannot be negative, such as a softmax's denominator.

Masks cannot cancel there, so FPRev's count is not to be had. Instead one term is 1 and all others
are absent but for grains: terms a little under half of the last place of 1. A grain alone is lost
when it is added to the 1; two grains that meet first are not. So one probe tells whether two terms
meet before either meets a third, and three such answers tell how any three terms are joined.

`reveal_positive` sorts, for one term drawn at random, the others by where on its way to the root
they join it, which parts the tree as in `harness.orders.fprev`: n log(n)**2 probes are expected. A
box whose answers fit no tree of additions of two (a wider accumulator, compensated summation, an
order that changes) is refused.

What it does not know: sums that round after every term to a type in which 1 and 1 + one grain pair
cannot be told apart in the result; they are refused, not guessed.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.orders.fprev import UnfitOperatorError, meet_of
from harness.orders.tree import SummationTree, TreeBuilder

__all__ = ["ABSENT", "GRAIN", "ONE", "GrainBox", "confirms_positive", "reveal_positive"]

ABSENT, GRAIN, ONE = 0, 1, 2
"""Codes of a term."""

NUM_RANDOM = 256
"""Random probes, put twice, at the end of a measurement."""

Terms = NDArray[np.int64]
Triples = NDArray[np.int64]
"""The term that is 1 and the two grains, `[probes, 3]`."""


class GrainBox(Protocol):
    """A sum of terms that are not negative, at one shape."""

    num_terms: int
    """Terms of the sum."""

    def __call__(self, masks: NDArray[np.int8]) -> NDArray[np.bool_]:
        """Return whether the grains of each probe were counted, `[probes]`."""


def reveal_positive(box: GrainBox, seed: int = 0) -> SummationTree:
    """Return the tree in which `box` adds; raise UnfitOperatorError when there is none."""
    rng = np.random.default_rng(seed)
    tree = _build(_Asker(box), box.num_terms, rng)
    if not confirms_positive(box, tree, seed + 1):
        raise UnfitOperatorError("random triples of terms are joined otherwise than in the tree")
    return tree


def confirms_positive(box: GrainBox, tree: SummationTree, seed: int = 0) -> bool:
    """Return whether `box` joins random triples of terms as `tree` does, twice."""
    if tree.num_terms < 3:
        return True
    rng = np.random.default_rng(seed)
    triples = np.stack([rng.permutation(tree.num_terms)[:3] for _ in range(NUM_RANDOM)])
    meet = meet_of(tree)
    one, first, second = triples.T
    wanted = meet(first, second) < meet(one, first)
    asker = _Asker(box)
    return all(np.array_equal(asker.joined(triples), wanted) for _ in range(2))


class _Asker:
    def __init__(self, box: GrainBox) -> None:
        self._box = box

    def joined(self, triples: Triples) -> NDArray[np.bool_]:
        """Return whether the two grains meet before either meets the 1."""
        masks = np.full((len(triples), self._box.num_terms), ABSENT, dtype=np.int8)
        probes = np.arange(len(triples))
        one, first, second = triples.T
        masks[probes, first], masks[probes, second] = GRAIN, GRAIN
        masks[probes, one] = ONE
        return self._box(masks)


class _Span:
    """Terms that join `pivot` somewhere on its way up, not yet sorted."""

    def __init__(self, pivot: int, terms: Terms) -> None:
        self.pivot, self.terms = pivot, terms

    def split(self, asker: _Asker, splitter: int) -> tuple[Terms, Terms, Terms]:
        """Return the terms that join below `splitter`, with it, and above it."""
        others = self.terms[self.terms != splitter]
        pivot, split = np.full_like(others, self.pivot), np.full_like(others, splitter)
        asked = [(split, pivot, others), (others, pivot, split), (pivot, others, split)]
        answers = asker.joined(np.concatenate([np.stack(one, axis=1) for one in asked]))
        below, above, beside = np.split(answers, 3)
        if not np.all(below.astype(int) + above + beside == 1):
            raise UnfitOperatorError(
                "three terms are joined in no order: a wider accumulator, or fused additions"
            )
        return others[below], np.append(others[beside], splitter), others[above]


def _build(asker: _Asker, num_terms: int, rng: np.random.Generator) -> SummationTree:
    builder = TreeBuilder(num_terms)
    root = builder.add()
    waiting = [(np.arange(num_terms), root)]
    while waiting:
        terms, above = waiting.pop()
        pivot = int(terms[rng.integers(len(terms))])
        part = pivot
        for beside in _on_the_way(asker, pivot, terms[terms != pivot], rng):
            part = builder.add([part])
            waiting.append((beside, part))
        builder.join(above, part)
    return builder.finish(root)


def _on_the_way(asker: _Asker, pivot: int, others: Terms, rng: np.random.Generator) -> list[Terms]:
    """Return the terms in groups that join `pivot` together, the first to join first."""
    found: list[Terms] = []
    waiting: list[tuple[Terms, bool]] = [(others, False)]
    while waiting:
        terms, is_group = waiting.pop()
        if is_group or len(terms) == 1:
            found.append(terms)
        elif len(terms):
            splitter = int(terms[rng.integers(len(terms))])
            below, beside, above = _Span(pivot, terms).split(asker, splitter)
            waiting += [(above, False), (beside, True), (below, False)]
    return found
