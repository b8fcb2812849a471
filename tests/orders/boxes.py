"""Black boxes whose order is known: real floating-point sums, taken as a tree says."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.orders import fprev, positive
from harness.orders.fprev import Masks
from harness.orders.tree import SummationTree, TreeBuilder

Terms = NDArray[np.float32]
Rounding = Callable[[NDArray[np.float64]], NDArray[np.float64]]
BIG, UNIT = 2.0**60, 1.0
GRAIN = 0.4 * 2.0**-23


def to_float32(exact: NDArray[np.float64]) -> NDArray[np.float64]:
    return exact.astype(np.float32).astype(np.float64)


def to_bits(bits: int) -> Rounding:
    """Return a rounding to so many significand bits, ties to even."""

    def rounded(exact: NDArray[np.float64]) -> NDArray[np.float64]:
        fraction, exponent = np.frexp(exact)
        whole: NDArray[np.float64] = np.rint(np.ldexp(fraction, bits))
        scaled: NDArray[np.float64] = np.ldexp(whole, exponent - bits)
        return scaled

    return rounded


def aligned_sum(parts: list[NDArray[np.float64]], bits: int = 24) -> NDArray[np.float64]:
    """Add at once, as matrix units do: all parts cut to the last place of the largest."""
    largest = np.max(np.abs(parts), axis=0)
    place = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    total: NDArray[np.float64] = np.sum([np.trunc(part / place) * place for part in parts], axis=0)
    return total


def add(tree: SummationTree, terms: NDArray[np.float64], rounding: Rounding = to_float32) -> Terms:
    """Add terms ``[sums, num_terms]`` by `tree`, each addition rounded; nothing else is known."""
    values = list(terms.T)
    for children in tree.nodes:
        parts = [values[child] for child in children]
        values.append(rounding(parts[0] + parts[1]) if len(parts) == 2 else aligned_sum(parts))
    result: Terms = values[-1]
    return result


class TreeBox:
    """Adds by a tree; `num_probes` counts what it was asked."""

    def __init__(
        self, tree: SummationTree, capacity: int = 2**20, rounding: Rounding = to_float32
    ) -> None:
        self.tree, self.capacity, self.rounding = tree, capacity, rounding
        self.num_terms = tree.num_terms
        self.num_probes = 0

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        self.num_probes += len(masks)
        table = np.array([0.0, UNIT, BIG, -BIG, 0.0])
        return add(self.tree, table[masks], self.rounding).astype(np.float64)


class GrainTreeBox:
    """Adds by a tree terms that are not negative."""

    def __init__(self, tree: SummationTree, rounding: Rounding = to_float32) -> None:
        self.tree, self.num_terms, self.rounding = tree, tree.num_terms, rounding

    def __call__(self, masks: Masks) -> NDArray[np.bool_]:
        table = np.zeros(3)
        table[positive.GRAIN], table[positive.ONE] = GRAIN, 1.0
        return np.asarray(add(self.tree, table[masks], self.rounding) > 1.0)


@st.composite
def trees(draw: st.DrawFn, most_terms: int = 40, widest: int = 2) -> SummationTree:
    """Draw a tree: terms in any order, any parts joined until one is left."""
    num_terms = draw(st.integers(1, most_terms))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    builder = TreeBuilder(num_terms)
    parts = rng.permutation(num_terms).tolist()
    lean = draw(st.sampled_from([0.0, 0.5, 1.0]))  # towards a chain
    while len(parts) > 1:
        count = int(rng.integers(2, min(widest, len(parts)) + 1))
        last = [parts.pop() for _ in range(1)] if rng.random() < lean else []
        chosen = last + [parts.pop(int(rng.integers(len(parts)))) for _ in range(count - len(last))]
        parts.append(builder.add(chosen))
    return builder.finish(parts[0])


assert {fprev.ABSENT, fprev.UNIT, fprev.PLUS, fprev.MINUS} == {0, 1, 2, -2}
