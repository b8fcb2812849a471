import html
import re
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from calibrate.plots import movement_plot
from calibrate.report import bound_text
from harness.errors import GuardRefusalError
from tests.calibrate.example_runs import a_config, files_in, run, write_decisions
from tests.examples import a_bound

SVG = "{http://www.w3.org/2000/svg}"


def report_of(folder: Path, model: str, **changes: object) -> str:
    config = a_config(write_decisions(folder / "decisions.jsonl"), model, **changes)
    with suppress(GuardRefusalError):
        run(config, folder)
    return files_in(folder).report.read_text()


def words(report: str) -> str:
    """Return a report's text without its tags, white space made one blank."""
    body = re.sub(r"<style>.*?</style>", "", report, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_a_blessed_report_says_what_was_measured(tmp_path: Path) -> None:
    report = report_of(tmp_path, "fake:rounding")
    text = words(report)
    assert "example blessed" in text
    assert "60 decisions, 120 branches, begun 2026-01-02T03:04:05+00:00; 0 rows truncated" in text
    assert "bfloat16/vendor, padded, up to 8 rows" in text
    assert "Memberships count as equal when: shape" in text
    assert re.search(r"floor 0 Identical invocations: the largest of 60 decisions' movements", text)
    assert re.search(r"padding side moved 55 / 55 1 ", text)
    assert re.search(r"companions exercised invariant 0 / 60 0\.0487 ", text)
    assert "float32 (guard): 20 of 20 decisions moved" in text
    assert "Each composition against the first, rows-4" in text
    assert "Why no tolerance file was written" not in text


def test_a_report_needs_nothing_else(tmp_path: Path) -> None:
    report = report_of(tmp_path, "fake:rounding")
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?!#)[^\"'#>\s]", report)
    assert "<script" not in report
    assert "url(" not in re.sub(r"url\(#\w+\)", "", report)


def test_a_report_in_which_nothing_moved_has_no_empty_plot(tmp_path: Path) -> None:
    report = report_of(tmp_path, "fake:exact")
    assert "Nothing moved: every score has the same bits" in words(report)
    assert "<svg" not in report


def test_a_refused_report_shows_the_reason_and_the_measurements(tmp_path: Path) -> None:
    report = report_of(tmp_path, "fake:logic")
    text = words(report)
    assert "example refused" in text
    assert "Why no tolerance file was written no tolerance is issued, 1 guard(s) failed" in text
    assert "rounding no movement does not shrink" in text
    assert "neighbours yes" in text
    assert "<svg" in report
    assert "Memberships count as equal" not in text


def test_a_report_of_scores_that_are_not_finite_shows_just_that(tmp_path: Path) -> None:
    report = report_of(tmp_path, "fake:nan")
    text = words(report)
    assert re.search(r"finite no \d+ of 120 scores are not finite", text)
    assert "Sensitivity" not in text
    assert "<svg" not in report


def test_an_axis_that_was_not_compared_is_not_called_unmoved(tmp_path: Path) -> None:
    sweep = replace(a_config("unused").sweep, sides=())
    text = words(report_of(tmp_path, "fake:rounding", sweep=sweep))
    assert "padding side not exercised none compared unknown none compared unknown" in text


def test_what_a_config_names_cannot_break_the_report(tmp_path: Path) -> None:
    decisions = write_decisions(tmp_path / "decisions.jsonl")
    text = Path(decisions).read_text().replace('"d7"', '"<script>alert(7)</script>"')
    Path(decisions).write_text(text)
    with pytest.raises(GuardRefusalError):
        run(a_config(decisions, "fake:nan"), tmp_path)
    report = files_in(tmp_path).report.read_text()
    assert "<script>" not in report


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
    text = movement_plot(movements, marks, "logit")
    labels = " ".join(plotted(text).itertext())
    for name, values in movements.items():
        count = f"{name}: {(values > 0).sum()} of {values.size} decisions moved"
        assert count in labels
    assert all(name in labels for name in marks)
    assert "nan" not in text
    assert "inf" not in text
    assert movement_plot(movements, marks, "logit") == text


def test_bounds_are_said_in_a_sentence() -> None:
    assert bound_text(a_bound(0.5, rank=1), "Identical invocations") == (
        "Identical invocations: the largest of 400 decisions' movements over 8 compositions; "
        "covers 0.99 of decisions with confidence 0.95, so that at most 0.01 of decisions are "
        "beyond it"
    )
    assert "number 3 from the top of 400" in bound_text(a_bound(0.5, rank=3), "It")
