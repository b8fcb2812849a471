"""One row as a request to an OpenAI-compatible server, and the score in its answer.

Pure: bodies in, bodies out. Two heads can be read off a stock vLLM: log-odds of two token sets, off
one generated token's log-probabilities, and a classifier's raw logit. The prompt goes as plain text
and the server tokenizes it, or, for a stand-in, as token ids.

Log-odds are those of the model's logits: the softmax's denominator cancels. The server sends each
log-probability as the shortest decimal that is its float32, so no bit is lost on the way.
"""

import math
from collections.abc import Sequence
from typing import Any

from harness.errors import InvalidRecordError, UnsupportedConditionError
from harness.records.document import Record
from harness.records.verifier import Head, LogOdds, Prompt, Reward

__all__ = ["RowRequest", "row_request", "row_score", "row_text", "words_of"]


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
    head: Head, prompt: str | Sequence[int], token_ids: Sequence[int], *, add_special_tokens: bool
) -> RowRequest:
    """Return the request that scores one row; `token_ids` are those of `words_of(head)`."""
    if isinstance(head, Reward):
        body: dict[str, Any] = {"input": prompt, "use_activation": False}
        return RowRequest(path="/classify", body=body | _special(prompt, add_special_tokens))
    body = {
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": len(token_ids),
        "logprob_token_ids": list(token_ids),
        "return_tokens_as_token_ids": True,
    }
    return RowRequest(path="/v1/completions", body=body | _special(prompt, add_special_tokens))


def row_score(head: Head, answer: Any, token_ids: Sequence[int]) -> float:
    """Return the score in a server's answer; NaN for one that the server could not compute.

    Raises InvalidRecordError for an answer that holds none.
    """
    try:
        if isinstance(head, Reward):
            return _number(answer["data"][0]["probs"][head.label or 0])
        top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        values = [_number(top[f"token_id:{token_id}"]) for token_id in token_ids]
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidRecordError(f"the server's answer has no score: {error!r}") from error
    num_yes = len(head.yes) if isinstance(head, LogOdds) else 0
    return _log_sum_exp(values[:num_yes]) - _log_sum_exp(values[num_yes:])


def _special(prompt: str | Sequence[int], add: bool) -> dict[str, bool]:  # noqa: FBT001 - a value
    return {"add_special_tokens": add} if isinstance(prompt, str) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _log_sum_exp(values: Sequence[float]) -> float:
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return math.fsum(values) if len(values) == 1 else math.nan
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))
