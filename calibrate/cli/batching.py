"""A batching mode with another number of rows, as an option asks for it."""

from typing import TYPE_CHECKING

from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.records.batching import Batching

__all__ = ["resized"]


def resized(batching: "Batching", max_rows: int | None) -> "Batching":
    """Return `batching` with other rows, itself for None; ConfigError where rows run alone."""
    import msgspec  # noqa: PLC0415

    from harness.records.batching import Solo  # noqa: PLC0415

    if max_rows is None:
        return batching
    if isinstance(batching, Solo):
        raise ConfigError("--max-rows: this arm runs each row alone; choose another with --arm")
    return msgspec.structs.replace(batching, max_rows=max_rows)
