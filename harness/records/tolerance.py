"""Tolerances: how far scores may move, for one build, condition and batching mode.

A tolerance file is canonical JSON with its own digest inside. It holds nothing that changes when a
killed calibration is resumed.
"""

import math
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from harness.codec import digest
from harness.records.batching import Lane, PaddingSide, lane_of
from harness.records.build import Build
from harness.records.commit import ScoreUnit
from harness.records.document import Document, Record
from harness.records.invocation import PrecisionMode, ReductionOrder, condition_id
from harness.records.membership import BatchMembership, Step

__all__ = [
    "AxisFinding",
    "AxisSearch",
    "AxisStatus",
    "Bound",
    "CoveredBatches",
    "Equivalence",
    "GuardFinding",
    "OwnError",
    "Strata",
    "Stratum",
    "StratumAxis",
    "Switch",
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
    lower: float | None = None
    """Lower limit, at `confidence`, on the movement that `coverage` of decisions stay within: a
    smaller order statistic. `value` is the upper one. None in a file that does not say."""

    def __post_init__(self) -> None:
        """A bound is a finite number >= 0, from at least one decision."""
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"a bound must be a finite number >= 0, found {self.value!r}")
        if self.lower is not None and not 0 <= self.lower <= self.value:
            raise ValueError(f"the lower limit lies between 0 and the bound, found {self.lower!r}")
        if not 0 < self.coverage < 1 or not 0 < self.confidence < 1:
            raise ValueError("coverage and confidence lie strictly between 0 and 1")
        if not 1 <= self.rank <= self.num_decisions:
            raise ValueError("rank lies between 1 and num_decisions")


class Switch(Record, frozen=True, kw_only=True):
    """Two sizes between which the bits of a probe row's score change."""

    last: int
    """The last size tried with the bits of before."""
    first: int
    """The first size tried with other bits: `last` + 1, unless the search ran out of sizes."""

    def __post_init__(self) -> None:
        """The sizes ascend."""
        if not 0 < self.last < self.first:
            raise ValueError(f"a switch lies between two sizes, found {self.last}, {self.first}")


class AxisSearch(Record, frozen=True, kw_only=True):
    """Where the search along one axis saw the result of an unchanged row switch."""

    axis: str
    """What grew: ``num_rows`` or ``padded_width``."""
    held: str
    """What was held fixed meanwhile, in words."""
    sizes: tuple[int, ...]
    """The sizes that were tried, ascending: nothing is known of others."""
    switches: tuple[Switch, ...]
    """Every pair of neighbouring sizes tried between which a bit changed, ascending."""
    probe_lengths: tuple[int, ...]
    """Tokens of each probe row; a switch is seen when it moves a bit of one of them."""


class StratumAxis(StrEnum):
    """A size on which movement may depend."""

    TOKEN_LENGTH = "token_length"  # noqa: S105 - a length, not a secret
    """Tokens of a decision's longest row."""
    PADDED_WIDTH = "padded_width"
    """Tokens of the widest row of the batches that a decision's rows are in."""


class Stratum(Record, frozen=True, kw_only=True):
    """Decisions between two sizes, and how far they move."""

    lower: int
    """Smallest size, tokens."""
    upper: int
    """Largest size, tokens."""
    envelope: Bound
    """Movement of these decisions when only batch membership changes; never below the floor."""


class Strata(Record, frozen=True, kw_only=True):
    """Whether movement depends on a size, and the envelopes by size if it does."""

    axis: StratumAxis
    """The size."""
    p_value: float
    """Chance of groups as unlike as these if the size did not matter: a permutation test."""
    level: float
    """The groups count as different when `p_value` is at most this."""
    num_missing: int
    """Decisions that are still missing for an envelope of each group; 0 when there are enough."""
    strata: tuple[Stratum, ...] = ()
    """An envelope a group, ascending and without overlap; none when movement does not depend on
    the size, when decisions are missing, or when the other size tells more."""

    def __post_init__(self) -> None:
        """Groups ascend and do not overlap."""
        inverted = any(one.lower > one.upper for one in self.strata)
        if inverted or any(a.upper >= b.lower for a, b in pairwise(self.strata)):
            raise ValueError("strata ascend and do not overlap")

    def of(self, size: int) -> Stratum | None:
        """Return the group that a size falls into; None when it lies outside all of them."""
        return next((one for one in self.strata if one.lower <= size <= one.upper), None)


class GuardFinding(Record, frozen=True, kw_only=True):
    """What one guard saw."""

    guard: str
    """Name of the guard."""
    passed: bool
    """Whether the build may be blessed as far as this guard sees."""
    evidence: str
    """What was compared, how much of it, and what was found."""


class OwnError(Record, frozen=True, kw_only=True):
    """How far scores, each row alone, are from a float64 forward of the same weights."""

    num_decisions: int
    """Decisions compared."""
    median: float
    """Half of the decisions are no further, in the score unit; a decision's distance is that of
    its worst branch."""
    p99: float
    """Ninety-nine in a hundred are no further."""
    largest: float
    """None is further."""
    movement_ratio: float | None
    """Median movement of the same decisions over all compositions, over `median`: far below 1,
    batch movement is small against the build's own rounding error; None where `median` is 0."""


class CoveredBatches(Record, frozen=True, kw_only=True):
    """The batches a tolerance speaks for."""

    mode: str
    """Batching mode: ``solo``, ``padded``, ``fixed_width``, ``lanes``."""
    max_rows: int
    """Largest number of rows that was measured."""
    max_width: int
    """Largest padded width that was measured, tokens."""
    sides: tuple[PaddingSide, ...]
    """Padding sides that were measured."""
    lanes: tuple[Lane, ...] = ()
    """The lanes that were measured, of the mode ``lanes``: it speaks for no other shape."""

    def covers(self, membership: BatchMembership) -> bool:
        """Return whether every step lies within what was measured."""
        return (
            membership.max_rows <= self.max_rows
            and membership.max_width <= self.max_width
            and all(self._covers_side(step.padding_side) for step in membership.steps)
            and all(self._covers_shape(step) for step in membership.steps)
        )

    def _covers_shape(self, step: Step) -> bool:
        """Return whether a step of a set shape is the lane of each of its rows, and no other."""
        if self.mode != "lanes" or step.lane is None:
            return self.mode != "lanes" and step.lane is None
        return {lane_of(slot.num_tokens, self.lanes) for slot in step.slots} == {step.lane}

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
    own_error: OwnError | None = None
    """Distance from float64, for scale; None where it was not measured."""
    searches: tuple[AxisSearch, ...] = ()
    """Where results switch, axis by axis; none where there was nothing to search."""
    strata: tuple[Strata, ...] = ()
    """Whether movement depends on a size, size by size; one of them at most has envelopes."""

    def __post_init__(self) -> None:
        """The envelopes hold the floor; coupled rows are never interchangeable."""
        envelopes = [one.envelope for strata in self.strata for one in strata.strata]
        if any(bound.value < self.floor.value for bound in (self.envelope, *envelopes)):
            raise ValueError("the envelope is below the floor")
        if sum(bool(strata.strata) for strata in self.strata) > 1:
            raise ValueError("envelopes by more than one size: which one holds would be a guess")
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
