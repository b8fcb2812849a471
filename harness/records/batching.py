"""Batching modes: the rule by which rows are put together, as a config asks for it.

What a rule led to in one call, who was computed with whom, is `BatchMembership`.
"""

from enum import StrEnum

from harness.records.document import Record

__all__ = ["Batching", "Companions", "FixedWidth", "Order", "Padded", "PaddingSide", "Solo"]


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


Batching = Solo | Padded | FixedWidth
"""A batching mode, told apart by `mode` in JSON and YAML."""


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, found {value}")
