"""Summation trees: what makes two of them equal, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.codec import canonical_bytes
from harness.orders.tree import SummationTree, tree_of
from tests.orders.boxes import trees


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([[0, 1], 2], [2, [1, 0]]),
        ([[0, 1], [2, 3]], [[3, 2], [0, 1]]),
        ([[0, 1, 2], 3], [3, [2, 0, 1]]),
        ([0], 0),
        ([[[0, 1]], 2], [[0, 1], 2]),
    ],
)
def test_addition_commutes(left: Any, right: Any) -> None:
    assert tree_of(left) == tree_of(right)
    assert tree_of(left).digest == tree_of(right).digest


def test_every_tree_of_four_terms_has_a_digest_of_its_own() -> None:
    chains = {tree_of([[[a, b], c], d]).digest for a, b, c, d in itertools.permutations(range(4))}
    pairs = {tree_of([[a, b], [c, d]]).digest for a, b, c, d in itertools.permutations(range(4))}
    fused = tree_of([0, 1, 2, 3]).digest
    assert (len(chains), len(pairs)) == (12, 3)
    assert len(chains | pairs | {fused}) == 16


def test_a_tree_knows_its_sizes_parents_and_depths() -> None:
    tree = tree_of([[[0, 2], 1], 3])
    assert tree.nodes == ((0, 2), (4, 1), (5, 3))
    assert tree.sizes == (1, 1, 1, 1, 2, 3, 4)
    assert tree.parents == (4, 5, 4, 6, 5, 6, -1)
    assert tree.depths == (3, 2, 3, 1, 2, 1, 0)
    assert tree.leaves == (0, 2, 1, 3)
    assert tree.widest == 2


@pytest.mark.parametrize(
    "nodes",
    [
        ((0, 1),),
        ((0, 1), (0, 2)),
        ((0,), (1, 2)),
        ((0, 4), (1, 2), (3, 4)),
        ((3, 2), (0, 1)),
    ],
)
def test_what_is_no_tree_is_refused(nodes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"a summation tree|an addition"):
        SummationTree(num_terms=3, nodes=nodes)


@settings(deadline=None)
@given(trees(widest=4), st.randoms(use_true_random=False))
def test_the_order_of_parts_never_matters(tree: SummationTree, random: Any) -> None:
    nested: list[Any] = list(range(tree.num_terms))
    for children in tree.nodes:
        parts = [nested[child] for child in children]
        random.shuffle(parts)
        nested.append(parts)
    again = tree_of(nested[-1])
    assert again == tree
    assert canonical_bytes(again) == canonical_bytes(tree)


@given(trees(widest=4))
def test_terms_below_an_addition_stand_together(tree: SummationTree) -> None:
    place = np.argsort(tree.leaves)
    below: list[set[int]] = [{term} for term in range(tree.num_terms)]
    for children in tree.nodes:
        below.append(set().union(*(below[child] for child in children)))
    for terms in below:
        places = sorted(int(place[term]) for term in terms)
        assert places == list(range(places[0], places[0] + len(places)))
