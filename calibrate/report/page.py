"""The report of a calibration: one HTML file that needs nothing else, blessed or refused."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from calibrate.evidence import ArmEvidence, Snapshot
from calibrate.plots import movement_plot
from calibrate.sensitivity import decision_ranges, movement_quantiles, winner_changes
from harness.files import write_atomic
from harness.records.tolerance import Bound, Tolerance, ToleranceFile
from harness.verifiers.heads import score_unit

__all__ = ["bound_text", "write_report"]


def write_report(
    path: Path,
    run: Snapshot,
    arms: Sequence[ArmEvidence],
    *,
    file: ToleranceFile | None = None,
    refusal: str = "",
) -> None:
    """Write the report of a run to `path`, in place of an older one."""
    import jinja2  # noqa: PLC0415 - not needed to judge

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    template = environment.from_string(
        files("calibrate").joinpath("templates/report.html").read_text(encoding="utf-8")
    )
    tolerances: Sequence[Tolerance | None] = file.tolerances if file else [None] * len(arms)
    text = template.render(
        name=run.config.name,
        refusal=refusal,
        created_at=run.identity.created_at,
        num_decisions=run.num_decisions,
        num_rows=len(run.rows),
        num_truncated=sum(row.num_dropped > 0 for row in run.rows),
        unit=score_unit(run.config.verifier.head),
        arms=[_arm(arm, tolerance) for arm, tolerance in zip(arms, tolerances, strict=True)],
        build=_build(run),
    )
    write_atomic(path, text.encode(), overwrite=True)


def bound_text(bound: Bound, what: str) -> str:
    """Return a bound's claim as one sentence."""
    which = "the largest" if bound.rank == 1 else f"number {bound.rank} from the top"
    return (
        f"{what}: {which} of {bound.num_decisions} decisions' movements over "
        f"{bound.num_compositions} compositions; covers {bound.coverage:.3g} of decisions with "
        f"confidence {bound.confidence:.3g}, so that at most {bound.exceedance_rate_upper:.3g} of "
        f"decisions are beyond it"
    )


def _arm(arm: ArmEvidence, tolerance: Tolerance | None) -> dict[str, Any]:
    shown = {
        "title": arm.title,
        "batching": msgspec.json.encode(arm.arm.batching).decode(),
        "tolerance": tolerance,
        "bounds": _bounds(tolerance) if tolerance else [],
        "guards": arm.guards,
        "movements": None,
    }
    if not arm.finite.passed:
        return shown
    guards = (*arm.guards, arm.neighbours.guard)
    return {**shown, "guards": guards, "movements": _movements(arm, tolerance)}


def _movements(arm: ArmEvidence, tolerance: Tolerance | None) -> dict[str, Any]:
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    first, *rest = arm.measured.compositions
    return {
        "plot": Markup(_plot(arm, tolerance)),  # noqa: S704 - our own SVG
        "axes": [rows.finding(arm.run.config.claim.confidence) for rows in arm.axes],
        "first": first.name,
        "compositions": [_composition(arm, first.name, c.name, len(c.batches)) for c in rest],
    }


def _bounds(tolerance: Tolerance) -> list[dict[str, str]]:
    floor = bound_text(tolerance.floor, "Identical invocations")
    envelope = bound_text(tolerance.envelope, "Other batch membership")
    return [
        {"name": "floor", "value": f"{tolerance.floor.value:.6g}", "text": floor},
        {"name": "envelope", "value": f"{tolerance.envelope.value:.6g}", "text": envelope},
    ]


def _composition(arm: ArmEvidence, first: str, name: str, num_batches: int) -> dict[str, Any]:
    left, right = arm.measured.scores[first], arm.measured.scores[name]
    owners = arm.measured.decision_of_row
    movement = movement_quantiles(decision_ranges(np.stack([left, right]), owners))
    changes = winner_changes(left, right, owners)
    return {
        "name": name,
        "num_batches": num_batches,
        "movement": movement,
        "winner_changes": changes,
    }


def _plot(arm: ArmEvidence, tolerance: Tolerance | None) -> str:
    """Return the plot, or nothing when no decision moved."""
    reference = arm.reference.facts.condition.precision_mode.name
    movements = {
        str(arm.arm.precision): arm.measured.movements(),
        f"{reference} (guard)": arm.reference.movements(),
    }
    if not any(values.any() for values in movements.values()):
        return ""
    bounds = {"floor": tolerance.floor, "envelope": tolerance.envelope} if tolerance else {}
    marks = {f"{name} {bound.value:.3g}": bound.value for name, bound in bounds.items()}
    return movement_plot(movements, marks, str(score_unit(arm.run.config.verifier.head)))


def _build(run: Snapshot) -> list[tuple[str, str]]:
    if not run.facts:
        return []
    build = next(iter(run.facts.values())).build
    checked = {"build_id": build.build_id, "model": build.verifier.model, **build.checked()}
    return [(key, _words(value)) for key, value in checked.items()]


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items()) or "none set"
    return str(value)
