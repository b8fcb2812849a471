"""Tolerances: how far scores may move, for one build, condition and batching mode.

A tolerance file is canonical JSON with its own digest inside. It holds nothing that changes when a
killed calibration is resumed.
"""

import math
from enum import StrEnum
from functools import cached_property

from harness.codec import digest
from harness.records.batching import PaddingSide
from harness.records.build import Build
from harness.records.commit import ScoreUnit
from harness.records.document import Document, Record
from harness.records.invocation import PrecisionMode, ReductionOrder, condition_id
from harness.records.membership import BatchMembership

__all__ = [
    "AxisFinding",
    "AxisStatus",
    "Bound",
    "CoveredBatches",
    "Equivalence",
    "GuardFinding",
    "Tolerance",
    "ToleranceFile",
]


class Equivalence(StrEnum):
    """When two memberships count as equal, by evidence."""

    EXACT = "exact"
    """Same contents in the same slots of the same shape."""
    SHAPE = "shape"
    """Same shape and the decision's own rows in the same slots; companions may differ."""
    ANY = "any"
    """Any membership: no swept axis moved a bit."""


class AxisStatus(StrEnum):
    """What the sweep of one axis showed."""

    NOT_EXERCISED = "not_exercised"
    """The sweep held no pair that differs in this axis: nothing is known."""
    INVARIANT = "exercised_invariant"
    """Pairs were compared and no bit moved, at the settings covered."""
    MOVED = "moved"
    """Scores moved."""


class AxisFinding(Record, frozen=True, kw_only=True):
    """Sensitivity of the scores to one axis."""

    axis: str
    """The axis: ``num_rows``, ``padded_width``, ``companions``, ..."""
    status: AxisStatus
    """What the sweep showed."""
    settings: tuple[str, ...]
    """Settings compared, as words."""
    num_decisions: int
    """Decisions compared: the unit of evidence."""
    num_decisions_moved: int
    """Decisions of which at least one score moved."""
    moved_rate_upper: float
    """Upper bound on the rate of moving decisions, exact binomial, at the file's confidence."""
    num_scores: int
    """Scores compared."""
    num_scores_moved: int
    """Scores that moved by at least one bit."""
    max_movement: float
    """Largest movement, in the score unit."""


class Bound(Record, frozen=True, kw_only=True):
    """A distribution-free upper bound on a decision's movement: an order statistic."""

    value: float
    """The bound, in the score unit: the `rank`-th largest movement."""
    coverage: float
    """Share of decisions that the bound covers."""
    confidence: float
    """Confidence that it does."""
    num_decisions: int
    """Decisions behind it."""
    rank: int
    """1 for the largest movement seen, 2 for the second, ..."""
    exceedance_rate_upper: float
    """Exact upper bound on the rate of decisions beyond `value`, at `confidence`."""
    num_compositions: int
    """Compositions (or repeats) over which each movement is the range."""

    def __post_init__(self) -> None:
        """A bound is a finite number >= 0, from at least one decision."""
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"a bound must be a finite number >= 0, found {self.value!r}")
        if not 0 < self.coverage < 1 or not 0 < self.confidence < 1:
            raise ValueError("coverage and confidence lie strictly between 0 and 1")
        if not 1 <= self.rank <= self.num_decisions:
            raise ValueError("rank lies between 1 and num_decisions")


class GuardFinding(Record, frozen=True, kw_only=True):
    """What one guard saw."""

    guard: str
    """Name of the guard."""
    passed: bool
    """Whether the build may be blessed as far as this guard sees."""
    evidence: str
    """What was compared, how much of it, and what was found."""


class CoveredBatches(Record, frozen=True, kw_only=True):
    """The batches a tolerance speaks for."""

    mode: str
    """Batching mode: ``solo``, ``padded``, ``fixed_width``."""
    max_rows: int
    """Largest number of rows that was measured."""
    max_width: int
    """Largest padded width that was measured, tokens."""
    sides: tuple[PaddingSide, ...]
    """Padding sides that were measured."""

    def covers(self, membership: BatchMembership) -> bool:
        """Return whether every step lies within what was measured."""
        return (
            membership.max_rows <= self.max_rows
            and membership.max_width <= self.max_width
            and all(self._covers_side(step.padding_side) for step in membership.steps)
        )

    def _covers_side(self, side: PaddingSide | None) -> bool:
        return side is None or side in self.sides


class Tolerance(Record, frozen=True, kw_only=True, dict=True):
    """Floor and envelope for one precision mode, reduction order and batching mode."""

    precision_mode: PrecisionMode
    """As resolved during calibration."""
    reduction_order: ReductionOrder
    """As resolved during calibration."""
    batches: CoveredBatches
    """The batches it speaks for."""
    equivalence: Equivalence
    """When memberships count as equal."""
    companion_coupled: bool
    """Whether a neighbour's content moved scores at a fixed shape."""
    floor: Bound
    """Movement when the invocation is identical."""
    envelope: Bound
    """Movement when only batch membership changes."""
    axes: tuple[AxisFinding, ...]
    """Sensitivity, axis by axis."""
    guards: tuple[GuardFinding, ...]
    """The guards that passed, with their evidence."""

    def __post_init__(self) -> None:
        """The envelope holds the floor; coupled rows are never interchangeable."""
        if self.envelope.value < self.floor.value:
            raise ValueError("the envelope is below the floor")
        if self.companion_coupled and self.equivalence is not Equivalence.EXACT:
            raise ValueError("a companion-coupled build has membership equivalence exact")
        failed = [finding.guard for finding in self.guards if not finding.passed]
        if failed:
            raise ValueError(f"guard {failed[0]!r} did not pass: no tolerance may be issued")


class ToleranceFile(Document, frozen=True, kw_only=True, dict=True):
    """All tolerances of one build."""

    scorepin_version: str
    """Release that wrote the file."""
    created_at: str
    """When the calibration was begun, UTC, ISO 8601."""
    expires_at: str | None
    """When it ceases to be valid; None for never."""
    score_unit: ScoreUnit
    """Unit of every bound."""
    config_digest: str
    """Digest of the config it follows from."""
    decisions_digest: str
    """Digest of the decisions it was measured on."""
    num_truncated: int
    """Rows that lost tokens to the length limit."""
    build: Build
    """The build it is valid for, and no other."""
    tolerances: tuple[Tolerance, ...]
    """One per condition and batching mode."""
    digest: str = ""
    """Digest of the whole file without this field; set when it is written."""

    def tolerance_id(self, tolerance: Tolerance) -> str:
        """Return a short id of one tolerance of this file."""
        return digest([self.build.build_id, tolerance]).removeprefix("sha256:")[:16]

    @cached_property
    def by_condition(self) -> dict[str, tuple[Tolerance, ...]]:
        """Condition id -> the tolerances under it."""
        table: dict[str, tuple[Tolerance, ...]] = {}
        for tolerance in self.tolerances:
            key = condition_id(
                self.build.build_id, tolerance.precision_mode, tolerance.reduction_order
            )
            table[key] = (*table.get(key, ()), tolerance)
        return table
