"""Plans which rows are computed with whom: the compositions of an arm.

Pure. A composition puts every row in exactly one batch, so n rows and K compositions cost n x K
row-forwards and each of them is an observation; there is no filler row. The compositions of a mode
are chosen so that pairs of them differ in one axis for many rows (see `calibrate.sensitivity`):

* ``solo``: each row alone, at its own length;
* ``equal-length-N``: only rows of one length together: the number of rows moves, nothing is padded;
* ``rows-N``: N rows in file order, as a server would take them;
* ``wide-N``, ``left-N``/``right-N``, ``reversed-N``: the batches of ``rows-N``, wider, padded on
  the other side, with their rows in reverse order;
* ``wide-N-W``: N rows of like length, padded to W tokens where they are shorter;
* ``neighbours-N-a``, ``-b``: same shapes and slots, other neighbours;
* ``shuffled-N``, ``sorted-N``: arrival order, and length-sorted;
* ``again-N``: ``rows-N`` once more.

Lanes and flights have their own, see `calibrate.lane_compositions` and
`calibrate.flight_compositions`.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from calibrate.config import Arm, Sweep
from calibrate.flight_compositions import FlightTraits, flight_partitions
from calibrate.lane_compositions import lane_partitions
from harness.conditions.batching import Batch, RowShape, chunk, plan_batches
from harness.errors import ConfigError
from harness.records.batching import FixedWidth, InFlight, Lanes, Padded, PaddingSide, Solo
from harness.records.document import Record

__all__ = ["REPEATS", "Composition", "batches_cost", "plan_compositions"]

REPEATS = ("again-", "fresh-")
"""How the names of repeats begin: in the same process, and in a fresh one."""


class Composition(Record, frozen=True, kw_only=True):
    """One way of putting all rows into batches."""

    name: str
    """Unique in its arm."""
    batches: tuple[Batch, ...]
    """In the order they run."""

    @property
    def cost(self) -> int:
        """The estimate of the work."""
        return batches_cost(self.batches)


def batches_cost(batches: Sequence[Batch]) -> int:
    """Return the padded tokens of `batches`, the estimate of their work."""
    return sum(batch.num_tokens for batch in batches)


def plan_compositions(
    rows: Sequence[RowShape],
    arm: Arm,
    sweep: Sweep,
    seed: int,
    traits: FlightTraits = FlightTraits(),  # noqa: B008 - frozen
) -> tuple[Composition, ...]:
    """Return the compositions of an arm over `rows`; the last two repeat the first.

    `traits` say what an engine can do, where one packs the rows.

    Raises ConfigError when a row does not fit a fixed width, or any lane.
    """
    if isinstance(arm.batching, Solo):
        return _unlike(_solo_compositions(rows))
    if isinstance(arm.batching, Lanes):
        return _unlike(_named(lane_partitions(rows, arm.batching, seed)))
    if isinstance(arm.batching, InFlight):
        return _unlike(_named(flight_partitions(rows, arm.batching, sweep, seed, traits)))
    return _unlike(_Planner(rows, arm.batching, sweep, seed).compositions())


def _repeats(original: Composition) -> tuple[Composition, Composition]:
    return (
        Composition(name=f"again-{original.name}", batches=original.batches),
        Composition(name=f"fresh-{original.name}", batches=original.batches),
    )


def _solo_compositions(rows: Sequence[RowShape]) -> list[Composition]:
    solo = Composition(name="solo", batches=plan_batches(rows, Solo(), 0))
    backwards = Composition(name="solo-backwards", batches=solo.batches[::-1])
    return [solo, backwards, *_repeats(solo)]


def _named(partitions: Mapping[str, tuple[Batch, ...]]) -> list[Composition]:
    made = [Composition(name=name, batches=batches) for name, batches in partitions.items()]
    return [*made, *_repeats(made[0])]


class _Planner:
    """Makes the compositions of a padded or fixed-width mode."""

    def __init__(
        self, rows: Sequence[RowShape], batching: Padded | FixedWidth, sweep: Sweep, seed: int
    ) -> None:
        self._rows, self._batching, self._seed = rows, batching, seed
        self._sizes = sorted(
            {s for s in sweep.rows if s <= batching.max_rows} | {batching.max_rows}
        )
        self._reference = min(sweep.reference_rows, batching.max_rows)
        self._sides, self._widths = sweep.sides, sorted(set(sweep.widths))
        self._given = tuple(range(len(rows)))
        self._by_length = tuple(sorted(self._given, key=lambda at: (rows[at].num_tokens, at)))
        longest = rows[self._by_length[-1]].num_tokens
        self._fixed = batching.width if isinstance(batching, FixedWidth) else None
        self._widest = self._fixed or -(-longest // 8) * 8
        if self._widest < longest:
            decision = rows[self._by_length[-1]].decision_id
            raise ConfigError(
                f"decision {decision!r} has a row of {longest} tokens and the fixed width is "
                f"{self._fixed}; raise batching.width"
            )

    def compositions(self) -> list[Composition]:
        reference = self._cut(f"rows-{self._reference}", self._given, self._reference)
        sizes = [s for s in self._sizes if s != self._reference]
        return [
            reference,
            self._cut("solo", self._given, 1),
            self._equal_length(),
            *(self._cut(f"rows-{size}", self._given, size) for size in sizes),
            *self._variants(reference),
            *self._neighbours(),
            self._cut(f"shuffled-{self._sizes[-1]}", self._shuffled(), self._sizes[-1]),
            self._cut(f"sorted-{self._sizes[-1]}", self._by_length, self._sizes[-1]),
            *_repeats(reference),
        ]

    def _batch(self, rows: Sequence[int], width: int | None = None) -> Batch:
        longest = max(self._rows[at].num_tokens for at in rows)
        return Batch(
            rows=tuple(rows), width=self._fixed or width or longest, side=self._batching.side
        )

    def _cut(self, name: str, order: Sequence[int], size: int) -> Composition:
        return Composition(name=name, batches=tuple(self._batch(p) for p in chunk(order, size)))

    def _equal_length(self) -> Composition:
        size = self._sizes[-1]
        lengths = sorted({row.num_tokens for row in self._rows})
        groups = [[at for at in self._given if self._rows[at].num_tokens == n] for n in lengths]
        batches = tuple(self._batch(part) for group in groups for part in chunk(group, size))
        return Composition(name=f"equal-length-{size}", batches=batches)

    def _variants(self, reference: Composition) -> list[Composition]:
        size, made = self._reference, []
        changes: dict[str, Callable[[Batch], Batch]] = {
            f"reversed-{size}": lambda b: Batch(rows=b.rows[::-1], width=b.width, side=b.side)
        }
        if self._fixed is None:
            changes[f"wide-{size}"] = lambda b: Batch(rows=b.rows, width=self._widest, side=b.side)
            made += [self._at_least(width) for width in self._widths if width <= self._widest]
        for side in PaddingSide:
            if side in self._sides and side is not self._batching.side:
                changes[f"{side}-{size}"] = lambda b, side=side: Batch(  # type: ignore[misc]
                    rows=b.rows, width=b.width, side=side
                )
        for name, change in changes.items():
            made.append(Composition(name=name, batches=tuple(map(change, reference.batches))))
        return made

    def _at_least(self, width: int) -> Composition:
        """Return batches of rows of like length, so that most can have just this width."""
        parts = [self._batch(part) for part in chunk(self._by_length, self._reference)]
        batches = (
            Batch(rows=part.rows, width=max(part.width, width), side=part.side) for part in parts
        )
        return Composition(name=f"wide-{self._reference}-{width}", batches=tuple(batches))

    def _neighbours(self) -> list[Composition]:
        """Return two compositions in which slots and shapes agree and neighbours do not.

        Rows are sorted by length and cut into groups of up to N batches of N slots; in the second
        composition slot p of batch j takes the row of batch j + p, so that all neighbours change.
        """
        size, first, second = self._reference, [], []
        for group in chunk(self._by_length, size * size):
            width = max(self._rows[at].num_tokens for at in group)
            whole = [part for part in chunk(group, size) if len(part) == size]
            rest = [part for part in chunk(group, size) if len(part) < size]
            first += [self._batch(part, width) for part in whole + rest]
            turned = [
                [whole[(at + slot) % len(whole)][slot] for slot in range(size)]
                for at in range(len(whole))
            ]
            second += [self._batch(part, width) for part in turned + [list(p) for p in rest]]
        return [
            Composition(name=f"neighbours-{size}-a", batches=tuple(first)),
            Composition(name=f"neighbours-{size}-b", batches=tuple(second)),
        ]

    def _shuffled(self) -> tuple[int, ...]:
        order = list(self._given)
        random.Random(self._seed).shuffle(order)  # noqa: S311 - a seeded permutation, no secret
        return tuple(order)


def _unlike(compositions: Sequence[Composition]) -> tuple[Composition, ...]:
    """Leave out a composition that computes just what an earlier one does, repeats apart."""
    kept: list[Composition] = []
    for composition in compositions:
        is_repeat = composition.name.startswith(REPEATS)
        if is_repeat or all(composition.batches != other.batches for other in kept):
            kept.append(composition)
    return tuple(kept)
