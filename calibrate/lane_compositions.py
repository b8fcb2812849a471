"""Plans the compositions of lanes: who is computed with whom when every forward has a set shape.

Pure. The shape of a row's forward follows from its own length, so what can vary is how many of the
lane's rows are real, who they are, in which slots, and when. Pairs of compositions differ in one of
these for many rows:

* ``full``: each lane filled in file order, its last forward part-full; ``backwards``: the same
  forwards in reverse order;
* ``reversed``, ``turned``: the rows of each forward in reverse order, and the second half first;
* ``neighbours``: slot p of forward j takes the row of forward j + p, so that all neighbours change;
* ``half``: each forward in two, half full: the first half keeps its slots of ``full``, the second
  those of ``turned``;
* ``lone``: the first row of each forward alone among inert rows, the others together;
* ``shuffled``, ``sorted``: arrival order, and rows of like length together.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from harness.conditions.batching import Batch, RowShape, chunk, rows_by_lane
from harness.records.batching import Lane, Lanes

__all__ = ["Part", "exchanged", "lane_partitions", "measured_lanes"]

Part = tuple[int, ...]
"""The real rows of one forward, in slot order."""
Parts = Mapping[Lane, Sequence[Part]]
"""The forwards of every lane."""

NUM_FULL = 2
"""Full forwards of a lane that must be measured before a tolerance speaks for it: the fewest in
which every slot can hold another row among other neighbours."""


def lane_partitions(
    rows: Sequence[RowShape], batching: Lanes, seed: int
) -> dict[str, tuple[Batch, ...]]:
    """Return name -> batches; each holds every row once. Raises ConfigError when a row fits none.

    The first is the one that repeats are made of.
    """
    given = list(range(len(rows)))
    shuffled = random.Random(seed).sample(given, len(given))  # noqa: S311 - a seeded permutation
    by_length = sorted(given, key=lambda at: (rows[at].num_tokens, at))
    full = _cut(given, rows, batching)
    made: dict[str, Parts] = {
        "full": full,
        "reversed": _each(full, lambda part: [part[::-1]]),
        "turned": _each(full, lambda part: [sum(_halves(part)[::-1], ())]),
        "neighbours": {lane: exchanged(parts) for lane, parts in full.items()},
        "half": _each(full, _halves),
        "lone": _each(full, lambda part: [part[:1], part[1:]]),
        "shuffled": _cut(shuffled, rows, batching),
        "sorted": _cut(by_length, rows, batching),
    }
    found = {name: _batches(parts, batching) for name, parts in made.items()}
    return found | {"backwards": found["full"][::-1]}


def measured_lanes(rows: Sequence[RowShape], batching: Lanes) -> tuple[Lane, ...]:
    """Return the lanes that `rows` fill often enough for a tolerance to speak for them."""
    found = rows_by_lane(range(len(rows)), rows, batching.lanes)
    return tuple(
        lane for lane, mine in found.items() if len(mine) >= NUM_FULL * _capacity(lane, batching)
    )


def _capacity(lane: Lane, batching: Lanes) -> int:
    """Return how many real rows a forward of `lane` has at most."""
    return min(lane.rows, batching.max_rows or lane.rows)


def _cut(order: Sequence[int], rows: Sequence[RowShape], batching: Lanes) -> Parts:
    found = rows_by_lane(order, rows, batching.lanes)
    return {lane: list(chunk(mine, _capacity(lane, batching))) for lane, mine in found.items()}


def _each(parts: Parts, change: Callable[[Part], Sequence[Part]]) -> Parts:
    return {
        lane: [new for part in mine for new in change(part) if new] for lane, mine in parts.items()
    }


def _halves(part: Part) -> tuple[Part, Part]:
    middle = len(part) // 2
    return part[:middle], part[middle:]


def exchanged(parts: Sequence[Part]) -> list[Part]:
    """Return `parts` with rows in the same slots among other neighbours, but for a ragged last."""
    whole = [part for part in parts if len(part) == len(parts[0])]
    turned = [
        tuple(whole[(at + slot) % len(whole)][slot] for slot in range(len(part)))
        for at, part in enumerate(whole)
    ]
    return [*turned, *parts[len(whole) :]]


def _batches(parts: Parts, batching: Lanes) -> tuple[Batch, ...]:
    return tuple(
        Batch(rows=part, width=lane.width, side=batching.side, num_rows=lane.rows)
        for lane, mine in parts.items()
        for part in mine
    )
