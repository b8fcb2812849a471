"""Fit: the tolerance that follows from measured scores, or the refusal to give one.

Rules: no tolerance when a guard failed or was not run; floor and envelope are order statistics
over the same decisions, and every repeat counts towards the envelope too, so that it holds the
floor; memberships count as equal only where nothing moved, and on as many decisions as the bounds
need: a sweep that is absent or small certifies nothing.

Not known here: whether the compositions are like those that will be served.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from calibrate.guards import GuardName, NeighbourFinding, refuse_if_failed
from calibrate.sensitivity import Indices, Scores, decision_ranges, moved_bits
from calibrate.statistics import order_statistic_bound, required_decisions
from calibrate.strata import RowSizes, StrataInput, find_strata
from harness.errors import GuardRefusalError, InsufficientEvidenceError, InvalidRecordError
from harness.records import (
    AxisFinding,
    AxisSearch,
    AxisStatus,
    Bound,
    CoveredBatches,
    Equivalence,
    GuardFinding,
    OwnError,
    PrecisionMode,
    ReductionOrder,
    Strata,
    Tolerance,
)
from harness.records.document import Record

__all__ = ["REPEAT_AXES", "REQUIRED_GUARDS", "FitInput", "certified_equivalence", "fit_tolerance"]

REPEAT_AXES = ("repeat_same_process", "repeat_fresh_process")
"""The axes that change nothing but the occasion."""

REQUIRED_GUARDS = (
    GuardName.ROUNDING,
    GuardName.LIVE_HEAD,
    GuardName.DISTINCT_ARMS,
    GuardName.FINITE,
    GuardName.CANARY,
)
"""Guards without which no tolerance is issued; `neighbours` has a field of its own."""


class FitInput(Record, frozen=True, kw_only=True, eq=False):
    """All that was measured under one condition and batching mode."""

    precision_mode: PrecisionMode
    """As resolved."""
    reduction_order: ReductionOrder
    """As resolved."""
    batches: CoveredBatches
    """The batches that the compositions held."""
    decision_of_row: Indices
    """`[rows]`: the decision of each row."""
    compositions: Scores
    """`[compositions, rows]`: scores that differ in batch membership only."""
    repeats: tuple[Scores, ...]
    """Each `[repeats, rows]`: scores under one identical invocation, in one process or several;
    the first of them is one of `compositions`."""
    axes: tuple[AxisFinding, ...]
    """What the sweep of each axis showed."""
    required_axes: tuple[str, ...]
    """Axes in which memberships of this batching mode can differ."""
    neighbours: NeighbourFinding
    """Whether a neighbour's content moves scores at a fixed shape."""
    guards: tuple[GuardFinding, ...]
    """The other guards' findings."""
    coverage: float
    """Share of decisions that floor and envelope are to cover."""
    confidence: float
    """Confidence that they do."""
    own_error: OwnError | None = None
    """Distance from float64; None where it was not measured."""
    searches: tuple[AxisSearch, ...] = ()
    """Where results switch, as far as it was searched."""
    sizes: RowSizes | None = None
    """What movement may depend on, over `compositions`; None where that is not asked."""
    seed: int = 0
    """Seed of the permutations that ask it."""

    def __post_init__(self) -> None:
        """All scores are over the same rows."""
        num_rows = len(self.decision_of_row)
        for scores in (self.compositions, *self.repeats):
            if scores.ndim != 2 or scores.shape[1] != num_rows:
                raise InvalidRecordError(
                    f"scores are `[compositions, rows]` over {num_rows} rows, found {scores.shape}"
                )


def fit_tolerance(given: FitInput) -> Tolerance:
    """Return the tolerance.

    Raises GuardRefusalError when a guard failed or was not run, InsufficientEvidenceError for too
    few decisions, compositions or repeats, InvalidRecordError for a score that is not finite.
    """
    guards = (*given.guards, given.neighbours.guard)
    _require_all_run(guards)
    refuse_if_failed(guards)
    floor = _floor(given)
    return Tolerance(
        precision_mode=given.precision_mode,
        reduction_order=given.reduction_order,
        batches=given.batches,
        equivalence=certified_equivalence(given),
        companion_coupled=given.neighbours.coupled,
        floor=floor,
        envelope=_envelope(given),
        axes=given.axes,
        guards=guards,
        searches=given.searches,
        strata=_strata(given, floor.value),
        own_error=given.own_error,
    )


def certified_equivalence(given: FitInput) -> Equivalence:
    """Return when two memberships may count as equal, by evidence.

    `any`: neighbours, repeats and every required axis were exercised, and no bit moved anywhere,
    in no search for a switch either.
    `shape`: neighbours and repeats were exercised and moved no bit. Else `exact`.
    """
    if not _is_repeatable(given):
        return Equivalence.EXACT
    return Equivalence.ANY if _is_invariant(given) else Equivalence.SHAPE


def _is_repeatable(given: FitInput) -> bool:
    certified = _certified_axes(given).issuperset(REPEAT_AXES)
    neighbours = _certifies(given.neighbours.axis, given)
    return certified and neighbours and not any(map(_moved, given.repeats))


def _is_invariant(given: FitInput) -> bool:
    required = set(given.required_axes)
    moved = any(axis.status is AxisStatus.MOVED for axis in given.axes)
    moved |= any(search.switches for search in given.searches)
    certified = bool(required) and not moved and _certified_axes(given).issuperset(required)
    return certified and not _moved(np.concatenate((given.compositions, *given.repeats)))


def _certified_axes(given: FitInput) -> set[str]:
    return {axis.axis for axis in given.axes if _certifies(axis, given)}


def _certifies(axis: AxisFinding, given: FitInput) -> bool:
    num_needed = required_decisions(given.coverage, given.confidence)
    return axis.status is AxisStatus.INVARIANT and axis.num_decisions >= num_needed


def _moved(scores: Scores) -> bool:
    return bool(moved_bits(scores, np.broadcast_to(scores[:1], scores.shape)).any())


def _floor(given: FitInput) -> Bound:
    if not given.repeats:
        raise InsufficientEvidenceError("comparison over zero items: nothing was scored twice")
    movements = np.max([decision_ranges(g, given.decision_of_row) for g in given.repeats], axis=0)
    return _bound(given, movements, sum(map(len, given.repeats)))


def _envelope(given: FitInput) -> Bound:
    scores = np.concatenate((given.compositions, *given.repeats))
    if len(given.compositions) < 2:
        raise InsufficientEvidenceError(
            f"comparison over zero items: {len(given.compositions)} composition(s), and a movement "
            f"between compositions needs two"
        )
    num_again = sum(len(group) - 1 for group in given.repeats)
    movements = decision_ranges(scores, given.decision_of_row)
    return _bound(given, movements, len(given.compositions) + num_again)


def _strata(given: FitInput, floor: float) -> tuple[Strata, ...]:
    """Repeats have the widths of the first composition, which they repeat."""
    if given.sizes is None:
        return ()
    repeats = np.concatenate(given.repeats)
    again = np.broadcast_to(given.sizes.widths[0], repeats.shape)
    widths = np.concatenate((given.sizes.widths, again))
    return find_strata(
        StrataInput(
            scores=np.concatenate((given.compositions, repeats)),
            decision_of_row=given.decision_of_row,
            sizes=replace(given.sizes, widths=widths),
            coverage=given.coverage,
            confidence=given.confidence,
            seed=given.seed,
        ),
        floor,
    )


def _bound(given: FitInput, movements: Scores, num_compositions: int) -> Bound:
    return order_statistic_bound(movements, given.coverage, given.confidence, num_compositions)


def _require_all_run(guards: Sequence[GuardFinding]) -> None:
    missing = sorted(set(REQUIRED_GUARDS) - {finding.guard for finding in guards})
    if missing:
        raise GuardRefusalError(
            f"no tolerance is issued, guards that were not run: {', '.join(missing)}; run them on "
            f"the same decisions and compositions"
        )
