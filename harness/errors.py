"""Every error Scorepin raises: one root, two trees.

``CallerError``: the call was wrong (a config, a path, an argument); mend the call.
``EvidenceError``: the call was right and the evidence is bad (a record, a file, a replay, a build);
the error is the finding. Every message says what was wrong, where, and what to do.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BranchContaminationError",
    "BudgetExceededError",
    "CallerError",
    "CommitRefusedError",
    "ConfigError",
    "CorruptFileError",
    "EvidenceError",
    "GuardRefusalError",
    "IllegalMoveError",
    "InputFileError",
    "InsufficientEvidenceError",
    "InvalidRecordError",
    "InvalidToleranceError",
    "ModelLoadError",
    "ReconstructionMismatchError",
    "ReplayContaminationError",
    "ReplayDivergenceError",
    "ReverificationNeededError",
    "SchemaVersionError",
    "ScorepinError",
    "StaleVerificationError",
    "StoreError",
    "UnsupportedConditionError",
    "VersionConflictError",
    "WorkerError",
    "nearest",
]


class ScorepinError(Exception):
    """Root of every error that Scorepin raises on purpose."""


class CallerError(ScorepinError):
    """The caller erred: an argument, a config or an input file must be mended."""


class BudgetExceededError(CallerError):
    """A branch, or all of them together, would spend more than was allowed; nothing was spent."""


class ConfigError(CallerError):
    """A config, or a name in it, cannot be used."""


class InputFileError(CallerError):
    """A file given by the user is not what it should be; the message has file and line."""


class ModelLoadError(CallerError):
    """A checkpoint is absent, incomplete, or in a format that is not accepted."""


class InvalidToleranceError(CallerError, ValueError):
    """A tolerance is not a finite number >= 0."""


class UnsupportedConditionError(CallerError):
    """This device or library cannot run the condition that was asked for."""


class StoreError(CallerError):
    """The observation store cannot be used: busy, of another plan, or the disk is full."""


class WorkerError(CallerError):
    """A condition's process ended without its results."""


class IllegalMoveError(CallerError):
    """An event came to a state that has no move for it; nothing has changed."""


class EvidenceError(ScorepinError):
    """The evidence is bad; the error is the finding."""


class InvalidRecordError(EvidenceError, ValueError):
    """A record breaks a rule of its format and is never judged."""


class CorruptFileError(EvidenceError):
    """A file was cut, edited by hand, or does not match its digest."""


class SchemaVersionError(EvidenceError):
    """A file has no schema version, or one that this release cannot read."""


class ReconstructionMismatchError(EvidenceError):
    """The replay was parameterised differently: it is no evidence about the commit."""


class ReplayDivergenceError(EvidenceError):
    """Identical parameters, and scores beyond tolerance: the fault."""


class InsufficientEvidenceError(EvidenceError):
    """Too few decisions for the coverage and confidence that were asked for."""


class GuardRefusalError(EvidenceError):
    """Calibration refuses to bless the build; the message names the guard and its evidence."""


class CommitRefusedError(EvidenceError):
    """The commit gate refuses a branch for good; `refusal` is the finding in parts."""

    def __init__(self, message: str, refusal: Any = None) -> None:
        """Carry a `harness.planner.branch.Refusal` beside its words."""
        super().__init__(message)
        self.refusal = refusal


class StaleVerificationError(CommitRefusedError):
    """The branch writes a resource whose version is no longer the one it was verified against."""


class ReverificationNeededError(EvidenceError):
    """Something the branch read has moved: it is held until it is verified again."""


class VersionConflictError(EvidenceError):
    """A conditional write found another version than it was told to replace; it wrote nothing."""


class BranchContaminationError(EvidenceError):
    """A draft depends on a branch that was rolled back."""


class ReplayContaminationError(EvidenceError):
    """A replay would have reached a live gateway; its branch can never be a counterfactual."""


def nearest(name: str, known: "Iterable[str]") -> str:
    """Return advice for an unknown `name`: the nearest known one if any, then all of them."""
    names = sorted(map(str, known))
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names)}"
