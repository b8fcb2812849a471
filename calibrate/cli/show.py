"""``scorepin show``: show a tolerance file."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import MEASURE, app
from calibrate.cli.call import errors_told
from calibrate.cli.options import AsJson


@app.command(rich_help_panel=MEASURE)
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A tolerance file.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show a tolerance file."""
    with errors_told():
        from harness.codec import encode  # noqa: PLC0415
        from harness.tolerance_file import read_tolerance_file  # noqa: PLC0415
        from harness.withdrawals import read_withdrawals  # noqa: PLC0415

        file, withdrawals = read_tolerance_file(path), read_withdrawals(path)
        if as_json:
            typer.echo(encode(file))
        else:
            console.print_tolerances(file)
        table = console.errors if as_json else console.results
        console.print_withdrawals(file, withdrawals, table)
