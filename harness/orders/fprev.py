"""FPRev: the summation tree of a black box, from what it returns for chosen terms.

A term is absent (0), a unit (+1), or a mask (+big or -big), where a unit is lost when it is added
to a sum that holds an unbalanced mask. With +big at i, -big at j and units elsewhere, exactly the
units survive that are added after i and j have met: num_terms minus the size of the smallest
subtree that holds both. From enough pairs follows the tree. In a fused addition of several terms
the units beside a mask are lost alike, so its parts all meet in one size: it is found as one node.

Two variants, the same tree:

* `reveal`: asks, for one term of a subtree, where it meets each other one; that parts the subtree.
  The term is drawn at random (the paper takes the first), which makes the expected number of pairs
  n log n for every binary tree; the first costs n**2 / 2 where terms are added from the last;
* `reveal_all_pairs`: asks for every pair and checks that all of them fit one tree.

Nothing is guessed. A box that loses units without a mask (an accumulator too narrow for the count),
gives a count that is no whole number, answers twice differently (atomics, randomised order), or
whose answers fit no tree, is refused with `UnfitOperatorError`; and a tree that was found must
predict what random masks give, with several pairs of masks and random units.

What it does not know: a tree of another input. The order must not depend on the values.

Source: Xie, Gao, Wang, Xue: Revealing Floating-Point Accumulation Orders in Software/Hardware
Implementations (arXiv 2411.00442), sections 4 and 5.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.errors import EvidenceError
from harness.orders.tree import SummationTree, TreeBuilder

__all__ = [
    "ABSENT",
    "MINUS",
    "PLUS",
    "UNIT",
    "BlackBox",
    "UnfitOperatorError",
    "certificate",
    "check_random",
    "confirms",
    "meet_at",
    "meet_of",
    "predict",
    "reveal",
    "reveal_all_pairs",
]

ABSENT, UNIT, PLUS, MINUS = 0, 1, 2, -2
"""Codes of a term in a mask."""

NUM_RANDOM = 32
"""Random masks of one call."""
NUM_CALLS = 6
"""Calls in which they are put: an order may change from call to call, and not within one."""

Masks = NDArray[np.int8]
"""Codes of every term, `[probes, num_terms]`."""
Counts = NDArray[np.int64]
"""Units that survived."""
Meet = Callable[[NDArray[np.int64], NDArray[np.int64]], Counts]
"""Size of the smallest subtree that holds both terms, for pairs of terms, `[pairs]`."""


class UnfitOperatorError(EvidenceError):
    """An operator's answers fit no summation tree; the message says why."""


class BlackBox(Protocol):
    """An operator that adds, at one shape, seen through masks."""

    num_terms: int
    """Terms of the sum."""
    capacity: int
    """Most units in one probe that the operator's result can count exactly."""

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        """Return how many units survived in each probe, as read: `[probes]`."""


def reveal(box: BlackBox, seed: int = 0) -> SummationTree:
    """Return the tree in which `box` adds; raise UnfitOperatorError when there is none."""
    _check_units(box)
    _check_repeats(box, seed)
    tree = _build(box.num_terms, lambda i, j: meet_at(box, i, j), np.random.default_rng(seed))
    check_random(box, tree, seed + 1)
    return tree


def reveal_all_pairs(box: BlackBox, seed: int = 0) -> SummationTree:
    """Return the same tree from every pair of terms: n * (n - 1) / 2 of them."""
    _check_units(box)
    _check_repeats(box, seed)
    first, second = np.triu_indices(box.num_terms, 1)
    sizes = np.ones((box.num_terms, box.num_terms), dtype=np.int64)
    sizes[first, second] = sizes[second, first] = meet_at(box, first, second)
    tree = _build(box.num_terms, lambda i, j: sizes[i, j], np.random.default_rng(seed))
    if not np.array_equal(sizes[first, second], meet_of(tree)(first, second)):
        raise UnfitOperatorError("some pairs of terms meet where the tree of the others has none")
    check_random(box, tree, seed + 1)
    return tree


@lru_cache(maxsize=64)
def certificate(tree: SummationTree, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Return first terms, second terms and sizes of the pairs that `reveal` asks of `tree`.

    A box that answers them all so has this tree and no other: `reveal` would have found it.
    """
    asked: list[NDArray[np.int64]] = []
    meet = meet_of(tree)

    def listen(first: NDArray[np.int64], second: NDArray[np.int64]) -> Counts:
        sizes = meet(first, second)
        asked.append(np.stack([first, second, sizes]))
        return sizes

    _build(tree.num_terms, listen, np.random.default_rng(seed))
    return tuple(np.concatenate(asked, axis=1)) if asked else (np.empty(0, np.int64),) * 3


def confirms(box: BlackBox, pairs: tuple[NDArray[np.int64], ...]) -> bool:
    """Return whether `box` answers a certificate (or a part of one) as its tree does."""
    first, second, sizes = pairs
    if not len(first):
        return True
    try:
        return bool(np.array_equal(meet_at(box, first, second), sizes))
    except UnfitOperatorError:
        return False


def check_random(box: BlackBox, tree: SummationTree, seed: int) -> None:
    """Raise UnfitOperatorError unless `tree` predicts what random masks give, call after call."""
    masks = random_masks(box.num_terms, box.capacity, NUM_RANDOM, np.random.default_rng(seed))
    predicted = predict(tree, masks)
    for _ in range(NUM_CALLS):
        wrong = int((_whole(box(masks)) != predicted).sum())
        if wrong:
            raise UnfitOperatorError(
                f"{wrong} of {NUM_RANDOM} random probes gave another count than the tree found"
            )


def predict(tree: SummationTree, masks: Masks) -> Counts:
    """Return how many units survive in `tree`, `[probes]`; masks that do not balance leave none."""
    masked = [np.sign(term) * (np.abs(term) == PLUS) for term in masks.T.astype(np.int64)]
    units = [(term == UNIT).astype(np.int64) for term in masks.T]
    for children in tree.nodes:
        clean = np.all([masked[child] == 0 for child in children], axis=0)
        masked.append(np.sum([masked[child] for child in children], axis=0))
        units.append(np.sum([units[child] for child in children], axis=0) * clean)
    survived: Counts = units[-1] * (masked[-1] == 0)
    return survived


def random_masks(num_terms: int, capacity: int, count: int, rng: np.random.Generator) -> Masks:
    """Return probes of up to three pairs of masks, and units at random places, `[count, n]`."""
    masks = np.zeros((count, num_terms), dtype=np.int8)
    for probe in masks:
        places = rng.permutation(num_terms)
        pairs = int(rng.integers(0, min(3, num_terms // 2) + 1))
        probe[places[:pairs]], probe[places[pairs : 2 * pairs]] = PLUS, MINUS
        rest = places[2 * pairs :]
        probe[rest[: rng.integers(0, min(len(rest), capacity) + 1)]] = UNIT
    return masks


def _check_units(box: BlackBox) -> None:
    """Raise where units are lost with no mask beside them: the accumulator cannot count them."""
    masks = np.stack([_units(box.num_terms, part) for part in _parts(box)])
    wanted = (masks == UNIT).sum(axis=1)
    if not np.array_equal(_whole(box(masks)), wanted):
        raise UnfitOperatorError(
            f"{wanted.max()} units alone are not counted: the accumulator saturates, or rounds away"
        )


def _check_repeats(box: BlackBox, seed: int) -> None:
    masks = random_masks(box.num_terms, box.capacity, NUM_RANDOM, np.random.default_rng(seed))
    first = box(masks)
    for _ in range(1, NUM_CALLS):
        if not np.array_equal(box(masks), first, equal_nan=True):
            raise UnfitOperatorError("the same terms gave two sums: the order is not fixed")


def _parts(box: BlackBox) -> list[NDArray[np.int64]]:
    """Return the terms in as few parts as the operator can count."""
    return np.array_split(np.arange(box.num_terms), -(-box.num_terms // box.capacity))


def _units(num_terms: int, part: NDArray[np.int64]) -> Masks:
    mask = np.zeros(num_terms, dtype=np.int8)
    mask[part] = UNIT
    return mask


def meet_at(box: BlackBox, first: NDArray[np.int64], second: NDArray[np.int64]) -> Counts:
    """Return how many terms the smallest subtree with both terms of each pair has, `[pairs, ...]`.

    Units are put part by part, as many as the box can count, and counted together.
    """
    probes = np.arange(len(first))
    survived = []
    for part in _parts(box):
        masks = np.tile(_units(box.num_terms, part), (len(first), 1))
        masks[probes, first], masks[probes, second] = PLUS, MINUS
        survived.append(_whole(box(masks)))
    sizes: Counts = box.num_terms - np.sum(survived, axis=0)
    return sizes


def _whole(read: NDArray[np.float64]) -> Counts:
    """Return what was read as counts; raise where it is none."""
    if not np.all(np.isfinite(read)):
        raise UnfitOperatorError("a probe gave no finite number: masks overflow or do not cancel")
    counts = np.rint(read)
    if np.any(np.abs(read - counts) > 0.25) or np.any(counts < 0):
        raise UnfitOperatorError("a probe gave no count: masks do not cancel, or units are rounded")
    return counts.astype(np.int64)


class _Task:
    """Terms that stand below `top`, as one part of it or as several, and are to be parted."""

    def __init__(self, terms: NDArray[np.int64], top: int, above: int) -> None:
        self.terms, self.top, self.above = terms, top, above

    def choose(self, rng: np.random.Generator) -> None:
        at = int(rng.integers(len(self.terms)))
        self.pivot, self.others = int(self.terms[at]), np.delete(self.terms, at)


def _build(num_terms: int, meet: Meet, rng: np.random.Generator) -> SummationTree:
    """Return the tree of the sizes at which terms meet, all open subtrees a round in one call."""
    builder = TreeBuilder(num_terms)
    root = builder.add()
    tasks = [_Task(np.arange(num_terms), num_terms + 1, root)]
    while tasks:
        open_tasks = [task for task in tasks if len(task.terms) > 1]
        for task in tasks:
            if len(task.terms) == 1:
                builder.join(task.above, int(task.terms[0]))
        for task in open_tasks:
            task.choose(rng)
        sizes = _sizes(open_tasks, meet)
        tasks = [
            new
            for task, own in zip(open_tasks, sizes, strict=True)
            for new in _parted(task, own, builder)
        ]
    return builder.finish(root)


def _sizes(tasks: Sequence[_Task], meet: Meet) -> list[Counts]:
    if not tasks:
        return []
    first = np.concatenate([np.full(len(task.others), task.pivot) for task in tasks])
    second = np.concatenate([task.others for task in tasks])
    edges = np.cumsum([len(task.others) for task in tasks])[:-1]
    return np.split(meet(first, second), edges)


def _parted(task: _Task, sizes: Counts, builder: TreeBuilder) -> list[_Task]:
    """Hang the additions on the pivot's way up; return what hangs beside it, to be parted."""
    part, size, found = task.pivot, 1, []
    for met in np.unique(sizes):
        beside = task.others[sizes == met]
        if met == task.top:  # a fused addition above: these are other parts of it
            found.append(_Task(beside, task.top, task.above))
            break
        if size + len(beside) != met:
            raise UnfitOperatorError(
                f"{size} and {len(beside)} terms meet in {met}: no tree adds so; an accumulator "
                "may be wider than the masks"
            )
        part = builder.add([part])
        found.append(_Task(beside, int(met), part))
        size = int(met)
    builder.join(task.above, part)
    return found


def meet_of(tree: SummationTree) -> Meet:
    """Return where terms meet in a known tree."""
    ways: dict[int, Counts] = {}
    places = np.empty(tree.num_terms, dtype=np.int64)
    places[list(tree.leaves)] = np.arange(tree.num_terms)
    starts = _starts(tree, places)

    def way(term: int) -> Counts:
        """Sizes at which `term` meets each place in drawing order."""
        found = np.ones(tree.num_terms, dtype=np.int64)
        low, high, at = int(places[term]), int(places[term]) + 1, tree.parents[term]
        while at >= 0:
            size, start = tree.sizes[at], starts[at]
            found[start:low] = found[high : start + size] = size
            low, high, at = start, start + size, tree.parents[at]
        return found

    def meet(first: NDArray[np.int64], second: NDArray[np.int64]) -> Counts:
        for term in set(first.tolist()) - ways.keys():
            ways[term] = way(term)
        if not len(first):
            return np.empty(0, dtype=np.int64)
        return np.array(
            [ways[i][at] for i, at in zip(first.tolist(), places[second].tolist(), strict=True)]
        )

    return meet


def _starts(tree: SummationTree, places: NDArray[np.int64]) -> list[int]:
    """Return the first place below each id."""
    found = [int(place) for place in places]
    for children in tree.nodes:
        found.append(min(found[child] for child in children))
    return found
