"""Draws a summation tree: as text, where known parts are one line, and as SVG, term by term."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.orders.patterns import pattern
from harness.orders.tree import SummationTree

__all__ = ["draw_svg", "draw_text"]

_WIDTH, _ROW, _MARGIN = 960.0, 14.0, 24.0
"""Points: of the picture, between additions one above the other, around it."""


def draw_text(tree: SummationTree, most_lines: int = 60) -> str:
    """Return a drawing in lines, the last sums first; what is longer than `most_lines` is cut."""
    lines: list[str] = []
    waiting = [(len(tree.sizes) - 1, 0)]
    while waiting:
        at, depth = waiting.pop()
        if len(lines) == most_lines:
            lines.append(f"… {len(waiting) + 1} more parts")
            break
        word, parts = _described(tree, at)
        lines.append("  " * depth + word)
        waiting.extend((part, depth + 1) for part in reversed(parts))
    return "\n".join(lines)


def _described(tree: SummationTree, at: int) -> tuple[str, list[int]]:
    """Return the line of a part, and what stands below it."""
    if at < tree.num_terms:
        return f"term {at}", []
    own, terms = tree.below(at)
    word = pattern(own)
    if not word.startswith("other"):
        return f"{_named(terms)}: {word}", []
    parts = _in_turn(tree, at)
    how = "in turn" if len(parts) > len(tree.nodes[at - tree.num_terms]) else "together"
    return f"{len(terms)} terms, {len(parts)} parts added {how}:", parts


def _in_turn(tree: SummationTree, at: int) -> list[int]:
    """Return the parts that are added one after another, the first two first."""
    found: list[int] = []
    while at >= tree.num_terms and len(tree.nodes[at - tree.num_terms]) == 2:
        first, second = tree.nodes[at - tree.num_terms]
        if tree.sizes[first] < tree.sizes[second]:
            first, second = second, first
        found.append(second)
        at = first
        if found and tree.sizes[at] <= tree.sizes[second]:
            break
    if not found:
        return list(tree.nodes[at - tree.num_terms])
    return [at, *reversed(found)]


def _named(terms: Sequence[int]) -> str:
    if len(terms) == 1:
        return f"term {terms[0]}"
    steps = {after - before for before, after in pairwise(terms)}
    if len(steps) > 1:
        return f"{len(terms)} terms from {terms[0]} to {terms[-1]}"
    step = f" by {steps.pop()}" if steps != {1} else ""
    return f"terms {terms[0]} to {terms[-1]}{step}"


def draw_svg(tree: SummationTree) -> str:
    """Return an SVG: a dot a term, in drawing order, and a bar for each addition above its parts.

    The title of a bar tells how many terms it adds, for a reader that shows titles.
    """
    heights = _heights(tree)
    across = _WIDTH / max(tree.num_terms, 2)
    height = _MARGIN * 2 + _ROW * max(heights)
    body = "".join(_marks(tree, heights, across, height - _MARGIN))
    size = f"0 0 {_WIDTH + 2 * _MARGIN:g} {height:g}"
    title = f"{tree.num_terms} terms: {pattern(tree)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img">'
        f"<title>{title}</title>"
        f'<g fill="none" stroke="#245" stroke-width="0.8">{body}</g></svg>\n'
    )


def _heights(tree: SummationTree) -> list[int]:
    """Return how many additions stand below each id, itself included."""
    found = [0] * tree.num_terms
    for children in tree.nodes:
        found.append(1 + max(found[child] for child in children))
    return found


def _marks(
    tree: SummationTree, heights: Sequence[int], across: float, floor: float
) -> Iterator[str]:
    places = [0.0] * tree.num_terms
    for place, term in enumerate(tree.leaves):
        places[term] = _MARGIN + across * (place + 0.5)
        yield f'<circle cx="{places[term]:.1f}" cy="{floor:.1f}" r="0.9"/>'
    for at, children in enumerate(tree.nodes, tree.num_terms):
        level = floor - _ROW * heights[at]
        below = [places[child] for child in children]
        path = f"M{min(below):.1f} {level:.1f}H{max(below):.1f}"
        for child, x in zip(children, below, strict=True):
            path += f"M{x:.1f} {level:.1f}V{floor - _ROW * heights[child]:.1f}"
        yield f'<path d="{path}"><title>{tree.sizes[at]} terms</title></path>'
        places.append(sum(below) / len(below))
