"""The command itself: its name, help and version; the commands register with it."""

from typing import Annotated

import typer

import calibrate
from calibrate import console

__all__ = ["JUDGE", "LOOK", "MEASURE", "PLANNER", "app", "main"]

MEASURE = "Measure a build"
JUDGE = "Score, replay, judge"
LOOK = "Look closer"
PLANNER = "The planner side"

HELP = "Measure how far a verifier's scores move, pin how decisions were scored, judge replays."
EPILOG = """Exit status: 0 no fault, 1 a fault, 2 the call or its input must be mended, 3 a guard \
refuses the build, 130 interrupted.

Shell completion: `scorepin --install-completion`, then open a new shell."""

app = typer.Typer(
    name="scorepin",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        console.print_line(f"scorepin {calibrate.__version__}")
        raise typer.Exit
