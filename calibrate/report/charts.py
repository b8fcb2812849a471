"""The charts of a report: how far scores move, along what, and when that changes a winner.

Every x or y axis of movements is logarithmic; a value of 0 stands at its lower edge and says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrate.plots import COLOURS, EDGE, drawn, log_edges
from calibrate.report.figures import AxisSpread, BatchSizes, WinnerGaps
from calibrate.sensitivity import Scores
from calibrate.statistics import Rate

__all__ = [
    "axes_chart",
    "batch_size_chart",
    "detection_chart",
    "gaps_chart",
    "movement_chart",
    "rates_chart",
]


def movement_chart(movements: Mapping[str, Scores], marks: Mapping[str, float], unit: str) -> str:
    """Return the share of decisions that move further than x, one line a precision.

    `movements` maps a label to `[decisions]`; `marks` maps a label to a vertical line.
    """
    low, high = log_edges(np.concatenate([*movements.values(), np.array(list(marks.values()))]))

    def draw(figure: Any, axes: Any) -> None:
        for (label, values), colour in zip(movements.items(), COLOURS, strict=False):
            _survival(axes, values, label, (low, high), colour)
        for (label, value), style in zip(marks.items(), ("--", ":"), strict=False):
            axes.axvline(max(value, low), color=EDGE, linestyle=style, label=label)
        axes.set(xscale="log", xlabel=f"movement ({unit})", ylabel="share of decisions beyond")
        axes.set(xlim=(low, high), ylim=(-0.02, 1.03))
        figure.legend(loc="outside upper left", ncols=2, frameon=False)

    return drawn(draw)


def axes_chart(spreads: Sequence[AxisSpread], marks: Mapping[str, float], unit: str) -> str:
    """Return, for each axis, where the movements of the compared scores lie."""
    points = np.array([[s.median, s.p99, s.largest] for s in spreads])
    low, high = log_edges(np.array([*points.ravel(), *marks.values()]))

    def draw(figure: Any, axes: Any) -> None:
        places = np.arange(len(spreads))[::-1]
        axes.hlines(places, np.maximum(points[:, 0], low), np.maximum(points[:, 2], low), EDGE)
        for column, (name, marker) in enumerate((("median", "|"), ("99 %", "o"), ("largest", "D"))):
            at = np.maximum(points[:, column], low)
            axes.plot(at, places, marker, color=COLOURS[column], label=name, markersize=7)
        for (label, value), style in zip(marks.items(), ("--", ":"), strict=False):
            axes.axvline(max(value, low), color=EDGE, linestyle=style, label=label)
        axes.set(xscale="log", xlim=(low, high), xlabel=f"movement of a decision ({unit})")
        axes.set_yticks(places, [s.axis.replace("_", " ") for s in spreads])
        figure.legend(loc="outside upper left", ncols=5, frameon=False)

    return drawn(draw, height=1.6 + 0.34 * len(spreads))


def batch_size_chart(sizes: BatchSizes, boundaries: Sequence[int], unit: str) -> str:
    """Return how far decisions move from each row alone, against the rows of a batch.

    `boundaries` are the first sizes at which the search saw a result switch.
    """
    curves = {"median": sizes.medians, "99 %": sizes.p99s, "largest": sizes.largest}
    low, high = log_edges(np.concatenate([np.array(curve) for curve in curves.values()]))

    def draw(figure: Any, axes: Any) -> None:
        for (name, values), colour, marker in zip(curves.items(), COLOURS, "so^", strict=False):
            at = np.maximum(values, low)
            axes.plot(sizes.rows, at, marker=marker, color=colour, label=name)
        for number, size in enumerate(boundaries):
            label = "" if number else "result switches"
            axes.axvline(size, color=EDGE, linestyle=":", label=label)
        axes.set(xscale="log", yscale="log", ylim=(low, high))
        axes.set(xlabel="rows in a batch", ylabel=f"movement ({unit})")
        axes.set_xticks(sizes.rows, list(map(str, sizes.rows)))
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=4, frameon=False)

    return drawn(draw)


def gaps_chart(gaps: WinnerGaps, marks: Mapping[str, float], unit: str) -> str:
    """Return each decision's lead against its movement; those whose winner changed stand out."""
    leads, moves, changed = map(np.array, (gaps.leads, gaps.movements, gaps.changed))
    (left, right), (low, high) = log_edges(leads), log_edges(moves)

    def draw(figure: Any, axes: Any) -> None:
        for mask, colour, marker, what in (
            (~changed, COLOURS[0], ".", "same winner in every composition"),
            (changed, COLOURS[1], "D", "another winner in some composition"),
        ):
            at = np.maximum(leads[mask], left), np.maximum(moves[mask], low)
            label = f"{what}: {int(mask.sum())} decisions"
            axes.plot(*at, marker, color=colour, label=label, alpha=0.7)
        ends = max(left, low), min(right, high)
        axes.plot(ends, ends, color=EDGE, linewidth=1, label="movement = lead")
        for (label, value), style in zip(marks.items(), ("--", ":"), strict=False):
            axes.axhline(max(value, low), color=EDGE, linestyle=style, label=label)
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
        axes.set(xlabel=f"lead of the winner ({unit})", ylabel=f"movement ({unit})")
        figure.legend(loc="outside upper left", ncols=2, frameon=False)

    return drawn(draw, height=4.4)


def rates_chart(rates: Mapping[str, Mapping[str, Rate]]) -> str:
    """Return detection rates per replay with their intervals; a label's rates lie on one line."""
    places = np.arange(len(rates))[::-1]
    columns = {name: [row[name] for row in rates.values()] for name in next(iter(rates.values()))}

    def draw(figure: Any, axes: Any) -> None:
        shift = 0.16
        for (name, found), colour, marker in zip(columns.items(), COLOURS, "so^", strict=False):
            at = np.array([rate.value for rate in found])
            ends = np.array([[rate.lower for rate in found], [rate.upper for rate in found]])
            errors = np.maximum(np.abs(ends - at), 0.0)
            axes.errorbar(
                at, places + shift, xerr=errors, fmt=marker, color=colour, label=name, capsize=3
            )
            shift -= 0.32
        axes.set(xlim=(-0.03, 1.03), xlabel="share of replays called a fault, 95 % interval")
        axes.set_yticks(places, list(rates))
        figure.legend(loc="outside upper left", ncols=3, frameon=False)

    return drawn(draw, height=1.5 + 0.4 * len(rates))


def detection_chart(curves: Mapping[str, Scores]) -> str:
    """Return the chance that something is found within k replays, one line a replica.

    `curves` maps a replica to `[replays]`, the chance within 1, 2, ... of them.
    """

    def draw(figure: Any, axes: Any) -> None:
        styles = [(colour, line) for line in ("-", "--", ":", "-.") for colour in COLOURS]
        for (name, chance), (colour, line) in zip(curves.items(), styles, strict=False):
            axes.plot(np.arange(1, chance.size + 1), chance, line, color=colour, label=name)
        axes.set(xscale="log", ylim=(-0.02, 1.03), xlabel="replays of the replica")
        axes.set(ylabel="chance of a fault under strict")
        figure.legend(loc="outside right upper", frameon=False)

    return drawn(draw, height=4.2)


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
