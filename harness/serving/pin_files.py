"""How a pin is asked for and answered: two files beside the step log.

``pin.json`` holds the plan and is taken away by the engine when it begins; ``pins/<pin id>.json``
says how the pin ended. Engine and server are two processes, and may not be each other's parent.
"""

from pathlib import Path

import msgspec

from harness.codec import canonical_bytes
from harness.errors import CorruptFileError, InputFileError
from harness.files import read_bytes, write_atomic
from harness.serving.pin import PinOutcome
from harness.serving.pin_plan import PinPlan

__all__ = ["ask_for_pin", "read_outcome", "take_plan", "write_outcome"]

_REQUEST, _OUTCOMES = "pin.json", "pins"


def ask_for_pin(folder: Path, plan: PinPlan) -> None:
    """Ask the engine that logs to `folder` to be pinned at its next step.

    Raises InputFileError when that pin's id has been used.
    """
    if _outcome(folder, plan.pin_id).exists():
        raise InputFileError(f"pin {plan.pin_id!r} has ended; give each pin an id of its own")
    write_atomic(folder / _REQUEST, canonical_bytes(plan), overwrite=True)


def take_plan(folder: Path) -> PinPlan | None:
    """Return the plan that was asked for, if one was, and take the request away.

    Raises CorruptFileError for one that is none; it is taken away too.
    """
    path = folder / _REQUEST
    if not path.exists():
        return None
    data = read_bytes(path)
    path.unlink()
    try:
        return msgspec.json.decode(data, type=PinPlan)
    except msgspec.DecodeError as error:
        raise CorruptFileError(f"{path}: no plan of a pin ({error})") from error


def write_outcome(folder: Path, outcome: PinOutcome) -> None:
    """Say how a pin ended."""
    write_atomic(_outcome(folder, outcome.pin_id), canonical_bytes(outcome), overwrite=True)


def read_outcome(folder: Path, pin_id: str) -> PinOutcome | None:
    """Return how a pin ended; None while it has not, or was never asked for."""
    path = _outcome(folder, pin_id)
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_bytes(path), type=PinOutcome)
    except msgspec.DecodeError as error:
        raise CorruptFileError(f"{path}: no outcome of a pin ({error})") from error


def _outcome(folder: Path, pin_id: str) -> Path:
    return folder / _OUTCOMES / f"{pin_id}.json"
