"""Drawings and words of trees."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from harness.orders.drawing import draw_svg, draw_text
from harness.orders.patterns import (
    blocked,
    build,
    fused,
    lanes,
    pairwise,
    pattern,
    reversed_order,
    sequential,
    split,
)
from harness.orders.tree import SummationTree, tree_of
from tests.orders.boxes import trees

MIXED = tree_of([[[[0, 1], 2], [[3, 4], [5, 6]]], [7, 8, 9]])


@pytest.mark.parametrize(
    ("tree", "word"),
    [
        (build(1, sequential), "one term"),
        (build(50, sequential), "sequential"),
        (build(50, reversed_order), "reversed"),
        (build(50, pairwise), "pairwise"),
        (build(50, fused(8)), "fused 8"),
        (build(64, split(4, sequential, pairwise)), "blocked 16: sequential, then pairwise"),
        (build(50, split(4, sequential, sequential)), "k-split 4: sequential, then sequential"),
        (build(50, lanes(8, sequential, pairwise)), "lanes 8: sequential, then pairwise"),
        (
            build(192, blocked(32, lanes(2, sequential, sequential), sequential)),
            "blocked 32: lanes 2 sequential, then sequential",
        ),
        (MIXED, "other (depth 4, up to 3 at once)"),
    ],
)
def test_a_known_tree_has_a_word(tree: SummationTree, word: str) -> None:
    assert pattern(tree) == word


def test_a_tree_without_a_word_is_drawn_by_its_parts() -> None:
    assert draw_text(MIXED).splitlines() == [
        "10 terms, 4 parts added in turn:",
        "  terms 3 to 4: sequential",
        "  terms 5 to 6: sequential",
        "  terms 0 to 2: sequential",
        "  terms 7 to 9: fused 4",
    ]


def test_a_long_drawing_is_cut_and_says_so() -> None:
    odd = tree_of([[[at, at + 2], [at + 1, [at + 3, at + 4]]] for at in range(0, 100, 5)])
    assert draw_text(odd, most_lines=10).splitlines()[-1].endswith("more parts")
    assert len(draw_text(odd, most_lines=10).splitlines()) == 11


@settings(max_examples=20, deadline=None)
@given(trees(widest=4))
def test_an_svg_has_a_dot_a_term_and_a_bar_an_addition(tree: SummationTree) -> None:
    root = ET.fromstring(draw_svg(tree))  # noqa: S314 - our own
    kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert kinds.count("circle") == tree.num_terms
    assert kinds.count("path") == len(tree.nodes)
    assert pattern(tree) in "".join(root.itertext())
    assert len(draw_text(tree).splitlines()) >= 1
