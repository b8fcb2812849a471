"""FPRev against sums whose order is known, and against what must be refused."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.orders.fprev import (
    MINUS,
    PLUS,
    UNIT,
    BlackBox,
    Masks,
    UnfitOperatorError,
    certificate,
    confirms,
    predict,
    random_masks,
    reveal,
    reveal_all_pairs,
)
from harness.orders.patterns import (
    Adds,
    blocked,
    build,
    fused,
    halves,
    lanes,
    pairwise,
    reversed_order,
    sequential,
    split,
)
from harness.orders.tree import SummationTree, tree_of
from tests.orders.boxes import TreeBox, add, to_bits, trees

KNOWN: dict[str, Adds] = {
    "sequential": sequential,
    "reversed": reversed_order,
    "pairwise": pairwise,
    "halves": halves,
    "k-split 2": split(2, sequential, sequential),
    "k-split 3": split(3, sequential, pairwise),
    "k-split 8": split(8, pairwise, sequential),
    "blocked 8": blocked(8, sequential, sequential),
    "blocked 32": blocked(32, lanes(2, sequential, sequential), sequential),
    "lanes 16": lanes(16, sequential, halves),
    "fused 4": fused(4),
    "fused 16": fused(16),
}


@pytest.mark.parametrize("num_terms", [1, 2, 3, 5, 64, 192])
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_order_is_found(name: str, num_terms: int) -> None:
    tree = build(num_terms, KNOWN[name])
    assert reveal(TreeBox(tree)) == tree


def test_known_orders_are_all_different() -> None:
    """The negative control: were one found for another, this would be so for a pair."""
    digests = {name: reveal(TreeBox(build(64, adds))).digest for name, adds in KNOWN.items()}
    assert len(set(digests.values())) == len(KNOWN)


@settings(max_examples=80, deadline=None)
@given(trees(), st.integers(0, 3))
def test_any_binary_tree_is_found_whatever_the_seed(tree: SummationTree, seed: int) -> None:
    assert reveal(TreeBox(tree), seed) == tree


@settings(max_examples=80, deadline=None)
@given(trees(widest=6))
def test_any_tree_of_fused_additions_is_found_by_both_variants(tree: SummationTree) -> None:
    assert reveal(TreeBox(tree)) == tree
    assert reveal_all_pairs(TreeBox(tree)) == tree


@settings(max_examples=40, deadline=None)
@given(trees(widest=3), st.integers(1, 8))
def test_a_result_that_can_count_few_units_gives_the_same_tree(
    tree: SummationTree, capacity: int
) -> None:
    assert reveal(TreeBox(tree, capacity)) == tree


@settings(deadline=None)
@given(trees(most_terms=24, widest=4), st.integers(0, 2**32))
def test_the_prediction_is_what_real_additions_give(tree: SummationTree, seed: int) -> None:
    masks = random_masks(tree.num_terms, 2**20, 50, np.random.default_rng(seed))
    assert np.array_equal(predict(tree, masks), TreeBox(tree)(masks))


@pytest.mark.parametrize("order", [sequential, reversed_order, pairwise])
def test_the_cheaper_variant_asks_for_few_pairs(order: Adds) -> None:
    tree = build(512, order)
    assert len(certificate(tree)[0]) < 1.5 * 512 * math.log2(512)
    assert len(certificate(tree)[0]) < 512 * 511 / 2 / 18


@settings(deadline=None)
@given(trees(most_terms=12), trees(most_terms=12))
def test_a_certificate_is_confirmed_by_its_tree_alone(
    tree: SummationTree, other: SummationTree
) -> None:
    assert confirms(TreeBox(tree), certificate(tree))
    if other.num_terms == tree.num_terms:
        assert confirms(TreeBox(other), certificate(tree)) == (other == tree)


@pytest.mark.parametrize("a", range(5))
@pytest.mark.parametrize("b", range(5))
def test_two_swapped_terms_are_another_tree(a: int, b: int) -> None:
    order = [0, 1, 2, 3, 4]
    order[a], order[b] = order[b], order[a]
    chain = tree_of([[[[order[0], order[1]], order[2]], order[3]], order[4]])
    plain = build(5, sequential)
    same = {a, b} <= {0, 1} or a == b
    assert confirms(TreeBox(chain), certificate(plain)) == same


class Randomised:
    """Adds in a fresh order at every call, as atomics may."""

    num_terms, capacity = 24, 2**20

    def __init__(self) -> None:
        self._rng = np.random.default_rng(5)

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        order = self._rng.permutation(self.num_terms)
        return TreeBox(build(self.num_terms, sequential))(masks[:, order])


class RarelyRandomised(Randomised):
    """Swaps two of its terms once in a while."""

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        order = np.arange(self.num_terms)
        if self._rng.random() < 0.4:
            order[[3, 20]] = [20, 3]
        return TreeBox(build(self.num_terms, sequential))(masks[:, order])


class Exact:
    """Adds without rounding: there is no order to find."""

    num_terms, capacity = 24, 2**20

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        return np.asarray((masks == UNIT).sum(1), dtype=np.float64)


class ByValue:
    """Adds the masks first: its order depends on the values."""

    num_terms, capacity = 24, 2**20

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        order = np.argsort(-np.abs(masks), axis=1, kind="stable")
        return TreeBox(build(24, sequential))(np.take_along_axis(masks, order, axis=1))


class Saturating:
    """Adds in order, and never goes beyond 2**40."""

    num_terms, capacity = 24, 2**20

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        total = np.zeros(len(masks), dtype=np.float64)
        for term in masks.T:
            value = (term == UNIT) + 2.0**60 * (term == PLUS) - 2.0**60 * (term == MINUS)
            rounded = (total + value).astype(np.float32).astype(np.float64)
            total = rounded.clip(-(2.0**40), 2.0**40)
        return total


@pytest.mark.parametrize(
    ("box", "says"),
    [
        (Randomised(), "two sums: the order is not fixed"),
        (RarelyRandomised(), "two sums: the order is not fixed|meet in|another count"),
        (Exact(), "meet in 2: no tree adds so"),
        (ByValue(), "meet in 2: no tree adds so"),
        (Saturating(), "no count|meet in|another count"),
        (TreeBox(build(24, sequential), rounding=to_bits(4)), "24 units alone are not counted"),
        (TreeBox(build(200, pairwise), rounding=to_bits(5)), "meet in|alone are not counted"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.parametrize("variant", [reveal, reveal_all_pairs])
def test_an_operator_that_adds_by_no_tree_is_refused(
    box: BlackBox, says: str, variant: Callable[[BlackBox], SummationTree]
) -> None:
    with pytest.raises(UnfitOperatorError, match=says):
        variant(box)


def test_the_narrow_accumulator_is_no_trouble_when_it_is_known() -> None:
    """So the refusal above is for the count alone, and not for the order."""
    tree = build(24, sequential)
    assert reveal(TreeBox(tree, capacity=8, rounding=to_bits(4))) == tree


class OneWrong:
    """Adds by one tree, and by another where two distant pairs of masks stand together."""

    num_terms, capacity = 24, 2**20

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        plain = TreeBox(build(24, sequential))(masks)
        other = TreeBox(build(24, pairwise))(masks)
        return np.where((masks == PLUS).sum(1) > 1, other, plain)


def test_a_tree_that_does_not_predict_random_masks_is_refused() -> None:
    with pytest.raises(UnfitOperatorError, match="random probes gave another count"):
        reveal(OneWrong())


def test_infinite_sums_are_refused() -> None:
    class Overflowing(TreeBox):
        def __call__(self, masks: Masks) -> NDArray[np.float64]:
            read = super().__call__(masks)
            return np.where((masks == PLUS).any(1), np.nan, read)

    with pytest.raises(UnfitOperatorError, match="no finite number"):
        reveal(Overflowing(build(8, sequential)))


def test_real_additions_round() -> None:
    """The boxes of these tests are no predictions in disguise: they add floats."""
    terms = np.array([[1.0, 2.0**-24, 2.0**-24]])
    assert add(tree_of([[0, 1], 2]), terms) == 1.0
    assert add(tree_of([0, [1, 2]]), terms) == 1.0 + 2.0**-23
