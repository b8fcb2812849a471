"""Chooses lanes for rows of given lengths: the few widths that cost the least padding.

Pure. Of all ways to cut the sorted lengths into at most K lanes, the one with the fewest tokens to
compute is found by dynamic programming: padding of the rows and inert rows of each lane's last
forward both count. Every lane gets the same number of rows.

Rules: rows x width is a multiple of 64, so that a kernel's tiles have no ragged last one, in which
a row's bits may depend on its slot; a lane is wider than its rows by a column at least; no lane has
so few rows that a calibration could not speak for it.

Not known here: which shapes a device computes fast. `benchmarks/batching.py` measures that.
"""

from collections import Counter
from collections.abc import Sequence
from math import gcd

from calibrate.lane_compositions import NUM_FULL
from harness.errors import ConfigError
from harness.records.batching import Lane, lane_of
from harness.records.document import Record

__all__ = ["LanePlan", "LaneUse", "plan_lanes"]

TILE = 64
"""Rows of a matrix product that kernels take at a time, or a multiple of it."""


class LaneUse(Record, frozen=True, kw_only=True):
    """One lane, and what goes through it."""

    lane: Lane
    """The shape."""
    num_rows: int
    """Rows that go to it."""
    num_tokens: int
    """Their own tokens."""

    @property
    def num_forwards(self) -> int:
        """Forwards that they take when they come together."""
        return -(-self.num_rows // self.lane.rows)

    @property
    def num_padded(self) -> int:
        """Tokens that are computed for them: padding and inert rows included."""
        return self.num_forwards * self.lane.rows * self.lane.width

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that are padding or stand in inert rows."""
        return 1 - self.num_tokens / self.num_padded


class LanePlan(Record, frozen=True, kw_only=True):
    """Lanes, by ascending width, and what goes through each."""

    uses: tuple[LaneUse, ...]
    """One a lane."""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes alone."""
        return tuple(use.lane for use in self.uses)

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that are padding or stand in inert rows."""
        return 1 - sum(use.num_tokens for use in self.uses) / self.num_padded

    @property
    def num_padded(self) -> int:
        """Tokens computed in all."""
        return sum(use.num_padded for use in self.uses)


def plan_lanes(lengths: Sequence[int], *, rows: int, max_lanes: int) -> LanePlan:
    """Return at most `max_lanes` lanes of `rows` rows for rows of `lengths` tokens.

    Raises ConfigError when there are too few rows to calibrate one lane.
    """
    least = NUM_FULL * rows
    if len(lengths) < least:
        advice = "give more decisions, or fewer rows a lane"
        raise ConfigError(f"{len(lengths)} rows cannot fill a lane of {rows} twice; {advice}")
    step = TILE // gcd(TILE, rows)
    counts = Counter((length // step + 1) * step for length in lengths)
    widths = sorted(counts)
    chosen = _cheapest(widths, [counts[width] for width in widths], rows, max_lanes)
    lanes = tuple(Lane(rows=rows, width=width) for width in chosen)
    return LanePlan(uses=_uses(lengths, lanes))


def _cheapest(widths: Sequence[int], counts: Sequence[int], rows: int, max_lanes: int) -> list[int]:
    """Return the widths, of those given, ascending, for which the fewest tokens are computed.

    `best[end]` is the cheapest way found so far to serve the first `end` widths: its tokens, and
    the widths of its lanes. One more lane is tried in each round.
    """
    before = [0]
    for count in counts:
        before.append(before[-1] + count)
    sizes = range(1, len(widths) + 1)
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for _ in range(max_lanes):
        longer = dict(best)
        for end in sizes:
            for start, (tokens, chosen) in best.items():
                mine = before[end] - before[start] if start < end else 0
                if mine < NUM_FULL * rows:
                    continue
                cost = tokens + -(-mine // rows) * rows * widths[end - 1]
                if end not in longer or cost < longer[end][0]:
                    longer[end] = cost, [*chosen, widths[end - 1]]
        best = longer
    return best[len(widths)][1]


def _uses(lengths: Sequence[int], lanes: tuple[Lane, ...]) -> tuple[LaneUse, ...]:
    found: dict[Lane, list[int]] = {lane: [] for lane in lanes}
    for length in lengths:
        lane = lane_of(length, lanes)
        if lane is not None:  # the widest is wider than all
            found[lane].append(length)
    return tuple(
        LaneUse(lane=lane, num_rows=len(mine), num_tokens=sum(mine)) for lane, mine in found.items()
    )
