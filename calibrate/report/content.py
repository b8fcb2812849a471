"""Everything that a report says, whatever its form: pure, from a run and what followed from it."""

from collections.abc import Sequence

import msgspec
import numpy as np

from calibrate.evidence import ArmEvidence, Snapshot
from calibrate.power.findings import PowerReport
from calibrate.report.limits import arm_limits, file_limits
from calibrate.report.membership import requested_membership
from calibrate.sensitivity import (
    MovementQuantiles,
    decision_ranges,
    movement_quantiles,
    winner_changes,
)
from harness.records.commit import ScoreUnit
from harness.records.document import Record
from harness.records.tolerance import (
    AxisFinding,
    Bound,
    GuardFinding,
    Tolerance,
    ToleranceFile,
)
from harness.verifiers.heads import score_unit

__all__ = [
    "ArmContent",
    "BoundLine",
    "CompositionLine",
    "Content",
    "Movements",
    "bound_text",
    "report_content",
]


class BoundLine(Record, frozen=True, kw_only=True):
    """A bound and its claim."""

    name: str
    """``floor`` or ``envelope``."""
    value: str
    """The number."""
    text: str
    """What it claims, with the sample behind it."""


class CompositionLine(Record, frozen=True, kw_only=True):
    """One composition against the first."""

    name: str
    """Its name."""
    num_batches: int
    """Batches in it."""
    movement: MovementQuantiles
    """How far decisions moved."""
    winner_changes: int
    """Decisions with another winner."""


class Movements(Record, frozen=True, kw_only=True):
    """What moved, of an arm whose scores are all finite."""

    axes: tuple[AxisFinding, ...]
    """Axis by axis."""
    first: str
    """The composition that the others are compared with."""
    compositions: tuple[CompositionLine, ...]
    """The others."""


class ArmContent(Record, frozen=True, kw_only=True, eq=False):
    """One condition and batching mode."""

    title: str
    """In one line."""
    batching: str
    """As asked for, JSON."""
    tolerance: Tolerance | None
    """What was blessed; None when the build was refused."""
    bounds: tuple[BoundLine, ...]
    """Floor and envelope."""
    guards: tuple[GuardFinding, ...]
    """What each guard saw."""
    movements: Movements | None
    """None when a score is not finite."""
    membership: str
    """What it means that nobody saw who was computed together; empty where it was observed."""
    limits: tuple[str, ...]
    """What its tolerance must not be used for."""
    evidence: ArmEvidence
    """The measurements behind it, for the charts."""


class Content(Record, frozen=True, kw_only=True, eq=False):
    """The whole report."""

    name: str
    """The config's name."""
    refusal: str
    """Why no tolerance was issued; empty when one was."""
    created_at: str
    """When the run was begun."""
    num_decisions: int
    """Decisions measured."""
    num_rows: int
    """Branches measured."""
    num_truncated: int
    """Rows that lost tokens."""
    num_observations: int
    """Scores measured."""
    unit: ScoreUnit
    """Unit of the scores."""
    arms: tuple[ArmContent, ...]
    """In the config's order."""
    build: tuple[tuple[str, str], ...]
    """Build facts: name, value."""
    limits: tuple[str, ...]
    """What the file must not be used for."""
    power: PowerReport | None
    """The study of planted faults; None where none was made of this tolerance."""


def report_content(
    run: Snapshot,
    arms: Sequence[ArmEvidence],
    *,
    file: ToleranceFile | None = None,
    refusal: str = "",
    power: PowerReport | None = None,
) -> Content:
    """Return what a report of `run` says; `file` is what followed from it, or `refusal` is.

    A study of another tolerance than those of `file` is left out.
    """
    tolerances: Sequence[Tolerance | None] = file.tolerances if file else [None] * len(arms)
    return Content(
        name=run.config.name,
        refusal=refusal,
        created_at=run.identity.created_at,
        num_decisions=run.num_decisions,
        num_rows=len(run.rows),
        num_truncated=sum(row.num_dropped > 0 for row in run.rows),
        num_observations=sum(len(rows) for table in run.scores.values() for rows in table.values()),
        unit=score_unit(run.config.verifier.head),
        arms=tuple(map(_arm, arms, tolerances)),
        build=_build(run),
        limits=file_limits(file) if file else (),
        power=power if file and power and _is_of(power, file) else None,
    )


def bound_text(bound: Bound, what: str) -> str:
    """Return a bound's claim as one sentence."""
    which = "the largest" if bound.rank == 1 else f"number {bound.rank} from the top"
    return (
        f"{what}: {which} of {bound.num_decisions} decisions' movements over "
        f"{bound.num_compositions} compositions; covers {bound.coverage:.3g} of decisions with "
        f"confidence {bound.confidence:.3g}, so that at most {bound.exceedance_rate_upper:.3g} of "
        f"decisions are beyond it"
    )


def _is_of(power: PowerReport, file: ToleranceFile) -> bool:
    known = {file.tolerance_id(tolerance) for tolerance in file.tolerances}
    return power.setting.tolerance_id in known


def _arm(arm: ArmEvidence, tolerance: Tolerance | None) -> ArmContent:
    finite = arm.finite.passed
    return ArmContent(
        title=arm.title,
        batching=msgspec.json.encode(arm.arm.batching).decode(),
        tolerance=tolerance,
        bounds=_bounds(tolerance) if tolerance else (),
        guards=(*arm.guards, arm.neighbours.guard) if finite else arm.guards,
        movements=_movements(arm) if finite else None,
        membership=_requested(arm, tolerance),
        limits=arm_limits(tolerance) if tolerance else (),
        evidence=arm,
    )


def _requested(arm: ArmEvidence, tolerance: Tolerance | None) -> str:
    if not arm.is_requested:
        return ""
    return requested_membership(tolerance, gathered=arm.measured.traits.gathers)


def _movements(arm: ArmEvidence) -> Movements:
    first, *rest = arm.measured.compositions
    return Movements(
        axes=tuple(rows.finding(arm.run.config.claim.confidence) for rows in arm.axes),
        first=first.name,
        compositions=tuple(_composition(arm, first.name, c.name, len(c.batches)) for c in rest),
    )


def _bounds(tolerance: Tolerance) -> tuple[BoundLine, ...]:
    claims = {"floor": "Identical invocations", "envelope": "Other batch membership"}
    return tuple(
        BoundLine(name=name, value=f"{bound.value:.6g}", text=bound_text(bound, claims[name]))
        for name, bound in (("floor", tolerance.floor), ("envelope", tolerance.envelope))
    )


def _composition(arm: ArmEvidence, first: str, name: str, num_batches: int) -> CompositionLine:
    left, right = arm.measured.scores[first], arm.measured.scores[name]
    owners = arm.measured.decision_of_row
    return CompositionLine(
        name=name,
        num_batches=num_batches,
        movement=movement_quantiles(decision_ranges(np.stack([left, right]), owners)),
        winner_changes=winner_changes(left, right, owners),
    )


def _build(run: Snapshot) -> tuple[tuple[str, str], ...]:
    if not run.facts:
        return ()
    build = next(iter(run.facts.values())).build
    checked = {"build_id": build.build_id, "model": build.verifier.model, **build.checked()}
    return tuple((key, _words(value)) for key, value in checked.items())


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items()) or "none set"
    return str(value)
