"""The report as Markdown: what a CI summary shows."""

from calibrate.report.content import Content
from calibrate.report.page import WORDS, template

__all__ = ["markdown_report"]


def markdown_report(content: Content) -> str:
    """Return the summary: outcome, bounds, guards, axes, limits; no chart."""
    return template("report.md").render(report=content, cell=_cell, **WORDS)


def _cell(text: object) -> str:
    """Return `text` as it can stand in a table's cell."""
    return " ".join(str(text).replace("|", "\\|").split())
