"""The tokens that a head names: each must be exactly one entry of the vocabulary, once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.records.verifier import ExpectedGrade, LogOdds, ProcessReward

__all__ = ["TokenSets", "token_grades", "token_id", "token_sets"]


class TokenSets(NamedTuple):
    """Token ids that mean yes, and those that mean no."""

    yes: list[int]
    """Accepted, in the config's order."""
    no: list[int]
    """Rejected, in the config's order."""


def token_sets(head: LogOdds | ProcessReward, tokenizer: Any) -> TokenSets:
    """Return the ids of a head's two token sets; raise ConfigError when a token stands twice."""
    sets = TokenSets(
        yes=[token_id(token, tokenizer, "yes") for token in head.yes],
        no=[token_id(token, tokenizer, "no") for token in head.no],
    )
    _refuse_repeated([*sets.yes, *sets.no], tokenizer, "head.yes and head.no")
    return sets


def token_grades(head: ExpectedGrade, tokenizer: Any) -> dict[int, float]:
    """Return token id -> grade; raise ConfigError when a token stands twice."""
    ids = [token_id(token, tokenizer, "grades") for token in head.grades]
    _refuse_repeated(ids, tokenizer, "head.grades")
    return dict(zip(ids, head.grades.values(), strict=True))


def token_id(token: str, tokenizer: Any, field: str) -> int:
    """Return the id of `token`; raise ConfigError unless it is one known token."""
    ids = tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1:
        pieces = tokenizer.convert_ids_to_tokens(ids)
        advice = "use one token (mind a leading space)"
        raise ConfigError(f"head.{field}: {token!r} is {len(ids)} tokens {pieces}; {advice}")
    if ids[0] == tokenizer.unk_token_id and token != tokenizer.unk_token:
        raise ConfigError(f"head.{field}: {token!r} is not in the vocabulary of this tokenizer")
    return int(ids[0])


def _refuse_repeated(ids: Sequence[int], tokenizer: Any, fields: str) -> None:
    repeated = sorted({found for found in ids if ids.count(found) > 1})
    if repeated:
        token = tokenizer.convert_ids_to_tokens(repeated)[0]
        raise ConfigError(f"{fields}: the token {token!r} stands there twice; each counts once")
