"""``scorepin effects``: how far a recorded run can be audited, with the boundary marked.

Results go to standard output, errors to standard error. Exit status: 0 the run was classified,
whatever its class; 2 the call or its input must be mended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate.cli.call import errors_told
from calibrate.cli.planner.store import require_store
from harness.codec import canonical_bytes
from harness.planner.effects import (
    Auditability,
    EffectStore,
    MemoryEffectStore,
    StepFinding,
    TrajectoryFormat,
    classify_trajectory,
    read_trajectory,
)

if TYPE_CHECKING:
    from harness.planner.effects.sql_store import SqlEffectStore

__all__ = ["app"]


app = typer.Typer(
    name="effects",
    help="Say where the replay of a recorded run must stop.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _group() -> None:
    """Say where the replay of a recorded run must stop."""


@app.command()
def classify(  # noqa: PLR0913 - options
    trajectory: Annotated[Path, typer.Argument(help="A recorded run, JSON.")],
    *,
    store: Annotated[
        str | None, typer.Option(help="URL of the effect store, such as sqlite:///effects.db.")
    ] = None,
    trajectory_format: Annotated[
        TrajectoryFormat | None, typer.Option("--format", help="Default: what the file shows.")
    ] = None,
    read_only: Annotated[
        list[str] | None, typer.Option(help="A tool known to change nothing (OpenAI format).")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Instant at which tokens are verified, ISO 8601; now.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for a machine to read.")
    ] = False,
) -> None:
    """Print the auditability class of a run, and what was found about each step."""
    with errors_told(), _opened(store) as held:
        run = read_trajectory(
            trajectory, trajectory_format=trajectory_format, read_only_tools=read_only or ()
        )
        audit = classify_trajectory(run, held, now=at or datetime.now(UTC).isoformat())
        if as_json:
            typer.echo(canonical_bytes(audit))
            return
        for line in _lines(audit, has_store=store is not None):
            typer.echo(line)


@contextmanager
def _opened(url: str | None) -> Iterator[EffectStore]:
    """Give the store at a URL; without one, a store that knows no token."""
    if url is None:
        yield MemoryEffectStore()
        return
    store = _database(url)
    try:
        yield store
    finally:
        store.close()


def _database(url: str) -> "SqlEffectStore":
    from harness.planner.effects.sql_store import SqlEffectStore  # noqa: PLC0415 - SQLAlchemy

    require_store(url)
    return SqlEffectStore(url)


def _lines(audit: Auditability, *, has_store: bool) -> Iterator[str]:
    yield f"{audit.source}: {audit.auditability}"
    yield _where(audit)
    yield _admitted(audit)
    if not has_store:
        yield "No store was given, so no token could be verified (--store)."
    yield ""
    rows = [_cells(finding) for finding in audit.findings]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        if index == audit.boundary_index:
            yield "----- boundary: nothing from here on can be re-issued -----"
        cells = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()


def _where(audit: Auditability) -> str:
    if audit.boundary_index is None:
        return "No boundary: every side effect is verifiable."
    finding = audit.findings[audit.boundary_index]
    step = f"step {finding.index} ({_printable(finding.step_id)})"
    return f"Boundary: {step}, the first unverifiable side effect: {finding.reason}."


def _admitted(audit: Auditability) -> str:
    """Say where a counterfactual may diverge; what is admitted is a run of steps from the first."""
    num_steps = len(audit.findings)
    num_admitted = sum(audit.admits_divergence_at(at) for at in range(num_steps))
    if num_steps == 0:
        return "It has no steps: no tool was called."
    if num_admitted == 0:
        return "A counterfactual may diverge nowhere; state replay only."
    steps = "step 0" if num_admitted == 1 else f"steps 0 to {num_admitted - 1}"
    rest = "" if num_admitted == num_steps else f"; state replay only from step {num_admitted} on"
    return f"A counterfactual may diverge at {steps}{rest}."


def _cells(finding: StepFinding) -> tuple[str, ...]:
    names = _printable(finding.step_id), _printable(finding.tool)
    return str(finding.index), *names, str(finding.reason)


def _printable(text: str) -> str:
    """Return text that cannot steer a terminal: names come from whoever wrote the file."""
    return "".join(character if character.isprintable() else "?" for character in text)
