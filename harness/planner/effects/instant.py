"""An instant of time: ISO 8601 text with an offset, as every record of this package writes it.

A time without an offset is refused: it names another instant on another machine.
"""

from collections.abc import Callable
from datetime import datetime

from harness.errors import InvalidRecordError

__all__ = ["Clock", "instant"]

Clock = Callable[[], str]
"""Returns the time now as ISO 8601 text with an offset; passed in, so that a test can set it."""


def instant(text: str, name: str) -> datetime:
    """Return the instant that `text` names; `name` says in the error which field was wrong."""
    try:
        value = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(f"{name} {text!r} is no ISO 8601 time ({error})") from error
    if value.tzinfo is None:
        raise InvalidRecordError(f"{name} {text!r} has no offset; write UTC as +00:00")
    return value
