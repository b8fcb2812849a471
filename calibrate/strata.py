"""Strata: whether movement depends on a size, and how far decisions of each size move.

Two sizes are looked at: the length of a decision's longest row, and the padded width of the widest
batch that it is in. Decisions, or their places in compositions, are cut into two or three groups
of about equal number by size alone. Rules kept here:

* whether groups differ is a permutation test, valid for any distribution: decisions change their
  movements; of widths a decision's widths change places, one composition of each, since those of
  one width may have the same bits. Ranks are scored so that large movements weigh most (Savage),
  for an envelope is about them;
* the two tests share their level (Bonferroni), and at most one size, the one that tells more, gets
  envelopes: a commit is then judged by one of them, and nobody chooses;
* the groups' envelopes hold together at the claim's confidence (Bonferroni again), so each states
  no smaller claim than the whole: `coverage` of the group's decisions, not of all decisions;
* a group's envelope is never below the floor;
* too few decisions give no envelope but the number that is missing.

A movement by width is how far the scores at that width lie from those of any composition: a replay
of a commit at that width may be at another one. What else varies with the width, such as the number
of rows, is not told apart from it.

Whether strata are used follows from the data that the envelopes come from: that the file's one
envelope or one of its strata's is too small has a probability of at most twice 1 - confidence.

Sources: I. R. Savage, "Contributions to the theory of rank order statistics: the two-sample case",
Annals of Mathematical Statistics 27 (1956); B. Phipson and G. K. Smyth, "Permutation p-values
should never be zero", Statistical Applications in Genetics and Molecular Biology 9 (2010).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import stats

from calibrate.sensitivity import Indices, Scores, decision_ranges
from calibrate.statistics import order_statistic_bound, required_decisions
from harness.records import Bound
from harness.records.document import Record
from harness.records.tolerance import Strata, Stratum, StratumAxis

__all__ = ["RowSizes", "StrataInput", "find_strata"]

N = TypeVar("N", bound=np.generic)

LEVEL = 0.01
"""Chance that the tests, both together, find a difference where there is none."""
NUM_PERMUTATIONS = 499
MOST_GROUPS = 3


class RowSizes(Record, frozen=True, kw_only=True, eq=False):
    """The sizes that movement may depend on."""

    num_tokens: Indices
    """`[rows]`: length of each row."""
    widths: Indices
    """`[compositions, rows]`: padded width of each row's batch."""


class StrataInput(Record, frozen=True, kw_only=True, eq=False):
    """Scores with the sizes behind them."""

    scores: Scores
    """`[compositions, rows]`: all that the envelope is the range of."""
    decision_of_row: Indices
    """`[rows]`: the decision of each row."""
    sizes: RowSizes
    """Over the same rows and compositions."""
    coverage: float
    """Share of a group's decisions that its envelope is to cover."""
    confidence: float
    """Confidence that all of them do."""
    seed: int
    """Seed of the permutations."""


class _Group(Record, frozen=True, kw_only=True, eq=False):
    """Movements of the decisions between two sizes."""

    lower: int
    upper: int
    movements: Scores
    """`[decisions of the group]`."""
    num_compositions: int


class _Grouped(Record, frozen=True, kw_only=True, eq=False):
    """One size's groups, and what its test and the claim make of them."""

    axis: StratumAxis
    groups: tuple[_Group, ...]
    num_missing: int
    p_value: float = 1.0

    @property
    def usable(self) -> bool:
        return self.p_value <= LEVEL / len(StratumAxis) and not self.num_missing


def find_strata(given: StrataInput, floor: float) -> tuple[Strata, ...]:
    """Return what the test of each size shows, with envelopes where they are due.

    A size that all decisions share is left out.
    """
    lengths = _by_length(given)
    widths = _by_width(given)
    found = [one for one in (lengths, widths) if one is not None]
    best = min((one for one in found if one.usable), key=lambda one: one.p_value, default=None)
    return tuple(_strata(one, given, floor, with_envelopes=one is best) for one in found)


def _strata(found: _Grouped, given: StrataInput, floor: float, *, with_envelopes: bool) -> Strata:
    strata = (
        Stratum(
            lower=group.lower,
            upper=group.upper,
            envelope=_envelope(group, given, len(found.groups), floor),
        )
        for group in (found.groups if with_envelopes else ())
    )
    return Strata(
        axis=found.axis,
        p_value=found.p_value,
        level=LEVEL / len(StratumAxis),
        num_missing=found.num_missing,
        strata=tuple(strata),
    )


def _envelope(group: _Group, given: StrataInput, num_groups: int, floor: float) -> Bound:
    bound = order_statistic_bound(
        group.movements,
        given.coverage,
        _shared(given.confidence, num_groups),
        group.num_compositions,
    )
    return replace(bound, value=max(bound.value, floor))


def _shared(confidence: float, num_groups: int) -> float:
    """Return the confidence of each of several bounds that hold together at `confidence`."""
    return 1 - (1 - confidence) / num_groups


def _by_length(given: StrataInput) -> _Grouped | None:
    lengths = _largest(given.sizes.num_tokens[np.newaxis], given.decision_of_row)[0]
    movements = decision_ranges(given.scores, given.decision_of_row)

    def grouped(ranges: Sequence[tuple[int, int]]) -> tuple[_Group, ...]:
        return tuple(
            _Group(
                lower=lower,
                upper=upper,
                movements=movements[(lower <= lengths) & (lengths <= upper)],
                num_compositions=len(given.scores),
            )
            for lower, upper in ranges
        )

    found = _grouped(StratumAxis.TOKEN_LENGTH, lengths, grouped, given, sum)
    return found and replace(found, p_value=_length_p_value(found.groups, given.seed))


def _length_p_value(groups: Sequence[_Group], seed: int) -> float:
    movements = [group.movements for group in groups]
    pooled, generator = np.concatenate(movements), np.random.default_rng(seed)
    ends = np.cumsum([len(own) for own in movements])[:-1]
    return _p_value(movements, lambda: np.split(generator.permutation(pooled), ends))


def _by_width(given: StrataInput) -> _Grouped | None:
    widths = _largest(given.sizes.widths, given.decision_of_row)
    reach = _Reach(given, np.ones(widths.shape, np.bool_))

    def grouped(ranges: Sequence[tuple[int, int]]) -> tuple[_Group, ...]:
        return tuple(
            _Group(
                lower=lower,
                upper=upper,
                movements=reach.movements(inside := (lower <= widths) & (widths <= upper)),
                num_compositions=int(inside.any(axis=1).sum()),
            )
            for lower, upper in ranges
        )

    found = _grouped(StratumAxis.PADDED_WIDTH, widths, grouped, given, max)
    return found and replace(found, p_value=_width_p_value(found.groups, widths, given))


def _width_p_value(groups: Sequence[_Group], widths: Indices, given: StrataInput) -> float:
    counted = _first_of_each(widths)
    reach = _Reach(given, counted)
    generator = np.random.default_rng(given.seed)

    def grouped(sizes: Indices) -> list[Scores]:
        inside = [(group.lower <= sizes) & (sizes <= group.upper) for group in groups]
        return [reach.movements(own) for own in inside]

    return _p_value(grouped(widths), lambda: grouped(_mixed(widths, counted, generator)))


class _Reach:
    """How far a decision's scores in some compositions lie from those in any that count."""

    def __init__(self, given: StrataInput, counted: NDArray[np.bool_]) -> None:
        self._scores, self._owners, self._counted = given.scores, given.decision_of_row, counted
        self._lowest, self._highest = self._extremes(counted)

    def movements(self, inside: NDArray[np.bool_]) -> Scores:
        """Return the movements of the decisions that are `inside`, `[compositions, decisions]`."""
        low, high = self._extremes(inside & self._counted)
        reach = np.maximum(high - self._lowest, self._highest - low)
        movements = _largest(reach[np.newaxis], self._owners)[0]
        return np.asarray(movements[(inside & self._counted).any(axis=0)])

    def _extremes(self, chosen: NDArray[np.bool_]) -> tuple[Scores, Scores]:
        rows = chosen[:, self._owners]
        low = np.where(rows, self._scores, np.inf).min(axis=0)
        return low, np.where(rows, self._scores, -np.inf).max(axis=0)


def _first_of_each(widths: Indices) -> NDArray[np.bool_]:
    """Return which composition is a decision's first at its width, `[compositions, decisions]`."""
    return np.stack([~(widths[:at] == own).any(axis=0) for at, own in enumerate(widths)])


def _mixed(widths: Indices, counted: NDArray[np.bool_], generator: np.random.Generator) -> Indices:
    """Return `widths` with those that are counted in other places, each within its decision."""
    order = np.argsort(~counted, axis=0, kind="stable")  # those that count come first
    keys = np.where(counted, generator.random(widths.shape), np.inf)
    others = np.take_along_axis(widths, np.argsort(keys, axis=0), axis=0)
    mixed = np.empty_like(widths)
    np.put_along_axis(mixed, order, others, axis=0)
    return mixed


def _grouped(
    axis: StratumAxis,
    sizes: Indices,
    grouped: Callable[[Sequence[tuple[int, int]]], tuple[_Group, ...]],
    given: StrataInput,
    total: Callable[[Sequence[int]], int],
) -> _Grouped | None:
    """Return the most groups that have enough decisions, else two; None if sizes do not differ.

    `total` says how many decisions are missing when some are missing in each group.
    """
    for num in range(MOST_GROUPS, 1, -1):
        groups = grouped(_ranges(sizes, num))
        needed = required_decisions(given.coverage, _shared(given.confidence, len(groups)))
        missing = total([max(needed - len(group.movements), 0) for group in groups])
        if not missing:
            break
    return _Grouped(axis=axis, groups=groups, num_missing=missing) if len(groups) > 1 else None


def _ranges(sizes: Indices, num: int) -> list[tuple[int, int]]:
    """Cut the sizes that occur into up to `num` ranges that hold about equally many."""
    ordered = np.sort(sizes, axis=None)
    uppers = np.unique(ordered[[at * ordered.size // num - 1 for at in range(1, num + 1)]])
    lowers = [int(ordered[0]), *(int(upper) + 1 for upper in uppers[:-1])]
    return list(zip(lowers, map(int, uppers), strict=True))


def _p_value(movements: Sequence[Scores], shuffled: Callable[[], list[Scores]]) -> float:
    """Return the share of shuffles with groups as unlike as these, these among them."""
    seen = _unlikeness(movements)
    as_unlike = sum(_unlikeness(shuffled()) >= seen - 1e-9 for _ in range(NUM_PERMUTATIONS))
    return (1 + as_unlike) / (1 + NUM_PERMUTATIONS)


def _unlikeness(groups: Sequence[Scores]) -> float:
    """Return how far the groups' mean Savage scores lie apart, as a Kruskal-Wallis sum."""
    pooled = np.concatenate(groups)
    savage = -np.log1p(-stats.rankdata(pooled) / (pooled.size + 1))
    parts = np.split(savage, np.cumsum([len(group) for group in groups])[:-1])
    mean = savage.mean()
    return float(sum(len(part) * (part.mean() - mean) ** 2 for part in parts if len(part)))


def _largest(values: NDArray[N], decision_of_row: Indices) -> NDArray[N]:
    """Return the largest of each decision's rows, `[..., decisions]`, from `[..., rows]`."""
    order = np.argsort(decision_of_row, kind="stable")
    starts = np.searchsorted(decision_of_row[order], np.arange(decision_of_row.max() + 1))
    return np.asarray(np.maximum.reduceat(values[:, order], starts, axis=1))
