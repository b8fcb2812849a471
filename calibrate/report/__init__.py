"""The report of a run: one HTML page with charts, or a Markdown summary, of the same content."""

from pathlib import Path

from calibrate.evidence import ArmEvidence, tolerance_file
from calibrate.power.findings import FILE_NAME, read_power_report
from calibrate.report.content import Content, bound_text, report_content
from calibrate.report.page import html_report
from calibrate.report.summary import markdown_report
from calibrate.stored_run import read_run
from harness.errors import ConfigError, GuardRefusalError
from harness.files import write_atomic

__all__ = ["bound_text", "report_content", "report_run", "report_text", "write_report"]

FORMS = {".html": html_report, ".htm": html_report, ".md": markdown_report}


def write_report(path: Path, content: Content) -> None:
    """Write a report to `path`, in place of an older one; its suffix tells the form."""
    write_atomic(path, report_text(content, path).encode(), overwrite=True)


def report_text(content: Content, path: Path) -> str:
    """Return the report in the form that `path` asks for; raise ConfigError for another suffix."""
    if path.suffix not in FORMS:
        raise ConfigError(f"{path}: a report is one of {', '.join(FORMS)}; end its name so")
    return FORMS[path.suffix](content)


def report_run(folder: Path, path: Path) -> str:
    """Write the report of the finished run in `folder` to `path`, with its study if there is one.

    Returns why the build was refused, or nothing.
    """
    run, study = read_run(folder), folder / FILE_NAME
    arms = [ArmEvidence(run, at) for at in range(len(run.config.arms))]
    try:
        file = tolerance_file(run, arms)
    except GuardRefusalError as refusal:
        write_report(path, report_content(run, arms, refusal=str(refusal)))
        return str(refusal)
    power = read_power_report(study) if study.exists() else None
    write_report(path, report_content(run, arms, file=file, power=power))
    return ""
