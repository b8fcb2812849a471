"""``scorepin show``: show a tolerance file."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import app
from calibrate.cli.call import errors_told
from calibrate.cli.options import AsJson


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A tolerance file.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show a tolerance file."""
    with errors_told():
        from harness.codec import encode  # noqa: PLC0415
        from harness.tolerance_file import read_tolerance_file  # noqa: PLC0415

        file = read_tolerance_file(path)
        if as_json:
            typer.echo(encode(file))
        else:
            console.print_tolerances(file)
