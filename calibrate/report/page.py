"""The report as one HTML page that needs nothing else, blessed or refused."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from calibrate.power.findings import PowerReport
from calibrate.power.published import REPORTED
from calibrate.power.words import counted, delay, interval
from calibrate.report.charts import (
    axes_chart,
    batch_size_chart,
    detection_chart,
    gaps_chart,
    movement_chart,
    rates_chart,
)
from calibrate.report.content import ArmContent, Content
from calibrate.report.figures import (
    WinnerGaps,
    axis_spreads,
    batch_sizes,
    detection_curve,
    winner_leads,
)
from harness.records.batching import InFlight
from harness.records.document import Record

if TYPE_CHECKING:
    import jinja2

__all__ = ["Figure", "html_report", "template"]


class Figure(Record, frozen=True, kw_only=True):
    """A chart and what it shows."""

    svg: Any
    """The chart, marked as safe to put into a page."""
    caption: str
    """What it shows, in a sentence or two."""


def html_report(content: Content) -> str:
    """Return the page."""
    figures = [tuple(_figures(arm, content.unit)) for arm in content.arms]
    study = tuple(_study_figures(content.power)) if content.power else ()
    return template("report.html").render(report=content, figures=figures, study=study, **WORDS)


WORDS = {"interval": interval, "counted": counted, "delay": delay, "reported": REPORTED}
"""How the study's numbers are said in the templates, and what the original report gives."""


def template(name: str) -> "jinja2.Template":
    """Return one of the package's templates; a name that is not known in it is an error."""
    import jinja2  # noqa: PLC0415 - not needed to judge

    environment = jinja2.Environment(
        autoescape=name.endswith(".html"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    text = files("calibrate").joinpath(f"templates/{name}").read_text(encoding="utf-8")
    return environment.from_string(text)


def _figures(arm: ArmContent, unit: str) -> Iterator[Figure]:
    """Yield the charts of an arm: none when no decision moved."""
    evidence = arm.evidence
    if arm.movements is None:
        return
    movements = {
        str(evidence.arm.precision): evidence.measured.movements(),
        _guard_label(arm): evidence.reference.movements(),
    }
    if not any(values.any() for values in movements.values()):
        return
    marks = _marks(arm)
    yield _figure(
        movement_chart(movements, marks, unit),
        "The share of decisions whose scores move further than x when batch membership changes. "
        "A curve begins on the left at the share of decisions that moved at all.",
    )
    if not movements[str(evidence.arm.precision)].any():
        return
    yield from _moved_figures(arm, marks, unit)


def _sizes_caption(arm: ArmContent) -> str:
    if isinstance(arm.evidence.arm.batching, InFlight):
        return (
            "Each decision in flights of so many requests, in file order, against its rows alone."
        )
    return (
        "Each decision in batches of so many rows, in file order, against its rows alone: the "
        "padded width changes too."
    )


def _moved_figures(arm: ArmContent, marks: dict[str, float], unit: str) -> Iterator[Figure]:
    spreads = axis_spreads(arm.evidence.axes)
    yield _figure(
        axes_chart(spreads, marks, unit),
        "How far decisions move along each axis, of those compared; on the left edge: not at all.",
    )
    if sizes := batch_sizes(arm.evidence):
        yield _figure(
            batch_size_chart(sizes, _boundaries(arm), unit),
            _sizes_caption(arm),
        )
    if gaps := winner_leads(arm.evidence):
        yield _figure(gaps_chart(gaps, marks, unit), _gaps_caption(gaps))


def _gaps_caption(gaps: WinnerGaps) -> str:
    widest = gaps.widest_changed
    lost = f"the largest lead that was lost is {widest:.3g}" if widest is not None else "none did"
    return (
        f"The winner's lead against the decision's movement: {gaps.num_changed} of "
        f"{len(gaps.leads)} decisions change their winner in some composition; {lost}."
    )


def _figure(svg: str, caption: str) -> Figure:
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    return Figure(svg=Markup(svg), caption=caption)  # noqa: S704 - our own SVG


def _guard_label(arm: ArmContent) -> str:
    return f"{arm.evidence.reference.facts.condition.precision_mode.name} (guard)"


def _marks(arm: ArmContent) -> dict[str, float]:
    if arm.tolerance is None:
        return {}
    bounds = {"floor": arm.tolerance.floor, "envelope": arm.tolerance.envelope}
    return {f"{name} {bound.value:.3g}": bound.value for name, bound in bounds.items()}


def _boundaries(arm: ArmContent) -> Sequence[int]:
    searches = arm.tolerance.searches if arm.tolerance else ()
    by_rows = [search for search in searches if search.axis == "num_rows"]
    return [switch.first for search in by_rows for switch in search.switches]


def _study_figures(power: PowerReport) -> Iterator[Figure]:
    moved = [one for one in power.replicas if one.moved.num_events]
    if not moved:
        return
    yield _figure(
        rates_chart({r.name: {"default": r.faults, "strict": r.strict_faults} for r in moved}),
        "How often one replay of a planted replica is called a fault.",
    )
    yield _figure(
        detection_chart({r.name: detection_curve(r.strict_faults) for r in moved}),
        "The chance that a planted replica is found within so many replays, under strict.",
    )
