"""Rows as requests, and the scores in the answers."""

import math
from typing import Any

import pytest

from harness.errors import InvalidRecordError, UnsupportedConditionError
from harness.records.engine import Dialect
from harness.records.verifier import LogLikelihood, LogOdds, Message, Prompt, Reward
from harness.serving.row_request import (
    Reading,
    row_request,
    row_score,
    row_text,
    row_values,
    words_of,
)

HEAD = LogOdds(yes=("Y", "y"), no=("N",))


def an_answer(**logprobs: float | None) -> dict[str, Any]:
    top = {f"token_id:{name.removeprefix('t')}": value for name, value in logprobs.items()}
    return {"choices": [{"logprobs": {"top_logprobs": [top]}}]}


def test_log_odds_add_the_probabilities_of_each_side() -> None:
    answer = an_answer(t5=math.log(0.2), t6=math.log(0.1), t7=math.log(0.6), t99=math.log(0.1))
    assert row_score(HEAD, answer, (5, 6, 7)) == pytest.approx(math.log(0.3 / 0.6))


def test_one_token_a_side_is_the_difference_to_the_bit() -> None:
    answer = an_answer(t5=-1.4073212146759033, t7=-0.2851123809814453)
    head = LogOdds(yes=("Y",), no=("N",))
    assert row_score(head, answer, (5, 7)) == -1.4073212146759033 + 0.2851123809814453


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf")])
def test_what_the_server_could_not_compute_is_not_a_number(value: float | None) -> None:
    assert math.isnan(row_score(HEAD, an_answer(t5=value, t6=-1.0, t7=-1.0), (5, 6, 7)))


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, an_answer(t5=-1.0), {"choices": [{"logprobs": None}]}]
)
def test_an_answer_without_a_score_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidRecordError, match="has no score"):
        row_score(HEAD, answer, (5, 6, 7))


def test_a_classifiers_logit_is_read() -> None:
    answer = {"data": [{"probs": [0.5, -3.25]}]}
    assert row_score(Reward(), answer, ()) == 0.5
    assert row_score(Reward(label=1), answer, ()) == -3.25


def test_requests_name_every_token_and_switch_no_activation_on() -> None:
    request = row_request(HEAD, "text", (5, 6, 7), add_special_tokens=False)
    assert request.path == "/v1/completions"
    assert request.body["logprob_token_ids"] == [5, 6, 7]
    assert request.body["logprobs"] == 3
    assert request.body["add_special_tokens"] is False
    request = row_request(Reward(), [1, 2], (), add_special_tokens=True)
    assert request.path == "/classify"
    assert request.body == {"input": [1, 2], "use_activation": False}


def test_words_come_yes_before_no() -> None:
    assert words_of(HEAD) == ("Y", "y", "N")
    assert words_of(Reward()) == ()
    with pytest.raises(UnsupportedConditionError, match="LogLikelihood"):
        words_of(LogLikelihood())


def test_a_template_is_filled_verbatim_and_a_chat_is_refused() -> None:
    prompt = Prompt(template="<{context}|{branch}>")
    assert row_text(prompt, "{branch}", "{context}") == "<{branch}|{context}>"
    chat = Prompt(chat=(Message(role="user", content="{branch}"),))
    with pytest.raises(UnsupportedConditionError, match="write the prompt as a template"):
        row_text(chat, "c", "b")


OPENAI = Reading(dialect=Dialect.OPENAI, num_top=5, texts=("Y", "y", "N"))


def test_elsewhere_the_most_likely_tokens_are_asked_for_and_read_by_their_text() -> None:
    request = row_request(HEAD, [1, 2], (5, 6, 7), reading=OPENAI)
    assert request.body == {"prompt": [1, 2], "max_tokens": 1, "temperature": 0, "logprobs": 5}
    top = {"Y": -1.0, "y": -2.0, "x": -0.5, "N": -3.0}
    answer = {"choices": [{"logprobs": {"top_logprobs": [top]}}]}
    assert row_values(HEAD, answer, (5, 6, 7), OPENAI) == [-1.0, -2.0, -3.0]


def test_a_token_that_is_not_told_is_never_guessed() -> None:
    answer = {"choices": [{"logprobs": {"top_logprobs": [{"Y": -1.0, "N": -3.0}]}}]}
    with pytest.raises(UnsupportedConditionError, match="'y' is not among the 2 most likely"):
        row_values(HEAD, answer, (5, 6, 7), OPENAI)


@pytest.mark.parametrize("dialect", Dialect)
def test_after_reasoning_the_next_token_is_read(dialect: Dialect) -> None:
    reading = Reading(dialect=dialect, num_reasoning=1, texts=("token_id:5", "token_id:7"))
    head = LogOdds(yes=("Y",), no=("N",))
    body = row_request(head, [1], (5, 7), reading=reading).body
    assert body["max_tokens"] == 2
    assert ("ignore_eos" in body) == (dialect is Dialect.VLLM)
    first, second = an_answer(t5=-9.0, t7=-9.0), an_answer(t5=-1.0, t7=-2.0)
    places = [one["choices"][0]["logprobs"]["top_logprobs"][0] for one in (first, second)]
    answer = {"choices": [{"logprobs": {"top_logprobs": places}}]}
    assert row_values(head, answer, (5, 7), reading) == [-1.0, -2.0]
    with pytest.raises(InvalidRecordError, match=r"generated 1 tokens .* after 1 of reasoning"):
        row_values(head, first, (5, 7), reading)


def test_a_classifier_has_no_plain_dialect() -> None:
    with pytest.raises(UnsupportedConditionError, match="take dialect vllm"):
        row_request(Reward(), [1], (), reading=OPENAI)
