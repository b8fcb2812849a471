"""One row as a request to an OpenAI-compatible server, and the score in its answer.

Pure: bodies in, bodies out. What is read are the log-probabilities of a head's tokens where a token
is generated, the first or the one after some reasoning, or a classifier's raw logit. The prompt
goes as plain text and the server tokenizes it, or as token ids.

A `Dialect` says how: vLLM names the head's tokens; elsewhere only the most likely tokens are told,
and a token that is not among them has no value: it is never guessed.

Log-odds are those of the model's logits: the softmax's denominator cancels. The server sends each
log-probability as the shortest decimal that is its float32, so no bit is lost on the way.
"""

import math
from collections.abc import Sequence
from typing import Any

from harness.errors import InvalidRecordError, UnsupportedConditionError
from harness.records.document import Record
from harness.records.engine import Dialect
from harness.records.verifier import Head, LogOdds, Prompt, Reward

__all__ = [
    "Reading",
    "RowRequest",
    "row_request",
    "row_score",
    "row_text",
    "row_values",
    "words_of",
]


class Reading(Record, frozen=True, kw_only=True):
    """Where and how a head's values are read off an answer; by default at the first token."""

    dialect: Dialect = Dialect.VLLM
    """How log-probabilities are asked for."""
    num_reasoning: int = 0
    """Tokens generated before the one whose log-probabilities are read."""
    num_top: int = 20
    """For `openai`: how many tokens are asked for."""
    texts: tuple[str, ...] = ()
    """For `openai`: the text of each of the head's tokens, which is how the server names it."""


class RowRequest(Record, frozen=True, kw_only=True):
    """What is posted."""

    path: str
    """Path on the server."""
    body: dict[str, Any]
    """JSON body."""


def row_text(prompt: Prompt, context: str, branch: str) -> str:
    """Return the row's text; raises UnsupportedConditionError for a chat prompt."""
    if prompt.template is None:
        raise UnsupportedConditionError(
            "prompt.chat: a server renders chats in its own way; write the prompt as a template"
        )
    before, _, after = prompt.template.partition("{branch}")
    before, after = (part.replace("{context}", context) for part in (before, after))
    return before + branch + after


def words_of(head: Head) -> tuple[str, ...]:
    """Return the tokens whose ids `row_request` needs, yes before no; none for a classifier.

    Raises UnsupportedConditionError for a head that cannot be read off a server.
    """
    if isinstance(head, LogOdds):
        return (*head.yes, *head.no)
    if isinstance(head, Reward):
        return ()
    raise UnsupportedConditionError(
        f"head {type(head).__name__}: log_odds and reward can be read off a server; for others use"
        " the transformers backend"
    )


def row_request(
    head: Head,
    prompt: str | Sequence[int],
    token_ids: Sequence[int],
    *,
    add_special_tokens: bool = False,
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> RowRequest:
    """Return the request that scores one row; `token_ids` are those of the head.

    Raises UnsupportedConditionError for a classifier in a dialect that has none.
    """
    special = _special(prompt, add_special_tokens)
    if isinstance(head, Reward):
        if reading.dialect is not Dialect.VLLM:
            raise UnsupportedConditionError("head reward: /classify is vLLM's; take dialect vllm")
        body: dict[str, Any] = {"input": prompt, "use_activation": False}
        return RowRequest(path="/classify", body=body | special)
    body = {"prompt": prompt, "max_tokens": reading.num_reasoning + 1, "temperature": 0}
    return RowRequest(path="/v1/completions", body=body | _wanted(token_ids, reading) | special)


def row_values(
    head: Head,
    answer: Any,
    token_ids: Sequence[int],
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> list[float]:
    """Return what the head takes from a server's answer; NaN for what could not be computed.

    Raises InvalidRecordError for an answer without it, UnsupportedConditionError when a token of
    the head is not among the most likely ones.
    """
    try:
        if isinstance(head, Reward):
            return [_number(answer["data"][0]["probs"][head.label or 0])]
        places = answer["choices"][0]["logprobs"]["top_logprobs"]
        if len(places) <= reading.num_reasoning:
            raise InvalidRecordError(_ended_early(len(places), reading.num_reasoning))
        top = places[reading.num_reasoning]
        if reading.dialect is Dialect.OPENAI:
            _require_told(top, reading)
            return [_number(top[text]) for text in reading.texts]
        return [_number(top[f"token_id:{token_id}"]) for token_id in token_ids]
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidRecordError(f"the server's answer has no score: {error!r}") from error


def row_score(
    head: Head,
    answer: Any,
    token_ids: Sequence[int],
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> float:
    """Return the score in a server's answer; NaN for one that the server could not compute.

    Raises InvalidRecordError for an answer that holds none.
    """
    values = row_values(head, answer, token_ids, reading)
    if isinstance(head, Reward):
        return values[0]
    num_yes = len(head.yes) if isinstance(head, LogOdds) else 0
    return _log_sum_exp(values[:num_yes]) - _log_sum_exp(values[num_yes:])


def _wanted(token_ids: Sequence[int], reading: Reading) -> dict[str, Any]:
    if reading.dialect is Dialect.OPENAI:
        return {"logprobs": reading.num_top}
    named = {
        "logprobs": len(token_ids),
        "logprob_token_ids": list(token_ids),
        "return_tokens_as_token_ids": True,
    }
    return named | ({"ignore_eos": True} if reading.num_reasoning else {})


def _require_told(top: dict[str, Any], reading: Reading) -> None:
    missing = [text for text in reading.texts if text not in top]
    if missing:
        raise UnsupportedConditionError(
            f"head: {missing[0]!r} is not among the {len(top)} most likely tokens that were told, "
            "so there is no score; raise engine.top_logprobs (and the server's own limit), take "
            "dialect vllm where the server has it, or a prompt answered with the head's tokens"
        )


def _ended_early(found: int, num_reasoning: int) -> str:
    return (
        f"the server generated {found} tokens and the score is read after {num_reasoning} of "
        "reasoning; lower verifier.reasoning_tokens, or take dialect vllm, which reads on"
    )


def _special(prompt: str | Sequence[int], add: bool) -> dict[str, bool]:  # noqa: FBT001 - a value
    return {"add_special_tokens": add} if isinstance(prompt, str) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _log_sum_exp(values: Sequence[float]) -> float:
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return math.fsum(values) if len(values) == 1 else math.nan
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))
