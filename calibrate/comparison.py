"""Compares two tolerance files: what changed in the build, and whether its scores move further.

Pure. Tolerances are compared that have the same names of precision and order, batching mode and
padding sides; of several the one of the smallest batches with the one of the smallest. Rules:

* a bound is worse when it exceeds the allowed multiple of the old one by more than sampling error:
  when the new movement's lower confidence limit lies above that multiple of the old one's upper
  limit, both limits on the same quantile. A bound that is no worse is called worse with probability
  at most 2 x (1 - confidence), whatever the distributions and however the two samples depend on
  each other, and mostly far less;
* a bound of 0 is exceeded by any movement that is surely there;
* what stands in one file only is named and decides nothing; two files with nothing in common are
  no comparison;
* other units, coverages or confidences are refused: their numbers mean different things.

Not known here: whether the decisions of both files are alike.
"""

from collections.abc import Iterable
from enum import StrEnum

from harness.errors import ConfigError, InsufficientEvidenceError
from harness.judge.parameters import differing_build, differing_order, differing_precision
from harness.records import Bound, DifferingParameter, Tolerance, ToleranceFile
from harness.records.document import Record

__all__ = ["BoundChange", "Comparison", "Finding", "ToleranceChange", "compare"]


class Finding(StrEnum):
    """What became of a bound."""

    NO_WORSE = "no_worse"
    """At most the allowed multiple of the old one."""
    MAY_BE_CHANCE = "may_be_chance"
    """Above it, by no more than chance can do with so many decisions."""
    WORSE = "worse"
    """Above it, and surely so."""


class BoundChange(Record, frozen=True, kw_only=True):
    """One bound in two files."""

    bound: str
    """``floor`` or ``envelope``."""
    old: float
    """The old bound: the upper limit of the old movement."""
    new: float
    """The new bound."""
    new_lower: float
    """The lower limit of the new movement."""
    ratio: float | None
    """New to old; None where the old one is 0."""
    finding: Finding
    """What became of it."""


class ToleranceChange(Record, frozen=True, kw_only=True):
    """One condition and batching mode in two files."""

    label: str
    """Its names."""
    old_batches: str
    """What was measured for the old file."""
    new_batches: str
    """What was measured for the new one."""
    differing: tuple[DifferingParameter, ...]
    """Resolved switches and fingerprints that differ in spite of equal names."""
    bounds: tuple[BoundChange, ...]
    """Floor and envelope."""


class Comparison(Record, frozen=True, kw_only=True):
    """All that differs between two tolerance files."""

    allowed: float
    """The factor by which a bound may grow."""
    facts: tuple[DifferingParameter, ...]
    """Facts of the build that differ: old as ``commit``, new as ``replay``."""
    same_decisions: bool
    """Whether both were measured on the same decisions."""
    changes: tuple[ToleranceChange, ...]
    """The tolerances that both files have."""
    only_old: tuple[str, ...]
    """Tolerances that the new file lacks."""
    only_new: tuple[str, ...]
    """Tolerances that the old file lacks."""

    @property
    def is_worse(self) -> bool:
        """Whether any bound is worse."""
        found = (bound.finding for change in self.changes for bound in change.bounds)
        return any(finding is Finding.WORSE for finding in found)


def compare(old: ToleranceFile, new: ToleranceFile, allowed: float = 1.0) -> Comparison:
    """Return what differs between `old` and `new`.

    Raises ConfigError for files whose numbers mean different things, InsufficientEvidenceError for
    files that have no tolerance in common and for a new one that states no lower limits.
    """
    if old.score_unit is not new.score_unit:
        units = f"{old.score_unit} and {new.score_unit}"
        raise ConfigError(f"the files are in {units}; compare files of one score unit")
    left, right = _numbered(old.tolerances), _numbered(new.tolerances)
    common = [label for label in left if label in right]
    if not common:
        raise InsufficientEvidenceError(
            f"comparison over zero items: one file holds {', '.join(left)}, the other "
            f"{', '.join(right)}; calibrate both in the same conditions and batching modes"
        )
    return Comparison(
        allowed=allowed,
        facts=differing_build(old.build, new.build),
        same_decisions=old.decisions_digest == new.decisions_digest,
        changes=tuple(_change(label, left[label], right[label], allowed) for label in common),
        only_old=tuple(label for label in left if label not in right),
        only_new=tuple(label for label in right if label not in left),
    )


def _numbered(tolerances: Iterable[Tolerance]) -> dict[str, Tolerance]:
    """Return label -> tolerance; equal ones are numbered from the smallest batches up."""
    found: dict[str, Tolerance] = {}
    for tolerance in sorted(tolerances, key=_size):
        name = _label(tolerance)
        number = sum(label.partition(" #")[0] == name for label in found)
        found[f"{name} #{number + 1}" if number else name] = tolerance
    return found


def _label(tolerance: Tolerance) -> str:
    sides = " and ".join(sorted(tolerance.batches.sides))
    names = tolerance.precision_mode.name, tolerance.reduction_order.name, tolerance.batches.mode
    return ", ".join([*names, f"padded {sides}"] if sides else names)


def _size(tolerance: Tolerance) -> tuple[int, int]:
    return tolerance.batches.max_rows, tolerance.batches.max_width


def _change(label: str, old: Tolerance, new: Tolerance, allowed: float) -> ToleranceChange:
    return ToleranceChange(
        label=label,
        old_batches=_batches(old),
        new_batches=_batches(new),
        differing=(
            *differing_precision(old.precision_mode, new.precision_mode),
            *differing_order(old.reduction_order, new.reduction_order),
        ),
        bounds=(
            _bound_change(f"{label}: floor", "floor", old.floor, new.floor, allowed),
            _bound_change(f"{label}: envelope", "envelope", old.envelope, new.envelope, allowed),
        ),
    )


def _batches(tolerance: Tolerance) -> str:
    return f"up to {tolerance.batches.max_rows} rows of {tolerance.batches.max_width} tokens"


def _bound_change(where: str, name: str, old: Bound, new: Bound, allowed: float) -> BoundChange:
    claims = [(bound.coverage, bound.confidence) for bound in (old, new)]
    if claims[0] != claims[1]:
        told = " and ".join(f"coverage {c} at confidence {g}" for c, g in claims)
        raise ConfigError(f"{where}: the files claim {told}; calibrate both with one claim")
    if new.lower is None:
        raise InsufficientEvidenceError(
            f"{where}: the new file states no lower limit; calibrate it with this release"
        )
    limit = allowed * old.value
    return BoundChange(
        bound=name,
        old=old.value,
        new=new.value,
        new_lower=new.lower,
        ratio=new.value / old.value if old.value else None,
        finding=_finding(new.value, new.lower, limit),
    )


def _finding(value: float, lower: float, limit: float) -> Finding:
    if value <= limit:
        return Finding.NO_WORSE
    return Finding.WORSE if lower > limit else Finding.MAY_BE_CHANCE
