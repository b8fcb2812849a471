"""Order fingerprints: per shape class, the digest of the trees at a fixed ladder of sizes.

A fingerprint belongs to a build under a condition and not to a batch: the ladder is the same
whatever is scored, so two replicas that add by the same trees have the same fingerprints, and a
kernel that changed at any rung changes one. Refused rungs count as such; why they were refused is
for people and does not enter.

What it does not know: sizes between the rungs, where a library may choose yet another kernel; and
the operators in `Orders.unmeasured`.
"""

from harness.codec import digest
from harness.orders.shapes import SumShape
from harness.orders.tree import SummationTree
from harness.records.document import Record

__all__ = [
    "LENGTHS",
    "ROWS",
    "BatchOrders",
    "BatchShape",
    "ClassOrder",
    "OrderProbe",
    "Orders",
    "PlacedTree",
    "Rung",
    "rungs_of",
]

ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Rungs of operators that take tokens as rows: rows times padded width."""

LENGTHS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512)
"""Rungs of operators that add over keys, up to the verifier's limit of tokens."""

MOST_PRODUCTS = 2**31
"""A rung whose single call adds more terms than this is left out, on every machine alike."""


class PlacedTree(Record, frozen=True, kw_only=True):
    """The tree of some places of a result."""

    places: str
    """``all``, ``rows 0-3``, ``columns 64-127``."""
    tree: str
    """Digest of the tree."""


class Rung(Record, frozen=True, kw_only=True):
    """What was found at one size."""

    size: int
    """Rows, or keys."""
    trees: tuple[PlacedTree, ...] = ()
    """Trees by place; empty where the operator was refused."""
    refused: str = ""
    """Why it was."""

    @property
    def identity(self) -> list[list[str]]:
        """What two rungs of equal order share."""
        return [[one.places, one.tree] for one in self.trees]


class ClassOrder(Record, frozen=True, kw_only=True):
    """The order of one shape class."""

    shape: SumShape
    """The class."""
    rungs: tuple[Rung, ...]
    """One for each size of the ladder that it has."""

    @property
    def fingerprint(self) -> str:
        """Digest over all rungs."""
        return digest([[rung.size, rung.identity] for rung in self.rungs])


class Orders(Record, frozen=True, kw_only=True):
    """Everything that was measured of one model under one condition."""

    classes: tuple[ClassOrder, ...]
    """By class, in the order in which a forward comes to them."""
    unmeasured: tuple[str, ...]
    """Operators that add and were not probed."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """Class name -> fingerprint: what an invocation records."""
        return {one.shape.name: one.fingerprint for one in self.classes}


class BatchShape(Record, frozen=True, kw_only=True):
    """The shape of one batch."""

    rows: int
    """Rows."""
    width: int
    """Padded width, tokens."""


class BatchOrders(Record, frozen=True, kw_only=True):
    """The orders at the very shapes of one batch, and what the batch gave."""

    batch: BatchShape
    """The batch."""
    rungs: dict[str, Rung]
    """Class name -> what was found there."""
    observed: str
    """Digest of the bits of its first row: last hidden states of its tokens, and score."""


class OrderProbe(Record, frozen=True, kw_only=True):
    """All that `scorepin probe` measures in one condition's process."""

    orders: Orders
    """Every class over its ladder."""
    seconds: float
    """Wall time that this took."""
    batches: tuple[BatchOrders, ...]
    """What was found and seen at the shapes of real batches."""
    trees: dict[str, SummationTree]
    """Every tree of both, by digest."""
    cached: dict[str, str] | None
    """The fingerprints in the cache for this build and condition; None when it has none."""


def rungs_of(shape: SumShape, longest: int) -> tuple[int, ...]:
    """Return the ladder of a class for a verifier that takes rows of up to `longest` tokens."""
    if shape.is_by_length:
        return tuple(size for size in LENGTHS if size <= longest)
    sizes = shape.sizes
    products = sizes.get("in", 1) * sizes.get("out", 1) * sizes.get("terms", 1)
    return tuple(size for size in ROWS if size * products <= MOST_PRODUCTS)
