"""Where a ledger's events are kept: the contract, and the journal that keeps nothing.

The contract of every journal:

* events are numbered from 1 without a gap, and never change;
* `write` runs its work with a log that nobody else appends to until the work's events are kept; it
  may run the work again from its beginning, so the work must be repeatable;
* when `write` returns, what was appended is kept; when it raises, it may or may not be.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from harness.planner.ledger.events import Event

__all__ = ["Journal", "Log", "Unwritten"]

T = TypeVar("T")


class Log(Protocol):
    """The events, inside one transaction."""

    def after(self, number: int) -> Sequence[Event]:
        """Return the events after event `number`, in order."""

    def append(self, number: int, event: Event) -> None:
        """Add the event that gets `number`, the next one."""


class Journal(Protocol):
    """A place for events; see the module's contract."""

    def read(self, after: int) -> Sequence[Event]:
        """Return the events after event `after`, in order."""

    def write(self, work: Callable[[Log], T]) -> T:
        """Run `work` in one transaction and return its result."""

    def close(self) -> None:
        """Let go of what the journal holds open."""


class Unwritten:
    """Keeps nothing: for a ledger that lives and ends with its process."""

    def read(self, after: int) -> Sequence[Event]:  # noqa: ARG002 - the protocol's
        """Return nothing: nobody else writes."""
        return ()

    def write(self, work: Callable[[Log], T]) -> T:
        """Run `work`."""
        return work(self)

    def close(self) -> None:
        """Do nothing."""

    def after(self, number: int) -> Sequence[Event]:  # noqa: ARG002 - the protocol's
        """Return nothing: nobody else writes."""
        return ()

    def append(self, number: int, event: Event) -> None:
        """Forget the event."""
