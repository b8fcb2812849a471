import html
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pytest
from msgspec.structs import replace

from calibrate.report import bound_text
from calibrate.stored_run import keep_config
from harness.errors import GuardRefusalError
from tests.calibrate.example_runs import a_config, files_in, run, write_decisions
from tests.command import invoke
from tests.examples import a_bound


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
    measured = r"60 decisions, 120 branches, \d{4} scores, begun 2026-01-02T03:04:05\+00:00; 0 rows"
    assert re.search(measured, text)
    assert "bfloat16/vendor, padded, up to 8 rows" in text
    assert "Memberships count as equal when: shape" in text
    assert re.search(r"floor 0 Identical invocations: the largest of 60 decisions' movements", text)
    assert re.search(r"padding side moved 55 / 55 1 ", text)
    assert re.search(r"companions exercised invariant 0 / 60 0\.0487 ", text)
    assert "float32 (guard): 20 of 20 decisions moved" in text
    assert "Each composition against the first, rows-4" in text
    assert "Why no tolerance file was written" not in text
    assert "Other batches than padded, of up to 8 rows and" in text


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
    assert "must not be used for" not in text
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


def test_bounds_are_said_in_a_sentence() -> None:
    assert bound_text(a_bound(0.5, rank=1), "Identical invocations") == (
        "Identical invocations: the largest of 400 decisions' movements over 8 compositions; "
        "covers 0.99 of decisions with confidence 0.95, so that at most 0.01 of decisions are "
        "beyond it"
    )
    assert "number 3 from the top of 400" in bound_text(a_bound(0.5, rank=3), "It")


def test_a_run_is_reported_again_from_its_folder_alone(tmp_path: Path) -> None:
    first = report_of(tmp_path, "fake:rounding")
    (tmp_path / "decisions.jsonl").unlink()
    done = invoke("report", tmp_path, "-o", tmp_path / "again.html")
    assert (done.code, done.stdout.split()[0]) == (0, "blessed")
    assert (tmp_path / "again.html").read_text() == first


def test_a_refused_run_is_reported_as_refused(tmp_path: Path) -> None:
    first = report_of(tmp_path, "fake:logic")
    done = invoke("report", tmp_path)
    assert (done.code, done.stdout.split()[0]) == (0, "refused")
    assert (tmp_path / "report.html").read_text() == first


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: cannot be read"),
        (lambda folder: (folder / "observations.sqlite").unlink(), "unable to open database file"),
        (
            lambda folder: keep_config(folder, a_config("elsewhere", "fake:exact")),
            "config.json is not the config of observations.sqlite",
        ),
    ],
    ids=["no config", "no store", "another config"],
)
def test_a_folder_without_a_whole_run(
    tmp_path: Path, change: Callable[[Path], None], problem: str
) -> None:
    report_of(tmp_path, "fake:rounding")
    change(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    done = invoke("report", tmp_path, "-o", tmp_path / "none.html")
    assert done.code == 2
    assert problem in done.stderr
    made = {path.name for path in tmp_path.iterdir()} - before
    assert made <= {"observations.sqlite-shm", "observations.sqlite-wal"}  # SQLite's, of a reader


def test_another_form_is_refused(tmp_path: Path) -> None:
    report_of(tmp_path, "fake:rounding")
    done = invoke("report", tmp_path, "-o", tmp_path / "report.pdf")
    assert done.code == 2
    assert "a report is one of .html, .htm, .md" in done.stderr


def test_the_summary_says_the_same_in_markdown(tmp_path: Path) -> None:
    report_of(tmp_path, "fake:rounding")
    assert invoke("report", tmp_path, "-o", tmp_path / "summary.md").code == 0
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[0] == "# example: blessed"
    assert "| floor | 0 | 60 | 0.95 | 0.95 | 0.0487 |" in lines
    assert any(line.startswith("| padding_side | moved | 55 of 55 | 1 | ") for line in lines)
    for head in (at for at, line in enumerate(lines) if line.startswith("|---")):
        columns = lines[head].count("|")
        assert lines[head - 2] == ""  # or the table is no table
        rows = list(takewhile(lambda line: line.startswith("|"), lines[head + 1 :]))
        assert rows
        assert {row.replace("\\|", "").count("|") for row in rows} == {columns}


def test_the_summary_of_a_refusal_shows_the_reason(tmp_path: Path) -> None:
    report_of(tmp_path, "fake:logic")
    assert invoke("report", tmp_path, "-o", tmp_path / "summary.md").code == 0
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("# example: refused")
    assert "no tolerance is issued, 1 guard(s) failed" in text
    assert "| rounding | **no** |" in text
