"""Reads decisions from a JSON-lines file, one decision a line, checked with file and line."""

from pathlib import Path

import msgspec

from harness.codec import digest
from harness.errors import InputFileError
from harness.files import Line, read_lines
from harness.records.decision import Decision
from harness.verifiers import RowText, embedded

__all__ = ["decisions_digest", "read_decisions", "row_texts"]


def read_decisions(source: str, limit: int | None = None) -> tuple[Decision, ...]:
    """Return the decisions of ``embedded:decisions`` or of a file, the first `limit` of them.

    Raises InputFileError with file and line for the first line that is wrong.
    """
    path = embedded.decisions_file() if source == "embedded:decisions" else Path(source)
    found: dict[str, Decision] = {}
    for line in read_lines(path):
        decision = _decision(line)
        if decision.decision_id in found:
            raise InputFileError(f"{line.where}: decision {decision.decision_id!r} stands twice")
        found[decision.decision_id] = decision
    if not found:
        raise InputFileError(f"{path}: no decisions; one JSON object a line is expected")
    return tuple(found.values())[:limit]


def row_texts(decisions: tuple[Decision, ...]) -> tuple[RowText, ...]:
    """Return one row a branch, in file order."""
    return tuple(
        RowText(
            context=decision.context,
            branch=branch.text,
            name=f"decision {decision.decision_id!r}, branch {branch.branch_id!r}",
        )
        for decision in decisions
        for branch in decision.branches
    )


def decisions_digest(decisions: tuple[Decision, ...]) -> str:
    """Return the digest of the decisions, labels included."""
    return digest(decisions)


def _decision(line: Line) -> Decision:
    if line.error:
        raise InputFileError(f"{line.error}; nothing was run")
    try:
        return msgspec.convert(line.value, Decision)
    except msgspec.ValidationError as error:
        raise InputFileError(f"{line.where}: {error}; nothing was run") from error
