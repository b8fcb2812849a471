"""Decides which tolerance a record is judged by, or says what to calibrate.

Rules kept here:

* a tolerance is valid for one build, one condition, one batching mode, and the batches that were
  measured; never another build's, however alike;
* two files that speak for the same batches of the same condition are refused: neither is better;
* of several that cover a record, the one measured on the smallest batches is used;
* an expiry date that cannot be checked, for want of the time, counts as passed;
* a tolerance that an alarm has withdrawn is used no more, for no replica;
* where movement depends on a size, the envelope is that of the commit's own size; a size that was
  not measured has the envelope of all.

It does not see a score, a disk or a clock.
"""

import math
from datetime import UTC, datetime
from functools import cached_property

from harness.errors import ConfigError, InvalidRecordError, InvalidToleranceError
from harness.judge.missing import batching_mode, no_batches, no_build, no_condition, withdrawn
from harness.records.commit import CommitRecord
from harness.records.document import Record
from harness.records.membership import BatchMembership
from harness.records.tolerance import (
    CoveredBatches,
    Equivalence,
    Stratum,
    StratumAxis,
    Tolerance,
    ToleranceFile,
)
from harness.records.withdrawal import Withdrawal

__all__ = ["NoTolerance", "Tolerances", "UsableTolerance", "check_tolerance"]


class UsableTolerance(Record, frozen=True, kw_only=True):
    """The tolerance that a record is judged by."""

    tolerance: Tolerance
    """Floor, envelope, certified equivalence."""
    tolerance_id: str
    """Its id in its file."""
    stratum: Stratum | None = None
    """The commit's stratum; None where it is in none, or movement depends on no size."""

    @property
    def envelope(self) -> float:
        """The envelope: of the commit's stratum if it is in one, else of all decisions."""
        bound = self.tolerance.envelope if self.stratum is None else self.stratum.envelope
        return bound.value

    def equivalence_for(self, replay: BatchMembership) -> Equivalence:
        """Return the certified equivalence, which reaches no further than what was measured."""
        measured = self.tolerance.batches.covers(replay)
        return self.tolerance.equivalence if measured else Equivalence.EXACT


class NoTolerance(Record, frozen=True, kw_only=True):
    """Why a record has no tolerance."""

    reason: str
    """What is missing and what to calibrate, in words."""

    def equivalence_for(self, _replay: BatchMembership) -> Equivalence:
        """Return `exact`: nothing certifies more."""
        return Equivalence.EXACT


class Tolerances(Record, frozen=True, kw_only=True, dict=True):
    """Tolerance files, looked up by build and condition."""

    files: tuple[ToleranceFile, ...]
    """In the order given; a file given twice counts once."""
    names: tuple[str, ...] = ()
    """Where each came from, `[files]`; empty when they came from nowhere."""
    withdrawals: tuple[Withdrawal, ...] = ()
    """What alarms have put out of use; that of another file or tolerance has no effect."""

    def __post_init__(self) -> None:
        """Expiry dates can be read; no two files speak for the same batches."""
        for at, file in enumerate(self.files):
            _check_expiry(file, self._name(at))
            for earlier, other in enumerate(self.files[:at]):
                if file != other and _overlap(file, other):
                    raise InvalidRecordError(
                        f"{self._name(earlier)} and {self._name(at)} hold different tolerances for "
                        "the same build, condition and batches; remove the one that is not meant"
                    )

    def lookup(self, commit: CommitRecord, now: str | None) -> UsableTolerance | NoTolerance:
        """Return the tolerance for a commit, or why there is none.

        `now` is the time, ISO 8601, UTC; without it a file that can expire is not used. Raises
        ConfigError when it cannot be read.
        """
        build = commit.invocation.build
        files = self._by_build.get(build.build_id)
        if files is None:
            return NoTolerance(reason=no_build(build, [file.build for file in self.files]))
        found = _in_files(files, commit)
        return found if isinstance(found, NoTolerance) else self._unless_stale(*found, commit, now)

    def holders(self, tolerance_id: str) -> dict[str, ToleranceFile]:
        """Return name -> file, of the files that hold a tolerance."""
        return {
            self._name(at): file
            for at, file in enumerate(self.files)
            if any(file.tolerance_id(tolerance) == tolerance_id for tolerance in file.tolerances)
        }

    def exceedance_rates(self) -> dict[str, float]:
        """Return tolerance id -> bound on the rate at which honest replays leave the floor.

        This is the null rate of the drift alarm.
        """
        return {
            file.tolerance_id(tolerance): tolerance.floor.exceedance_rate_upper
            for file in self.files
            for tolerance in file.tolerances
        }

    def _unless_stale(
        self, file: ToleranceFile, tolerance: Tolerance, commit: CommitRecord, now: str | None
    ) -> UsableTolerance | NoTolerance:
        tolerance_id = file.tolerance_id(tolerance)
        gone = self._withdrawn.get((file.digest, tolerance_id))
        reason = withdrawn(gone) if gone else _staleness(file, commit, now)
        if reason:
            return NoTolerance(reason=reason)
        stratum = _stratum(tolerance, commit.invocation.batch_membership)
        return UsableTolerance(tolerance=tolerance, tolerance_id=tolerance_id, stratum=stratum)

    @cached_property
    def _withdrawn(self) -> dict[tuple[str, str], Withdrawal]:
        return {(one.file_digest, one.tolerance_id): one for one in self.withdrawals}

    @cached_property
    def _by_build(self) -> dict[str, tuple[ToleranceFile, ...]]:
        table: dict[str, tuple[ToleranceFile, ...]] = {}
        for file in self.files:
            known = table.get(file.build.build_id, ())
            if file not in known:
                table[file.build.build_id] = (*known, file)
        return table

    def _name(self, at: int) -> str:
        return (
            self.names[at] if self.names else f"tolerance file {at} ({self.files[at].created_at})"
        )


MAX_FLOAT = math.nextafter(math.inf, 0.0)


def check_tolerance(value: object) -> float:
    """Return `value` as a float; raise InvalidToleranceError unless it is a finite number >= 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToleranceError(f"a tolerance is a number, found {value!r}")
    if not 0 <= value <= MAX_FLOAT:
        raise InvalidToleranceError(f"a tolerance is a finite number >= 0, found {value!r}")
    return float(value)


def _in_files(
    files: tuple[ToleranceFile, ...], commit: CommitRecord
) -> tuple[ToleranceFile, Tolerance] | NoTolerance:
    """Look the condition up in the files of the right build."""
    condition = commit.invocation.condition_id
    known = [(file, one) for file in files for one in file.by_condition.get(condition, ())]
    if not known:
        measured = [one for file in files for one in file.tolerances]
        return NoTolerance(reason=no_condition(commit.invocation, measured))
    membership = commit.invocation.batch_membership
    covering = [pair for pair in known if _covers(pair[1].batches, membership)]
    if not covering:
        return NoTolerance(reason=no_batches(membership, [one.batches for _, one in known]))
    return min(covering, key=_breadth)


def _staleness(file: ToleranceFile, commit: CommitRecord, now: str | None) -> str:
    """Return why a file is of no use for a commit, or nothing."""
    if file.score_unit is not commit.score_unit:
        units = f"{file.score_unit} and the commit is in {commit.score_unit}"
        return f"the tolerance is in {units}; calibrate in the commit's unit"
    if file.expires_at is not None and now is None:
        when = f"the tolerance expires at {file.expires_at} and the time was not given"
        return f"{when}; pass `now`"
    if file.expires_at is not None and _instant(file.expires_at) <= _now(now):
        return f"the tolerance expired at {file.expires_at}; calibrate this build again"
    return ""


def _stratum(tolerance: Tolerance, membership: BatchMembership) -> Stratum | None:
    sizes = {
        StratumAxis.TOKEN_LENGTH: membership.longest_branch,
        StratumAxis.PADDED_WIDTH: membership.max_width,
    }
    return next(
        (one for strata in tolerance.strata if (one := strata.of(sizes[strata.axis]))), None
    )


def _covers(batches: CoveredBatches, membership: BatchMembership) -> bool:
    """Return whether the batching mode, where it is known, and every step were measured."""
    mode = batching_mode(membership)
    return mode in (None, batches.mode) and batches.covers(membership)


def _breadth(pair: tuple[ToleranceFile, Tolerance]) -> tuple[int, int, int, float, str]:
    file, tolerance = pair
    batches = tolerance.batches
    size = batches.max_rows, batches.max_width, len(batches.sides)
    return *size, tolerance.envelope.value, file.tolerance_id(tolerance)


def _overlap(left: ToleranceFile, right: ToleranceFile) -> bool:
    shared = left.by_condition.keys() & right.by_condition.keys()
    return any(
        _same_batches(one.batches, other.batches)
        for condition in shared
        for one in left.by_condition[condition]
        for other in right.by_condition[condition]
    )


def _same_batches(left: CoveredBatches, right: CoveredBatches) -> bool:
    sides = set(left.sides), set(right.sides)
    same_mode = left.mode == right.mode and left.lanes == right.lanes
    return same_mode and (sides[0] == sides[1] or bool(sides[0] & sides[1]))


def _check_expiry(file: ToleranceFile, name: str) -> None:
    if file.expires_at is None:
        return
    try:
        _instant(file.expires_at)
    except ValueError as error:
        raise InvalidRecordError(f"{name}: expires_at is no ISO 8601 time ({error})") from error


def _now(text: str | None) -> datetime:
    try:
        return _instant(text or "")
    except ValueError as error:
        raise ConfigError(f"`now` is an ISO 8601 time, found {text!r}") from error


def _instant(text: str) -> datetime:
    """Return a time that can be compared; one without a zone is UTC."""
    value = datetime.fromisoformat(text)
    return value if value.tzinfo else value.replace(tzinfo=UTC)
