"""One measurement: which tree an operator adds by at one shape, and at which of its results.

The tree is found in the view with most probes in a call and must then be confirmed in the other
one, pair by pair: so every row is compared with the certificate and every column too (a row sees a
pair in one column, a column in one row). The confirmation takes all pairs where it can afford them.
Where the places of a view differ, each group of places gets a tree of its own. Where no view has a
consistent tree the operator is refused, with the reason.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.orders import fprev
from harness.orders.fprev import Masks, UnfitOperatorError, certificate, confirms, meet_at, reveal
from harness.orders.operators import View
from harness.orders.tree import SummationTree

__all__ = ["Part", "measure"]

MOST_TREES = 8
"""More orders than that in one call are taken for an order that depends on every place."""
MOST_PRODUCTS = 2**32
MOST_CALLS = 256
"""A confirmation that costs more than these is made on a part of the pairs, drawn by a fixed seed.

It matters where a view holds few probes in a call: at one to four rows, or one column."""


class Part:
    """A tree and the places of a result that were added by it."""

    def __init__(self, places: str, tree: SummationTree) -> None:
        """`places` is ``all``, or ``rows 0-3``."""
        self.places, self.tree = places, tree


def measure(views: Sequence[View], known: Sequence[SummationTree] = ()) -> tuple[Part, ...]:
    """Return the trees of one operator at one shape; trees of other shapes are tried first.

    Raises UnfitOperatorError.
    """
    ordered = sorted(views, key=lambda view: -view.per_call)
    tree, reason = _one_tree(ordered, known)
    if tree is not None:
        return (Part("all", tree),)
    for view in ordered:
        try:
            return _by_place(view)
        except UnfitOperatorError as error:
            reason = reason or str(error)
    raise UnfitOperatorError(reason)


def _one_tree(
    views: Sequence[View], known: Sequence[SummationTree]
) -> tuple[SummationTree | None, str]:
    """Return the one tree of all places, or why there is none."""
    first, *others = views
    try:
        tree = _recognised(first, known) or reveal(_Agreed(first))
    except UnfitOperatorError as error:
        return None, str(error)
    for view in others:
        if not confirms(_Agreed(view), _affordable(view, tree)):
            return None, f"{view.places} and {first.places} are added by different trees"
    return tree, ""


def _recognised(view: View, known: Sequence[SummationTree]) -> SummationTree | None:
    """Return the known tree that `view` confirms in full."""
    box = _Agreed(view)
    for tree in known:
        if tree.num_terms == view.num_terms and confirms(box, certificate(tree)):
            fprev.check_random(box, tree, seed=1)
            return tree
    return None


def _by_place(view: View) -> tuple[Part, ...]:
    """Return a tree for each group of places that answer alike."""
    num_places = view.read(np.zeros((1, view.num_terms), dtype=np.int8)).shape[1]
    open_places = np.arange(num_places)
    found: list[Part] = []
    while len(open_places):
        if len(found) == MOST_TREES:
            raise UnfitOperatorError(f"more than {MOST_TREES} trees over the {view.places}")
        tree = reveal(_At(view, int(open_places[0])))
        alike = _places_of(view, tree)[open_places]
        if not alike[0]:
            raise UnfitOperatorError("the same terms gave two sums: the order is not fixed")
        found.append(Part(f"{view.places} {_ranges(open_places[alike])}", tree))
        open_places = open_places[~alike]
    if len(found) == 1:  # so what differs is not told apart by this view's places
        raise UnfitOperatorError(f"the {view.places} agree, and the sums differ elsewhere")
    return tuple(found)


def _places_of(view: View, tree: SummationTree) -> NDArray[np.bool_]:
    """Return which places answer the whole certificate as `tree` does, `[places]`."""
    first, second, sizes = certificate(tree)
    same = [np.array(True)]
    for start in range(0, len(first), 512):
        part = slice(start, start + 512)
        found = meet_at(_Places(view), first[part], second[part])
        same.append((found == sizes[part, None]).all(axis=0))
    alike: NDArray[np.bool_] = np.logical_and.reduce(np.broadcast_arrays(*same))
    return alike


def _affordable(view: View, tree: SummationTree) -> tuple[NDArray[np.int64], ...]:
    """Return the certificate, or as much of it as may be asked of so costly a call."""
    pairs = certificate(tree)
    parts = -(-view.num_terms // view.capacity)
    calls = min(max(MOST_PRODUCTS // view.products, 1), MOST_CALLS)
    most = calls * view.per_call // parts
    if len(pairs[0]) <= most:
        return pairs
    chosen = np.random.default_rng(0).permutation(len(pairs[0]))[: max(most, 1)]
    return tuple(column[chosen] for column in pairs)


def _ranges(places: NDArray[np.int64]) -> str:
    """Return ``0-3,8`` for 0, 1, 2, 3, 8."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return ",".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class _Places:
    """A view as a box that gives every place."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.num_terms, self.capacity = view.num_terms, view.capacity

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        return self._view.read(masks)


class _At(_Places):
    """A view seen at one place."""

    def __init__(self, view: View, place: int) -> None:
        super().__init__(view)
        self._place = place

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._view.read(masks)[:, self._place]
        return found


class _Agreed(_Places):
    """A view whose places must all give the same."""

    def __call__(self, masks: Masks) -> NDArray[np.float64]:
        read = self._view.read(masks)
        if not (read == read[:, :1]).all():
            raise UnfitOperatorError(f"the {self._view.places} of one result differ")
        found: NDArray[np.float64] = read[:, 0]
        return found
