"""What a foreign server says of itself; what it does not say is `UNKNOWN`, never guessed.

Asked for are ``/version``, ``/v1/models``, and one answer with its header and fingerprint. None of
it is checked: a proxy may say what it likes.
"""

from typing import Any

from harness.errors import ConfigError, InputFileError
from harness.records.document import Record
from harness.serving.connection import Answer, Connection

__all__ = ["UNKNOWN", "ServerWords", "server_words"]

UNKNOWN = "unknown"


class ServerWords(Record, frozen=True, kw_only=True):
    """A server in its own words."""

    version: str = UNKNOWN
    """Of ``/version``."""
    owner: str = UNKNOWN
    """Who owns the model, as ``/v1/models`` has it: servers put their own name there."""
    max_model_len: int | None = None
    """Longest prompt with what follows it, tokens; None where it is not told."""
    fingerprint: str = UNKNOWN
    """``system_fingerprint`` of an answer: a digest of the server's settings."""
    software: str = UNKNOWN
    """The ``Server`` header."""


async def server_words(connection: Connection, model: str, answer: Answer) -> ServerWords:
    """Ask the server; `answer` is one that it gave.

    Raises ConfigError when it says that it does not serve `model`.
    """
    version = await _told(connection, "/version")
    card = _card(await _told(connection, "/v1/models"), model)
    length = card.get("max_model_len")
    return ServerWords(
        version=_text(version.get("version")),
        owner=_text(card.get("owned_by")),
        max_model_len=length if isinstance(length, int) else None,
        fingerprint=_text(answer.body.get("system_fingerprint")),
        software=_text(answer.software),
    )


async def _told(connection: Connection, path: str) -> dict[str, Any]:
    """Return what is at `path`; nothing where the server has no such page."""
    try:
        found = await connection.get(path)
    except (InputFileError, ValueError):  # refused, or no JSON
        return {}
    return found if isinstance(found, dict) else {}


def _card(models: dict[str, Any], name: str) -> dict[str, Any]:
    listed = models.get("data")
    cards = {card["id"]: card for card in listed or () if isinstance(card, dict) and "id" in card}
    if cards and name not in cards:
        known = ", ".join(cards)
        raise ConfigError(f"engine.served_model: {name!r} is not served there; it has {known}")
    return cards.get(name, {})


def _text(value: object) -> str:
    return value if isinstance(value, str) and value else UNKNOWN
