"""Plots: how every figure is drawn, to one self-contained SVG.

The same data gives the same bytes: no date, no random ids. Text stays text, so that a page can be
searched and read aloud.
"""

import io
from collections.abc import Callable
from typing import Any

__all__ = ["COLOURS", "EDGE", "drawn", "log_edges"]

COLOURS = ("#1f5fa8", "#c2671b", "#5b6470", "#7a3e9d")
"""One a line, in the order of importance; they differ in lightness too."""
EDGE = "0.25"
"""Colour of marks and bounds."""


def drawn(draw: Callable[[Any, Any], None], height: float = 3.8) -> str:
    """Return the SVG of what `draw(figure, axes)` puts on a figure 9 inches wide."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "scorepin", "font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.grid(visible=True, alpha=0.25)
        axes.set_axisbelow(True)
        draw(figure, axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def log_edges(values: Any) -> tuple[float, float]:
    """Return where a logarithmic axis begins and ends: around all of `values` that is above 0."""
    positive = values[values > 0]
    return (float(positive.min()) / 3, float(positive.max()) * 3) if positive.size else (1e-9, 1.0)
