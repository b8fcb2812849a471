import xml.etree.ElementTree as ET

import numpy as np
import pytest

from calibrate.plots import log_edges
from calibrate.report.charts import (
    axes_chart,
    batch_size_chart,
    detection_chart,
    gaps_chart,
    movement_chart,
    rates_chart,
)
from calibrate.report.figures import AxisSpread, BatchSizes, WinnerGaps, detection_curve
from calibrate.sensitivity import changed_winners, winner_gaps
from calibrate.statistics import Rate, rate_interval


def plotted(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own text


ZERO, SOME = np.zeros(9), np.array([0.0, 0.0, 1e-3, 2e-3, 0.5])

PLOTS: dict[str, tuple[dict[str, np.ndarray], dict[str, float]]] = {
    "nothing moved": ({"bf16": ZERO, "fp32": ZERO}, {"floor": 0.0, "envelope": 0.0}),
    "one precision moved": ({"bf16": SOME, "fp32": ZERO}, {"floor": 0.0, "envelope": 0.5}),
    "both moved": ({"bf16": SOME, "fp32": SOME / 2**16}, {"floor": 1e-3, "envelope": 0.5}),
    "one decision": ({"bf16": SOME[-1:]}, {}),
    "all moved alike": ({"bf16": np.full(5, 0.25)}, {"envelope": 0.25}),
}


@pytest.mark.parametrize("case", PLOTS)
def test_a_plot_is_drawn_whatever_moved(case: str) -> None:
    movements, marks = PLOTS[case]
    text = movement_chart(movements, marks, "logit")
    labels = " ".join(plotted(text).itertext())
    for name, values in movements.items():
        count = f"{name}: {(values > 0).sum()} of {values.size} decisions moved"
        assert count in labels
    assert all(name in labels for name in marks)
    assert "nan" not in text
    assert "inf" not in text
    assert movement_chart(movements, marks, "logit") == text


def labels(text: str) -> str:
    assert "nan" not in text
    assert "inf" not in text
    return " ".join(plotted(text).itertext())


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (0.0, 1e-3, 0.25), (0.5, 0.5, 0.5)])
def test_every_axis_has_its_line(values: tuple[float, float, float]) -> None:
    median, p99, largest = values
    spreads = [
        AxisSpread(axis=axis, median=median, p99=p99, largest=largest)
        for axis in ("num_rows", "padded_width")
    ]
    text = labels(axes_chart(spreads, {"floor 0": 0.0, "envelope 0.5": 0.5}, "logit"))
    assert all(name in text for name in ("num rows", "padded width", "floor 0", "envelope 0.5"))


def test_batch_sizes_are_drawn_with_the_boundaries() -> None:
    sizes = BatchSizes(rows=(3, 12), medians=(0.0, 0.01), p99s=(0.1, 0.2), largest=(0.2, 0.2))
    assert "result switches" in labels(batch_size_chart(sizes, [4], "logit"))
    assert "result switches" not in labels(batch_size_chart(sizes, [], "logit"))


def test_changed_winners_stand_out() -> None:
    gaps = WinnerGaps(leads=(0.0, 0.1, 2.0), movements=(0.2, 0.2, 0.0), changed=(True, True, False))
    assert (gaps.num_changed, gaps.widest_changed) == (2, 0.1)
    text = labels(gaps_chart(gaps, {}, "logit"))
    assert "another winner in some composition: 2 decisions" in text
    assert "same winner in every composition: 1 decisions" in text


def test_edges_hold_all_that_is_not_zero() -> None:
    low, high = log_edges(np.array([0.0, 1e-3, 0.5]))
    assert 0 < low < 1e-3
    assert high > 0.5
    assert log_edges(np.zeros(3)) == (1e-9, 1.0)


def rate_of(num_events: int, num_trials: int) -> Rate:
    return rate_interval(num_events, num_trials, 0.95)


def test_rates_stand_on_one_line_a_replica() -> None:
    both = {"default": rate_of(0, 40), "strict": rate_of(40, 40)}
    text = labels(rates_chart({"float32": both, "int8": both}))
    assert all(name in text for name in ("float32", "int8", "default", "strict"))


def test_a_detection_curve_is_the_chance_of_an_event_among_the_first() -> None:
    curve = detection_curve(rate_of(2, 4))
    assert curve.tolist() == pytest.approx([1 / 2, 5 / 6, 1.0, 1.0])
    assert not detection_curve(rate_of(0, 30)).any()
    assert detection_curve(rate_of(300, 300)).tolist() == [1.0] * 100
    assert "int8" in labels(detection_chart({"int8": curve}))


OWNERS = np.array([0, 0, 0, 1, 1, 2])


def test_leads_are_of_the_best_row_over_the_next() -> None:
    scores = np.array([1.0, 3.0, 2.5, -4.0, -4.0, 7.0])
    assert winner_gaps(scores, OWNERS).tolist() == [0.5, 0.0, np.inf]


def test_winners_change_where_another_row_is_best() -> None:
    left = np.array([1.0, 3.0, 2.5, -4.0, -4.0, 7.0])
    right = np.array([1.0, 3.0, 3.5, -4.0, -4.0, 6.0])
    assert changed_winners(left, right, OWNERS).tolist() == [True, False, False]
    assert not changed_winners(left, left.copy(), OWNERS).any()
