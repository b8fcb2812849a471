"""Plots of a report, as SVG text."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrate.sensitivity import Scores

__all__ = ["movement_plot"]


def movement_plot(
    movements: Mapping[str, Scores], marks: Mapping[str, float], unit: str
) -> str:
    """Return an SVG of how many decisions move by more than x, one step line a precision.

    `movements` maps a label to `[decisions]`; `marks` maps a label to a vertical line. The x axis is
    logarithmic; decisions that never moved stand left of all that did.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "scorepin", "font.size": 10}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        left = _left_edge([*movements.values(), np.array(list(marks.values()))])
        for label, values in movements.items():
            _survival(axes, values, label, left)
        for (label, value), style in zip(marks.items(), ("--", ":"), strict=False):
            axes.axvline(max(value, left), color="0.25", linestyle=style, label=label)
        axes.set(xscale="log", xlabel=f"movement ({unit})", ylabel="share of decisions beyond")
        axes.set_ylim(0, 1.02)
        axes.grid(visible=True, alpha=0.25)
        axes.legend(loc="upper right", frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _left_edge(groups: Sequence[Scores]) -> float:
    values = np.concatenate([group.ravel() for group in groups])
    moved = values[values > 0]
    return float(moved.min()) / 3 if moved.size else 1e-9


def _survival(axes: Any, values: Scores, label: str, left: float) -> None:
    ordered = np.sort(np.maximum(values, left))
    share = 1 - np.arange(1, len(ordered) + 1) / len(ordered)
    moved = int((values > 0).sum())
    axes.step(
        np.concatenate([[left], ordered]),
        np.concatenate([[1.0], share]),
        where="post",
        label=f"{label}: {moved} of {len(values)} decisions moved",
    )
