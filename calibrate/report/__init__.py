"""The report of a run: one HTML page with charts, or a Markdown summary, of the same content."""

from collections.abc import Sequence
from pathlib import Path

from calibrate.evidence import ArmEvidence, Snapshot, tolerance_file
from calibrate.report.content import Content, bound_text, report_content
from calibrate.report.page import html_report
from calibrate.report.summary import markdown_report
from harness.errors import ConfigError, GuardRefusalError
from harness.files import write_atomic
from harness.records.tolerance import ToleranceFile

__all__ = ["bound_text", "report_run", "report_text", "write_report"]

FORMS = {".html": html_report, ".htm": html_report, ".md": markdown_report}


def write_report(
    path: Path,
    run: Snapshot,
    arms: Sequence[ArmEvidence],
    *,
    file: ToleranceFile | None = None,
    refusal: str = "",
) -> None:
    """Write the report of a run to `path`, in place of an older one; its suffix tells the form."""
    content = report_content(run, arms, file=file, refusal=refusal)
    write_atomic(path, report_text(content, path).encode(), overwrite=True)


def report_text(content: Content, path: Path) -> str:
    """Return the report in the form that `path` asks for; raise ConfigError for another suffix."""
    if path.suffix not in FORMS:
        raise ConfigError(f"{path}: a report is one of {', '.join(FORMS)}; end its name so")
    return FORMS[path.suffix](content)


def report_run(run: Snapshot, path: Path) -> str:
    """Write the report of a finished run to `path`; return why it was refused, empty when not."""
    arms = [ArmEvidence(run, at) for at in range(len(run.config.arms))]
    try:
        file = tolerance_file(run, arms)
    except GuardRefusalError as refusal:
        write_report(path, run, arms, refusal=str(refusal))
        return str(refusal)
    write_report(path, run, arms, file=file)
    return ""
