"""Batching modes: the rule by which rows are put together, as a config asks for it.

What a rule led to in one call, who was computed with whom, is `BatchMembership`.
"""

from enum import StrEnum
from itertools import pairwise

from harness.records.document import Record

__all__ = [
    "Batching",
    "Companions",
    "FixedWidth",
    "InFlight",
    "Lane",
    "Lanes",
    "Order",
    "Padded",
    "PaddingSide",
    "Solo",
    "lane_of",
]


class PaddingSide(StrEnum):
    """Where inert tokens are put to make the rows of a batch equally long."""

    LEFT = "left"
    """Before the row: the last real tokens of all rows share a column."""
    RIGHT = "right"
    """After the row: every row starts in column 0."""


class Order(StrEnum):
    """The order in which rows enter batches."""

    GIVEN = "given"
    """As the decisions file has them."""
    LENGTH = "length"
    """By token count, ties by file order: the least padding."""
    SHUFFLED = "shuffled"
    """A seeded permutation, as arrival order at a server would be."""


class Companions(StrEnum):
    """Whose rows may share a batch."""

    ANY = "any"
    """Rows of any decision."""
    SAME_DECISION = "same_decision"
    """Rows of one decision only."""


class Solo(Record, frozen=True, kw_only=True, tag="solo", tag_field="mode"):
    """Each row alone, unpadded."""


class Padded(Record, frozen=True, kw_only=True, tag="padded", tag_field="mode"):
    """Rows together, padded to the longest of them."""

    side: PaddingSide = PaddingSide.RIGHT
    """Which side is padded."""
    max_rows: int = 32
    """Largest number of rows in one batch."""
    order: Order = Order.GIVEN
    """Order in which rows enter batches."""
    companions: Companions = Companions.ANY
    """Whose rows may share a batch."""

    def __post_init__(self) -> None:
        """A batch holds at least one row."""
        _check_positive("max_rows", self.max_rows)


class FixedWidth(Record, frozen=True, kw_only=True, tag="fixed_width", tag_field="mode"):
    """Rows together, padded to one set width whatever their lengths."""

    width: int
    """Padded width, tokens."""
    side: PaddingSide = PaddingSide.RIGHT
    """Which side is padded."""
    max_rows: int = 32
    """Largest number of rows in one batch."""
    order: Order = Order.GIVEN
    """Order in which rows enter batches."""
    companions: Companions = Companions.ANY
    """Whose rows may share a batch."""

    def __post_init__(self) -> None:
        """A batch holds at least one row of at least one token."""
        _check_positive("max_rows", self.max_rows)
        _check_positive("width", self.width)


class Lane(Record, frozen=True, kw_only=True):
    """One shape of forwards: so many rows, so wide, whatever is in them."""

    rows: int
    """Rows of every forward, inert ones included."""
    width: int
    """Padded width, tokens. Rows are shorter: a lane's last column is always padding."""

    def __post_init__(self) -> None:
        """A lane holds at least one row of at least one token and one of padding."""
        _check_positive("rows", self.rows)
        if self.width < 2:
            raise ValueError(f"a lane is at least 2 tokens wide, found {self.width}")


class Lanes(Record, frozen=True, kw_only=True, tag="lanes", tag_field="mode"):
    """Rows together in forwards of a few set shapes, each filled up with inert rows."""

    lanes: tuple[Lane, ...]
    """The shapes, by ascending width; a row goes to the narrowest that is wider than it."""
    side: PaddingSide = PaddingSide.RIGHT
    """Which side is padded."""
    max_rows: int | None = None
    """Largest number of real rows in one forward; None for as many as the lane has."""
    order: Order = Order.GIVEN
    """Order in which rows enter their lanes."""
    companions: Companions = Companions.ANY
    """Whose rows may share a forward."""

    def __post_init__(self) -> None:
        """There is a lane, widths ascend, and a forward holds at least one row."""
        if not self.lanes:
            raise ValueError("lanes: there must be at least one")
        for lane, wider in pairwise(self.lanes):
            if wider.width <= lane.width:
                found = f"{wider.width} after {lane.width}"
                raise ValueError(f"lanes stand in order of ascending width, found {found}")
        if self.max_rows is not None:
            _check_positive("max_rows", self.max_rows)


class InFlight(Record, frozen=True, kw_only=True, tag="in_flight", tag_field="mode"):
    """Requests in a serving engine together: its scheduler packs them into steps, unpadded."""

    max_rows: int = 32
    """Largest number of requests in the engine at once."""
    order: Order = Order.GIVEN
    """Order in which they arrive."""
    companions: Companions = Companions.ANY
    """Whose rows may be in the engine together."""

    def __post_init__(self) -> None:
        """At least one request is in flight."""
        _check_positive("max_rows", self.max_rows)


Batching = Solo | Padded | FixedWidth | Lanes | InFlight
"""A batching mode, told apart by `mode` in JSON and YAML."""


def lane_of(num_tokens: int, lanes: tuple[Lane, ...]) -> Lane | None:
    """Return the lane of a row of `num_tokens`, which nothing else decides; None: it fits none."""
    return next((lane for lane in lanes if num_tokens < lane.width), None)


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, found {value}")
