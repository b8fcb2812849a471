"""What every call of a planner's command does: tell its errors, open only a store that is there.

Results go to standard output, errors to standard error; a call that must be mended ends with 2.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from harness.errors import InputFileError, ScorepinError

__all__ = ["errors_told", "require_store"]

USAGE = 2
FILE_URL = "sqlite:///"


@contextmanager
def errors_told() -> Iterator[None]:
    """Turn an error of ours into a message and an exit status."""
    try:
        yield
    except ScorepinError as error:
        typer.echo(f"error {type(error).__name__}: {error}", err=True)
        raise typer.Exit(USAGE) from error


def require_store(url: str) -> None:
    """Raise InputFileError when `url` names a file that is not there: opening it would make it."""
    if url.startswith(FILE_URL) and not Path(url.removeprefix(FILE_URL)).exists():
        raise InputFileError(f"{url}: there is no such store; check the path")
