"""The store that a planner's command opens: it has to be there."""

from pathlib import Path

from harness.errors import InputFileError

__all__ = ["require_store"]

FILE_URL = "sqlite:///"


def require_store(url: str) -> None:
    """Raise InputFileError when `url` names a file that is not there: opening it would make it."""
    if url.startswith(FILE_URL) and not Path(url.removeprefix(FILE_URL)).exists():
        raise InputFileError(f"{url}: there is no such store; check the path")
