"""What every call does: tell its errors, end with the right status, print JSON.

Results go to standard output, progress and errors to standard error. Exit status: 0 no fault, 1 a
fault, 2 the call or its input must be mended, 3 a guard refuses the build, 130 interrupted.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from calibrate import console
from harness.errors import (
    GuardRefusalError,
    ReconstructionMismatchError,
    ReplayDivergenceError,
    ScorepinError,
)

if TYPE_CHECKING:
    from calibrate.config import CalibrationConfig

__all__ = ["FAULT", "USAGE", "errors_told", "now", "print_json", "resume", "run_folder"]

FAULT, USAGE, GUARD, INTERRUPTED = 1, 2, 3, 130
EXTRA_MODULES = frozenset(
    {
        "jinja2",
        "matplotlib",
        "numpy",
        "safetensors",
        "scipy",
        "tokenizers",
        "torch",
        "transformers",
        "yaml",
    }
)


@contextmanager
def errors_told(interrupted: str = "nothing was written; run it again") -> Iterator[None]:
    """Turn errors into a message on standard error and an exit status."""
    try:
        yield
    except ScorepinError as error:
        _end(f"[red]error[/] {type(error).__name__}:", str(error), _status(error))
    except ModuleNotFoundError as error:
        root = (error.name or "").partition(".")[0]
        if root not in EXTRA_MODULES:
            raise
        advice = f"{root} is not installed: pip install 'scorepin[calibrate]'"
        _end("[red]error[/]:", advice, USAGE)
    except OSError as error:
        advice = "check that there is room, and that it may be written"
        _end("[red]error[/]:", f"{error.filename or 'output'}: {error.strerror}; {advice}", USAGE)
    except KeyboardInterrupt:
        _end("[yellow]interrupted[/]:", interrupted, INTERRUPTED)


def resume() -> str:
    """Say how to go on with a run, with the options it was begun with."""
    command = shlex.join(["scorepin", *sys.argv[1:]])
    return f"all that was scored is stored; go on with: {command}"


def run_folder(run: Path | None, config: "CalibrationConfig") -> Path:
    """Return the folder of a run: the one that was asked for, or runs/NAME."""
    return run or Path("runs") / config.name


def now() -> datetime:
    """Return the time, or the one that SOURCE_DATE_EPOCH fixes for reproducible files."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)


def print_json(value: Any) -> None:
    """Print JSON for a machine to read."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


def _end(head: str, message: str, status: int) -> NoReturn:
    console.errors.print(head, end=" ")
    console.errors.print(message, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def _status(error: ScorepinError) -> int:
    if isinstance(error, GuardRefusalError):
        return GUARD
    if isinstance(error, ReplayDivergenceError | ReconstructionMismatchError):
        return FAULT
    return USAGE
