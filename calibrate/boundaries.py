"""Boundaries: at which sizes the result of an unchanged row switches, found by comparing bits.

Pure but for the scoring that is handed in. Along one axis the coarse sizes are tried first; between
neighbours that differ the middle is tried, until every switch lies between two sizes that follow
each other. Rules kept here:

* bits are compared, and only those of one row with itself: same tokens, same slot;
* the number of sizes is bounded; where it ran out a switch is told by the gap in which it lies;
* several rows are probed, since one may keep its bits by chance: a bfloat16 score has few of them;
* what was tried is listed. Two switches that undo each other between two sizes are not seen.

What grows: the number of rows (copies of the row, the row itself in slot 0, at one width), and the
padded width (the same rows in the same slots). A row's own length cannot be searched this way: two
lengths are two inputs, with no bits in common. To a kernel a length is a width, so the widths begin
at that of the shortest rows; how far long rows move is told by `calibrate.strata`.

Not known here: what switches, and what a switch does to the last slots of a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from calibrate.config import Arm, CalibrationConfig, Sweep
from harness.conditions.batching import Batch, RowShape, chunk
from harness.records.batching import FixedWidth, Padded
from harness.records.document import Record
from harness.records.tolerance import AxisSearch, Switch

__all__ = ["Found", "Score", "find_switches", "is_searchable", "refined", "search_arm"]

T = TypeVar("T")

Score = Callable[[Sequence[Batch]], Sequence[Sequence[float]]]
"""Scores batches in order, each with one score a slot."""
Bits = Mapping[int, str]
"""Probe -> its score, as the text that reads back to the same bits."""

MOST_SIZES = 48
"""Sizes tried along one axis."""
MOST_REFINED = 3
"""Switches of one axis around which a sweep is made dense: each size costs a pass over all rows."""
NUM_PROBES = 6
"""Rows that are probed for the number of rows, from the shortest to the longest."""
NUM_GROUPS = 3
"""Batches that are probed for the width: of short, middling and long rows."""
NUM_WIDTHS = 10
"""Coarse widths."""
WIDTH_STEP = 8
"""Coarse widths are multiples of it, as kernels' tiles are."""


class Found(Record, frozen=True, kw_only=True):
    """What a search along one axis came to."""

    sizes: tuple[int, ...]
    """The sizes that were tried, ascending."""
    switches: tuple[Switch, ...]
    """Neighbours among them that differ, ascending."""


class _Axis(Record, frozen=True, kw_only=True):
    """One axis of one arm, ready to be searched."""

    name: str
    held: str
    coarse: tuple[int, ...]
    probes: tuple[int, ...]
    batches: Callable[[int], tuple[Batch, ...]]
    read: Callable[[Batch], tuple[int, ...]]
    """The slots of a batch that are compared."""


def find_switches(
    coarse: Sequence[int], same: Callable[[int, int], bool], most: int = MOST_SIZES
) -> Found:
    """Return the switches between the smallest and the largest of `coarse`.

    `same` says whether the bits at two sizes agree. The widest gap with a switch in it is halved
    first, so that `most` sizes leave no gap much wider than another.
    """
    sizes = sorted(set(coarse))
    differs = {pair: not same(*pair) for pair in pairwise(sizes)}
    while len(sizes) < most and (gap := _widest(differs)):
        last, first = gap
        middle = (last + first) // 2
        del differs[gap]
        differs |= {pair: not same(*pair) for pair in pairwise((last, middle, first))}
        sizes.append(middle)
    switches = sorted(pair for pair, moved in differs.items() if moved)
    return Found(
        sizes=tuple(sorted(sizes)),
        switches=tuple(Switch(last=last, first=first) for last, first in switches),
    )


def is_searchable(arm: Arm) -> bool:
    """Return whether an arm's batches can differ in size: not where rows are alone or in lanes."""
    return isinstance(arm.batching, Padded | FixedWidth)


def search_arm(
    rows: Sequence[RowShape], arm: Arm, sweep: Sweep, score: Score
) -> tuple[AxisSearch, ...]:
    """Return what the search finds under one arm; nothing where no size can vary."""
    return tuple(_searched(axis, score) for axis in _axes(rows, arm, sweep))


def refined(
    config: CalibrationConfig, searches: Mapping[int, Sequence[AxisSearch]]
) -> CalibrationConfig:
    """Return `config` with a sweep that is dense around what the searches of its arms found.

    Around a switch the last size before it, the first after it and the next are added; of many
    switches along one axis `MOST_REFINED` are taken, spread evenly. All arms measure the sizes:
    where one arm switches, another is seen not to.
    """
    found = [search for arm in sorted(searches) for search in searches[arm]]
    sweep = replace(
        config.sweep,
        rows=_denser(config.sweep.rows, found, "num_rows"),
        widths=_denser(config.sweep.widths, found, "padded_width"),
    )
    return replace(config, sweep=sweep)


def _widest(differs: Mapping[tuple[int, int], bool]) -> tuple[int, int] | None:
    """Return the widest gap that holds a switch, the lowest of equals; None if all are closed."""
    open_gaps = [gap for gap, moved in differs.items() if moved and gap[1] - gap[0] > 1]
    return max(open_gaps, key=lambda gap: (gap[1] - gap[0], -gap[0]), default=None)


def _searched(axis: _Axis, score: Score) -> AxisSearch:
    known: dict[int, Bits] = {}

    def bits(size: int) -> Bits:
        if size not in known:
            known[size] = _read(axis, axis.batches(size), score)
        return known[size]

    def same(one: int, other: int) -> bool:
        left, right = bits(one), bits(other)
        return all(left[row] == right[row] for row in left.keys() & right.keys())

    found = find_switches(axis.coarse, same)
    return AxisSearch(
        axis=axis.name,
        held=axis.held,
        sizes=found.sizes,
        switches=found.switches,
        probe_lengths=axis.probes,
    )


def _read(axis: _Axis, batches: Sequence[Batch], score: Score) -> Bits:
    return {
        batch.rows[slot]: repr(scores[slot])
        for batch, scores in zip(batches, score(batches), strict=True)
        for slot in axis.read(batch)
    }


def _axes(rows: Sequence[RowShape], arm: Arm, sweep: Sweep) -> Iterator[_Axis]:
    """Yield what can vary: nothing alone or at fixed shapes, no width where that is fixed."""
    batching = arm.batching
    if isinstance(batching, Padded | FixedWidth):
        by_length = sorted(range(len(rows)), key=lambda at: (rows[at].num_tokens, at))
        if batching.max_rows > 1:
            yield _num_rows(rows, by_length, batching, sweep)
        if isinstance(batching, Padded) and _widest_width(rows) > rows[by_length[0]].num_tokens:
            yield _padded_width(rows, by_length, batching, sweep)


def _num_rows(
    rows: Sequence[RowShape],
    by_length: Sequence[int],
    batching: Padded | FixedWidth,
    sweep: Sweep,
) -> _Axis:
    probes = _spread(by_length, NUM_PROBES)
    fixed = batching.width if isinstance(batching, FixedWidth) else None

    def batches(size: int) -> tuple[Batch, ...]:
        return tuple(
            Batch(rows=(at,) * size, width=fixed or rows[at].num_tokens, side=batching.side)
            for at in probes
        )

    most = batching.max_rows
    return _Axis(
        name="num_rows",
        held=f"a width of {fixed} tokens, slot 0" if fixed else "the row's own length, slot 0",
        coarse=tuple({*_growing(most), *(size for size in sweep.rows if size <= most)}),
        probes=tuple(rows[at].num_tokens for at in probes),
        batches=batches,
        read=lambda _: (0,),
    )


def _padded_width(
    rows: Sequence[RowShape], by_length: Sequence[int], batching: Padded, sweep: Sweep
) -> _Axis:
    size = min(sweep.reference_rows, batching.max_rows)
    groups = _spread(list(chunk(by_length, size)), NUM_GROUPS)
    shortest = rows[groups[0][-1]].num_tokens
    widest = _widest_width(rows)

    def batches(width: int) -> tuple[Batch, ...]:
        return tuple(
            Batch(rows=group, width=width, side=batching.side)
            for group in groups
            if rows[group[-1]].num_tokens <= width
        )

    given = (width for width in sweep.widths if shortest <= width <= widest)
    return _Axis(
        name="padded_width",
        held=f"{size} rows, the same in every slot",
        coarse=tuple({shortest, *_even(shortest, widest), *given, widest}),
        probes=tuple(rows[at].num_tokens for group in groups for at in group),
        batches=batches,
        read=lambda batch: tuple(range(len(batch.rows))),
    )


def _widest_width(rows: Sequence[RowShape]) -> int:
    longest = max(row.num_tokens for row in rows)
    return -(-longest // WIDTH_STEP) * WIDTH_STEP


def _growing(most: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 8, 16, ... and `most`: the smallest sizes are where kernels differ most."""
    yield from (size for size in (1, 2, 3) if size < most)
    size = 4
    while size < most:
        yield size
        size *= 2
    yield most


def _even(shortest: int, widest: int) -> Iterator[int]:
    """Yield up to `NUM_WIDTHS` multiples of `WIDTH_STEP`, evenly spread."""
    steps = range(-(-shortest // WIDTH_STEP), widest // WIDTH_STEP + 1)
    yield from (step * WIDTH_STEP for step in _spread(steps, NUM_WIDTHS))


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Return up to `most` of `items`, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[at * (len(items) - 1) // (most - 1)] for at in range(most)]


def _denser(given: Sequence[int], found: Sequence[AxisSearch], axis: str) -> tuple[int, ...]:
    """Return `given` and the sizes around the switches of `axis`, each once."""
    mine = [search for search in found if search.axis == axis]
    most = max((search.sizes[-1] for search in mine), default=0)
    switches = sorted({(s.last, s.first) for search in mine for s in search.switches})
    around = {
        size
        for last, first in _spread(switches, MOST_REFINED)
        for size in (last, first, first + 1)
        if size <= most
    }
    return (*given, *sorted(around - set(given)))
