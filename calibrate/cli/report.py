"""``scorepin report``: the report of a finished run, as a page or as a summary for CI."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import MEASURE, app
from calibrate.cli.call import errors_told


@app.command(rich_help_panel=MEASURE)
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File, .html or .md; default RUN/report.html."),
    ] = None,
) -> None:
    """Write the report of a run again: a page with charts, or Markdown."""
    with errors_told():
        from calibrate.report import report_run  # noqa: PLC0415 - heavy

        path = out or run / "report.html"
        refusal = report_run(run, path)
        console.print_paths({"refused" if refusal else "blessed": path})
