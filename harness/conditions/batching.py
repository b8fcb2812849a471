"""Batches: which rows run together, at what width, padded on which side.

Pure: from token counts and a batching mode to batches. Every row stands in exactly one batch. A
lane's batch says how many rows its forward has; its inert rows are made where it runs. An engine's
batch is the requests that are in it together: a flight, which the engine packs into steps.
"""

import random
from collections.abc import Iterator, Sequence

from harness.conditions.flight import Flight
from harness.errors import ConfigError
from harness.records.batching import (
    Batching,
    Companions,
    FixedWidth,
    InFlight,
    Lane,
    Lanes,
    Order,
    Padded,
    PaddingSide,
    Solo,
    lane_of,
)
from harness.records.document import Record

__all__ = ["Batch", "RowShape", "chunk", "plan_batches", "rows_by_lane"]


class RowShape(Record, frozen=True, kw_only=True):
    """What batching may know about a row."""

    num_tokens: int
    """Its length."""
    decision_id: str
    """The decision it belongs to."""


class Batch(Record, frozen=True, kw_only=True):
    """Rows of one forward, or of one flight through an engine."""

    rows: tuple[int, ...]
    """Row indices in slot order; in a flight, in order of arrival."""
    width: int
    """Padded width, tokens; in a flight, the longest row."""
    side: PaddingSide | None
    """Side of the padding; None for a row alone at its own length."""
    num_rows: int | None = None
    """Rows of the forward at a set shape, inert ones included; None for these rows alone."""
    flight: Flight | None = None
    """How an engine is to take the rows; None for a forward."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed, padding and inert rows included: the estimate of the work."""
        return (self.num_rows or len(self.rows)) * (self.width + self._num_generated)

    @property
    def _num_generated(self) -> int:
        return self.flight.extra_tokens if self.flight else 0


def plan_batches(rows: Sequence[RowShape], batching: Batching, seed: int) -> tuple[Batch, ...]:
    """Return the batches that `batching` makes of `rows`; `seed` is for a shuffled order.

    Raises ConfigError when a row is longer than a fixed width, or fits no lane.
    """
    if isinstance(batching, Solo):
        return tuple(
            Batch(rows=(at,), width=row.num_tokens, side=None) for at, row in enumerate(rows)
        )
    groups = _companions(_ordered(rows, batching.order, seed), rows, batching.companions)
    if isinstance(batching, Lanes):
        return tuple(batch for group in groups for batch in _in_lanes(group, rows, batching))
    chunks = [part for group in groups for part in chunk(group, batching.max_rows)]
    return tuple(_batch(part, rows, batching) for part in chunks)


def chunk(rows: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Cut `rows` into parts of `size`; the last may be shorter."""
    for start in range(0, len(rows), size):
        yield tuple(rows[start : start + size])


def _ordered(rows: Sequence[RowShape], order: Order, seed: int) -> list[int]:
    indices = list(range(len(rows)))
    if order is Order.LENGTH:
        return sorted(indices, key=lambda at: (rows[at].num_tokens, at))
    if order is Order.SHUFFLED:
        random.Random(seed).shuffle(indices)  # noqa: S311 - a seeded permutation, no secret
    return indices


def _companions(
    order: Sequence[int], rows: Sequence[RowShape], companions: Companions
) -> list[list[int]]:
    if companions is Companions.ANY:
        return [list(order)]
    groups: dict[str, list[int]] = {}
    for at in order:
        groups.setdefault(rows[at].decision_id, []).append(at)
    return list(groups.values())


def _batch(
    part: tuple[int, ...], rows: Sequence[RowShape], batching: Padded | FixedWidth | InFlight
) -> Batch:
    longest = max(rows[at].num_tokens for at in part)
    if isinstance(batching, InFlight):
        return Batch(rows=part, width=longest, side=None, flight=Flight())
    width = batching.width if isinstance(batching, FixedWidth) else longest
    if width < longest:
        advice = "raise batching.width or shorten the row"
        raise ConfigError(f"a row has {longest} tokens, the fixed width is {width}; {advice}")
    return Batch(rows=part, width=width, side=batching.side)


def _in_lanes(group: Sequence[int], rows: Sequence[RowShape], batching: Lanes) -> Iterator[Batch]:
    for lane, mine in rows_by_lane(group, rows, batching.lanes).items():
        for part in chunk(mine, min(lane.rows, batching.max_rows or lane.rows)):
            yield Batch(rows=part, width=lane.width, side=batching.side, num_rows=lane.rows)


def rows_by_lane(
    chosen: Sequence[int], rows: Sequence[RowShape], lanes: tuple[Lane, ...]
) -> dict[Lane, list[int]]:
    """Return the `chosen` rows of each lane, in their order; ConfigError for one that fits none."""
    found: dict[Lane, list[int]] = {lane: [] for lane in lanes}
    for at in chosen:
        lane = lane_of(rows[at].num_tokens, lanes)
        if lane is None:
            raise ConfigError(
                f"decision {rows[at].decision_id!r} has a row of {rows[at].num_tokens} tokens and "
                f"the widest lane is {lanes[-1].width}, one of them padding; add a wider lane "
                "(`scorepin lanes` proposes widths)"
            )
        found[lane].append(at)
    return found
