"""``scorepin diff``: compare two tolerance files."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import MEASURE, app
from calibrate.cli.call import FAULT, errors_told, print_json
from calibrate.cli.options import AsJson


@app.command(rich_help_panel=MEASURE)
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A tolerance file.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="That of the build that follows it.")],
    *,
    allow: Annotated[
        float, typer.Option(min=0.0, max=1e9, help="How many times as far scores may move.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Compare two tolerance files; exit status 1 when the new build's scores move further."""
    with errors_told():
        import msgspec  # noqa: PLC0415

        from calibrate.comparison import compare  # noqa: PLC0415
        from harness.tolerance_file import read_tolerance_file  # noqa: PLC0415

        comparison = compare(read_tolerance_file(old), read_tolerance_file(new), allow)
        if as_json:
            plain = msgspec.to_builtins(comparison)
            print_json({**plain, "is_worse": comparison.is_worse})
        else:
            console.print_comparison(comparison)
        if comparison.is_worse:
            raise typer.Exit(FAULT)
