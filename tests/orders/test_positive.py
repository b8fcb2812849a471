"""Sums of terms that are not negative: the tree from grains."""

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from harness.orders.fprev import Masks, UnfitOperatorError
from harness.orders.patterns import (
    Adds,
    blocked,
    build,
    halves,
    lanes,
    pairwise,
    reversed_order,
    sequential,
)
from harness.orders.positive import confirms_positive, reveal_positive
from harness.orders.tree import SummationTree
from tests.orders.boxes import GrainTreeBox, trees

KNOWN = (
    sequential,
    reversed_order,
    pairwise,
    halves,
    lanes(16, sequential, halves),
    blocked(8, pairwise, sequential),
)


@pytest.mark.parametrize("num_terms", [1, 2, 3, 48, 87])
@pytest.mark.parametrize("adds", KNOWN)
def test_a_known_order_is_found(adds: Adds, num_terms: int) -> None:
    tree = build(num_terms, adds)
    assert reveal_positive(GrainTreeBox(tree)) == tree


@settings(max_examples=100, deadline=None)
@given(trees(most_terms=24))
def test_any_binary_tree_is_found(tree: SummationTree) -> None:
    assert reveal_positive(GrainTreeBox(tree)) == tree


def test_another_tree_is_not_confirmed() -> None:
    box = GrainTreeBox(build(32, sequential))
    assert confirms_positive(box, build(32, sequential))
    assert not confirms_positive(box, build(32, pairwise))


class Randomised:
    num_terms = 24

    def __init__(self) -> None:
        self._rng = np.random.default_rng(5)

    def __call__(self, masks: Masks) -> NDArray[np.bool_]:
        order = self._rng.permutation(self.num_terms)
        return GrainTreeBox(build(self.num_terms, sequential))(masks[:, order])


def unrounded(exact: NDArray[np.float64]) -> NDArray[np.float64]:
    return exact


@pytest.mark.parametrize(
    "box",
    [
        Randomised(),
        GrainTreeBox(build(24, sequential), rounding=unrounded),
        GrainTreeBox(build(24, lambda builder, parts: builder.add(parts))),
    ],
    ids=["randomised", "a wider accumulator", "all at once"],
)
def test_an_operator_that_adds_by_no_binary_tree_is_refused(box: GrainTreeBox) -> None:
    with pytest.raises(UnfitOperatorError, match=r"in no order|otherwise than"):
        reveal_positive(box)
