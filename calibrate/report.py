"""The report of a calibration: one HTML file that needs nothing else, blessed or refused."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from calibrate.evidence import ArmEvidence, Snapshot
from calibrate.plots import movement_plot
from calibrate.sensitivity import decision_ranges, movement_quantiles, winner_changes
from harness.conditions.condition import label
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
        created_at=run.created_at,
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
    ordinal = "the largest" if bound.rank == 1 else f"the {bound.rank} largest, the least of them"
    return (
        f"{what}: {ordinal} of {bound.num_decisions} decisions' movements, over "
        f"{bound.num_compositions} compositions; covers {bound.coverage:.3g} of decisions with "
        f"confidence {bound.confidence:.3g}; at most {bound.exceedance_rate_upper:.3g} of decisions "
        f"are beyond it"
    )


def _arm(arm: ArmEvidence, tolerance: Tolerance | None) -> dict[str, Any]:
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    confidence = arm.run.config.claim.confidence
    first, *rest = [c for c in arm.measured.compositions if c.name in arm.measured.scores]
    return {
        "title": label(arm.arm.condition),
        "batching": f"Batching: {msgspec.json.encode(arm.arm.batching).decode()}",
        "tolerance": tolerance,
        "bounds": _bounds(tolerance) if tolerance else [],
        "movement_plot": Markup(_plot(arm, tolerance)),  # noqa: S704 - our own SVG
        "axes": [rows.finding(confidence) for rows in arm.axes],
        "first": first.name,
        "compositions": [_composition(arm, first.name, c.name, len(c.batches)) for c in rest],
        "guards": tolerance.guards if tolerance else arm.guards,
    }


def _bounds(tolerance: Tolerance) -> list[dict[str, str]]:
    floor = bound_text(tolerance.floor, "identical invocations")
    envelope = bound_text(tolerance.envelope, "other batch membership")
    return [
        {"name": "floor", "value": f"{tolerance.floor.value:.6g}", "text": floor},
        {"name": "envelope", "value": f"{tolerance.envelope.value:.6g}", "text": envelope},
    ]


def _composition(arm: ArmEvidence, first: str, name: str, num_batches: int) -> dict[str, Any]:
    import numpy as np  # noqa: PLC0415 - local to the arrays

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
    reference = arm.reference.facts.condition.precision_mode.name
    movements = {
        str(arm.arm.precision): arm.measured.movements(),
        f"{reference} (guard)": arm.reference.movements(),
    }
    marks = {}
    if tolerance:
        marks = {
            f"floor {tolerance.floor.value:.3g}": tolerance.floor.value,
            f"envelope {tolerance.envelope.value:.3g}": tolerance.envelope.value,
        }
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
