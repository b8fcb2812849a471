"""A switch: one named numeric setting, with what it takes to read, check, set and restore it.

What it does not know: whether a variable in ``os.environ`` already stood there when the libraries
started. Where that can be seen (the thread count), a library switch beside it shows it.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from harness.errors import ConfigError, UnsupportedConditionError
from harness.records.document import Record
from harness.records.switches import SwitchValue
from harness.records.verifier import Device

__all__ = ["Access", "Owner", "Phase", "Switch"]


class Phase(StrEnum):
    """When a switch counts."""

    ENVIRONMENT = "environment"
    """An environment variable: it must be set before the process starts."""
    LIBRARY = "library"
    """A call into torch: after import, before the model runs."""


class Owner(StrEnum):
    """Which half of a condition a switch belongs to."""

    PRECISION = "precision"
    """It changes the width of a product or of an accumulator."""
    ORDER = "order"
    """It changes which kernel adds, or in which order."""


class Access(Record, frozen=True, kw_only=True):
    """How a switch is reached."""

    get: Callable[[], SwitchValue]
    """Reads it; AttributeError where this torch has no such switch, None for an unset variable."""
    set: Callable[[Any], None] | None
    """Writes it; None for an environment variable."""
    save: Callable[[], Callable[[], None]] | None = None
    """Returns what puts back all that `set` writes over; None: read now, write later."""


class Switch(Record, frozen=True, kw_only=True):
    """One switch."""

    name: str
    """Its name in configs and records: the variable's, or torch's without ``torch.backends``."""
    reason: str
    """Why it can change a bit, with any rule about order."""
    access: Access
    """How it is reached."""
    owner: Owner
    """Which half of a condition it belongs to."""
    devices: frozenset[Device]
    """Where it has an effect, and is recorded."""
    choices: tuple[bool | str, ...] | None = None
    """Values it takes; None for any text (environment) or any count (library)."""

    @property
    def phase(self) -> Phase:
        """When it counts."""
        return Phase.ENVIRONMENT if self.access.set is None else Phase.LIBRARY

    def check(self, value: SwitchValue) -> None:
        """Refuse, with `ConfigError`, a value that it cannot take."""
        if self.phase is Phase.ENVIRONMENT:
            fits, wanted = value is None or isinstance(value, str), "text, or null for unset"
        elif self.choices is None:
            fits, wanted = type(value) is int and value >= 1, "a count of at least 1"
        else:
            fits = any(value == choice and type(value) is type(choice) for choice in self.choices)
            wanted = f"one of {', '.join(map(repr, self.choices))}"
        if not fits:
            raise ConfigError(f"switch {self.name} cannot be {value!r}: it takes {wanted}")

    def read(self) -> SwitchValue:
        """Return the value; None: absent from this torch, or a variable that is not set."""
        try:
            return self.access.get()
        except AttributeError:
            return None
        except RuntimeError as error:
            raise self._mixed(error) from error

    def write(self, value: SwitchValue) -> None:
        """Set the value, or verify it where it can no longer be set."""
        self.check(value)
        if self.access.set is None:
            self._verify(value)
            return
        if self.read() is None:
            raise UnsupportedConditionError(f"switch {self.name}: absent from this torch version")
        try:
            self.access.set(value)
        except RuntimeError as error:
            raise UnsupportedConditionError(
                f"switch {self.name}: this build cannot set {value!r}: {_first_line(error)}"
            ) from error

    def save(self) -> Callable[[], None]:
        """Return a call that puts the present state back."""
        if self.access.save is not None:
            try:
                return self.access.save()
            except RuntimeError as error:
                raise self._mixed(error) from error
        setter, value = self.access.set, self.read()
        if setter is None or value is None:
            return _nothing
        return lambda: setter(value)

    def _mixed(self, error: Exception) -> UnsupportedConditionError:
        return UnsupportedConditionError(
            f"switch {self.name}: torch cannot tell its value ({_first_line(error)}); set "
            "float32_matmul_precision instead of the narrower switches"
        )

    def _verify(self, value: SwitchValue) -> None:
        found = self.read()
        if found != value:
            raise UnsupportedConditionError(
                f"environment variable {self.name} must be {_shown(value)} and is {_shown(found)}: "
                "it must be set before start; run in a fresh process"
            )


def _shown(value: SwitchValue) -> str:
    return "unset" if value is None else repr(value)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _nothing() -> None:
    """An environment variable or an absent switch leaves nothing to put back."""
