"""Plots of a report, as SVG text."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrate.sensitivity import Scores

__all__ = ["movement_plot"]


COLOURS = ("#1f5fa8", "#c2671b", "#5b6470")


def movement_plot(movements: Mapping[str, Scores], marks: Mapping[str, float], unit: str) -> str:
    """Return an SVG of the share of decisions that move further than x, one line a precision.

    `movements` maps a label to `[decisions]`; `marks` maps a label to a vertical line. The x axis
    is logarithmic; a mark at 0 stands at its left edge.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "scorepin", "font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        low, high = _edges([*movements.values(), np.array(list(marks.values()))])
        for (label, values), colour in zip(movements.items(), COLOURS, strict=False):
            _survival(axes, values, label, (low, high), colour)
        for (label, value), style in zip(marks.items(), ("--", ":"), strict=False):
            axes.axvline(max(value, low), color="0.25", linestyle=style, label=label)
        axes.set(xscale="log", xlabel=f"movement ({unit})", ylabel="share of decisions beyond")
        axes.set(xlim=(low, high), ylim=(-0.02, 1.03))
        axes.grid(visible=True, alpha=0.25)
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _edges(groups: Sequence[Scores]) -> tuple[float, float]:
    """Return where the x axis begins and ends: around all that moved."""
    values = np.concatenate([group.ravel() for group in groups])
    moved = values[values > 0]
    return (float(moved.min()) / 3, float(moved.max()) * 3) if moved.size else (1e-9, 1.0)


def _survival(
    axes: Any, values: Scores, label: str, edges: tuple[float, float], colour: str
) -> None:
    moved = np.sort(values[values > 0])
    beyond = np.arange(moved.size, -1, -1) / values.size
    axes.step(
        [edges[0], *moved, edges[1]],
        [*beyond, 0.0],
        where="post",
        color=colour,
        label=f"{label}: {moved.size} of {values.size} decisions moved",
    )
