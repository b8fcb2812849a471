"""The endpoint backend against a server on a real socket: scores, the gate, errors, the build."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from harness.conditions.flight import EngineStep, Flight, StepSlot
from harness.errors import (
    ConfigError,
    InputFileError,
    InvalidRecordError,
    ScorepinError,
    UnsupportedConditionError,
    WorkerError,
)
from harness.records.engine import Dialect, Endpoint, Transformers
from harness.records.invocation import PrecisionName, condition_id
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    HeadDtype,
    LogLikelihood,
    LogOdds,
    Reward,
    VerifierSpec,
)
from harness.verifiers import open_engine
from harness.verifiers.endpoint import EndpointVerifier
from harness.verifiers.endpoint.options import refuse_ambiguous, refuse_unsupported
from tests.imagined_endpoint import ImaginedServer, imagined_server
from tests.verifiers.cases import TEXTS, a_condition, a_spec

ODDS = LogOdds(yes=(" gets",), no=("'",))
GRADE = ExpectedGrade(grades={" gets": 1.0, "'": 2.0, "(": 5.0})


def an_engine(url: str = "http://127.0.0.1:9", **changes: Any) -> Endpoint:
    urls = {"float32": url, "bfloat16": url}
    plain = {"urls": urls, "served_model": "m", "first_wait_s": 0.01, "gate_wait_s": 0.05}
    return Endpoint(**{**plain, **changes})


def spec_of(url: str, head: Head = ODDS, reasoning_tokens: int = 0, **engine: Any) -> VerifierSpec:
    model = "embedded:reward" if isinstance(head, Reward) else "embedded:lm"
    own = an_engine(url, **engine)
    return a_spec(model, head, engine=own, reasoning_tokens=reasoning_tokens)


@contextmanager
def opened(spec: VerifierSpec, precision: PrecisionName = PrecisionName.FLOAT32) -> Iterator[Any]:
    verifier = open_engine(spec, a_condition(precision))
    try:
        yield verifier
    finally:
        verifier.close()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    from harness.verifiers.checkpoint import find_checkpoint  # noqa: PLC0415
    from harness.verifiers.loading import load_tokenizer  # noqa: PLC0415

    tokenizer = load_tokenizer(find_checkpoint("embedded:lm", None), a_spec("embedded:lm", ODDS))
    found: list[str] = tokenizer.batch_decode([[at] for at in range(len(tokenizer))])
    return found


@pytest.fixture
def server(texts: list[str]) -> Iterator[ImaginedServer]:
    with imagined_server(texts=texts) as running:
        yield running


def scores(spec: VerifierSpec, flight: Flight = Flight()) -> tuple[float, ...]:  # noqa: B008
    with opened(spec) as verifier:
        served = verifier.serve(verifier.encode(TEXTS), flight)
    assert served.steps == ()
    assert served.generated == ()
    found: tuple[float, ...] = served.scores
    return found


@pytest.mark.parametrize(("head", "num_reasoning"), [(ODDS, 0), (ODDS, 3), (GRADE, 0), (GRADE, 2)])
def test_both_dialects_give_the_same_scores(
    server: ImaginedServer, head: Head, num_reasoning: int
) -> None:
    named = scores(spec_of(server.url, head, num_reasoning))
    told = scores(
        spec_of(server.url, head, num_reasoning, dialect=Dialect.OPENAI, top_logprobs=447)
    )
    assert named == told
    assert len(set(named)) == len(TEXTS)
    assert {body["max_tokens"] for body in server.bodies} == {num_reasoning + 1}


def test_the_score_is_read_where_the_reasoning_ends(server: ImaginedServer) -> None:
    read = {n: scores(spec_of(server.url, reasoning_tokens=n)) for n in (0, 1, 2)}
    assert len(set(read.values())) == 3


def test_a_classifiers_chosen_label_is_read(server: ImaginedServer) -> None:
    found = scores(spec_of(server.url, Reward()))
    assert len(set(found)) == len(TEXTS)
    assert all("prompt" not in body for body in server.bodies)


def test_rows_go_as_token_ids_and_no_text_leaves(server: ImaginedServer) -> None:
    with opened(spec_of(server.url)) as verifier:
        rows = verifier.encode(TEXTS)
        verifier.serve(rows, Flight())
    sent = sorted(tuple(body["prompt"]) for body in server.bodies[1:])
    assert sent == sorted(row.token_ids for row in rows)


def test_a_token_that_was_not_told_has_no_score(server: ImaginedServer) -> None:
    spec = spec_of(server.url, dialect=Dialect.OPENAI, top_logprobs=1)
    with pytest.raises(UnsupportedConditionError, match=r"not among the 1 .* raise engine\.top_l"):
        scores(spec)


def test_a_token_whose_text_is_anothers_too_is_refused(texts: list[str]) -> None:
    double = next(text for text in texts if texts.count(text) > 1)
    with pytest.raises(UnsupportedConditionError, match=r"tokens are written .* another token"):
        refuse_ambiguous([" gets", double], texts)
    refuse_ambiguous([" gets", "'"], texts)


def test_an_answer_that_ends_early_has_no_score(server: ImaginedServer) -> None:
    server.overruled = lambda path, number: (
        (200, {"choices": [{"logprobs": {"top_logprobs": [{}]}}]})
        if path == "/v1/completions" and number > 1
        else None
    )
    with pytest.raises(InvalidRecordError, match=r"generated 1 tokens .* after 2 of"):
        scores(spec_of(server.url, reasoning_tokens=2))


def test_what_the_server_could_not_compute_is_not_a_number(server: ImaginedServer) -> None:
    server.sabotage = float("nan")
    found = scores(spec_of(server.url))
    assert [value == value for value in found] == [False] * len(TEXTS)  # noqa: PLR0124 - NaN


BAD_ANSWERS: dict[str, tuple[int, Any, type[ScorepinError], str]] = {
    "refused": (400, {"error": "too long"}, InputFileError, "400.*too long"),
    "down": (503, {}, WorkerError, "after 2 attempts"),
    "no JSON": (200, b"<html>", InvalidRecordError, "is no JSON"),
    "no score": (200, {"choices": []}, InvalidRecordError, "has no score"),
}


@pytest.mark.parametrize("num_pauses", [0, 2])
@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_an_error_and_the_server_goes_on(
    server: ImaginedServer, name: str, num_pauses: int
) -> None:
    status, body, error, message = BAD_ANSWERS[name]
    spec = spec_of(server.url, gate=num_pauses > 0, num_attempts=2)
    with opened(spec) as verifier:
        rows = verifier.encode(TEXTS)
        server.overruled = lambda path, _: (status, body) if path == "/v1/completions" else None
        with pytest.raises(error, match=message):
            verifier.serve(rows, Flight())
        server.overruled = lambda _path, _number: None
        assert len(verifier.serve(rows, Flight()).scores) == len(TEXTS), "left paused"
    assert server.seen.count("/pause?mode=keep") == num_pauses


def test_a_request_that_was_lost_is_sent_again(server: ImaginedServer) -> None:
    expected = scores(spec_of(server.url))
    server.overruled = lambda _path, number: (503, {}) if number % 3 == 1 else None
    assert scores(spec_of(server.url)) == expected


def test_behind_the_gate_a_flight_is_computed_together_in_its_order(
    server: ImaginedServer,
) -> None:
    with opened(spec_of(server.url, gate=True)) as verifier:
        rows = verifier.encode(TEXTS)
        before = len(server.seen)
        gathered = verifier.serve(rows[::-1], Flight()).scores
        seen, largest = server.seen[before:], server.largest
        solo = [verifier.serve([row], Flight()).scores[0] for row in rows]
    prompts = [f"/v1/completions {list(row.token_ids[1:4])}" for row in rows[::-1]]
    assert seen == ["/reset_prefix_cache", "/pause?mode=keep", *prompts, "/resume"]
    assert largest == len(rows)
    assert server.seen.count("/pause?mode=keep") == 1, "a request alone needs no gate"
    assert list(gathered[::-1]) != solo


def test_without_the_gate_nothing_is_paused_or_gathered(server: ImaginedServer) -> None:
    """Negative control of the test above."""
    scores(spec_of(server.url))
    assert server.largest == 1
    assert not [path for path in server.seen if "pause" in path or "resume" in path]


def test_the_resume_is_sent_though_the_pause_was_lost(server: ImaginedServer) -> None:
    with opened(spec_of(server.url, gate=True, num_attempts=2)) as verifier:
        server.overruled = lambda path, _: (500, {}) if path.startswith("/pause") else None
        with pytest.raises(WorkerError, match="after 2 attempts"):
            verifier.serve(verifier.encode(TEXTS), Flight())
    assert server.seen[-1] == "/resume"


def test_what_an_earlier_client_left_paused_is_resumed(server: ImaginedServer) -> None:
    server.answer("/pause?mode=keep", {}, None)
    assert len(scores(spec_of(server.url, gate=True))) == len(TEXTS)


def test_a_server_without_a_gate_is_told(server: ImaginedServer) -> None:
    server.overruled = lambda path, _: (404, {}) if path == "/resume" else None
    with pytest.raises(UnsupportedConditionError, match="VLLM_SERVER_DEV_MODE=1, or set engine"):
        scores(spec_of(server.url, gate=True))


def test_a_server_that_works_for_others_is_told(server: ImaginedServer) -> None:
    server.overruled = lambda path, number: (
        (200, {"success": number > 3}) if path == "/reset_prefix_cache" else None
    )
    assert len(scores(spec_of(server.url, gate=True))) == len(TEXTS)
    server.overruled = lambda path, _: (
        (200, {"success": False}) if path == "/reset_prefix_cache" else None
    )
    with pytest.raises(WorkerError, match="computes for somebody else"):
        scores(spec_of(server.url, gate=True))


def test_the_build_has_what_was_said_and_no_more(server: ImaginedServer) -> None:
    spec = spec_of(server.url)
    with opened(spec) as verifier, opened(spec, PrecisionName.BFLOAT16) as narrow:
        build, condition = verifier.facts(), verifier.resolved()
        assert narrow.facts().build_id == build.build_id
        conditions = [condition, narrow.resolved()]
    assert build.engine == "endpoint: imagined, version 1.2"
    assert build.libraries == {"server": "imagined-http"}
    assert build.weights_digest.startswith("declared sha256:")
    assert {build.device, build.device_name, build.device_capability} == {"unknown"}
    assert build.parallel_layout == "unknown"
    assert condition.precision_mode.resolved == {"declared_dtype": "float32"}
    assert condition.reduction_order.resolved == {
        "max_model_len": 256,
        "system_fingerprint": "imagined-float32",
    }
    ids = {
        condition_id(build.build_id, one.precision_mode, one.reduction_order) for one in conditions
    }
    assert len(ids) == 2


def test_a_server_that_says_nothing_is_unknown() -> None:
    with imagined_server(pages={}) as silent:
        spec = spec_of(silent.url)
        with opened(replace(spec, max_tokens=64)) as verifier:
            assert verifier.facts().engine == "endpoint: unknown, version unknown"
            assert verifier.resolved().reduction_order.resolved["max_model_len"] is None
        with pytest.raises(ConfigError, match=r"verifier\.max_tokens: the server does not tell"):
            open_engine(spec, a_condition())


def test_a_row_that_is_too_long_for_the_server_is_named(server: ImaginedServer) -> None:
    text = replace(TEXTS[0], context="2" * 300, name="d7/b1")
    with opened(spec_of(server.url)) as verifier, pytest.raises(InputFileError, match="d7/b1"):
        verifier.encode([text])


def test_another_model_than_the_served_one_is_told(server: ImaginedServer) -> None:
    with pytest.raises(ConfigError, match="'other' is not served there; it has m"):
        scores(spec_of(server.url, served_model="other"))


def test_the_key_is_sent_and_not_recorded(
    server: ImaginedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(server.url, api_key_env="EXAMPLE_KEY")
    monkeypatch.delenv("EXAMPLE_KEY", raising=False)
    with pytest.raises(ConfigError, match="EXAMPLE_KEY is not set"):
        scores(spec)
    monkeypatch.setenv("EXAMPLE_KEY", "s3cret")
    with opened(spec) as verifier:
        recorded = msgspec.json.encode([verifier.facts(), verifier.resolved()]).decode()
    assert server.keys == {"Bearer s3cret"}
    assert "s3cret" not in recorded


def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(WorkerError, match="is it up"):
        scores(spec_of("http://127.0.0.1:9", num_attempts=1))


STEP = EngineStep(slots=(StepSlot(request=0, num_tokens=3, num_computed_tokens=0),))
FLIGHTS: dict[str, Flight] = {
    "arrivals": Flight(arrivals=(0, 1, 2, 3, 4)),
    "token_budget": Flight(token_budget=8),
    "is_warm": Flight(is_warm=True),
    "extra_tokens": Flight(extra_tokens=1),
    "preempt_before": Flight(preempt_before=1),
    "pinned": Flight(pinned=(STEP,)),
}


@pytest.mark.parametrize("name", FLIGHTS)
def test_what_a_foreign_server_cannot_be_asked_is_refused(
    server: ImaginedServer, name: str
) -> None:
    assert set(FLIGHTS) == set(Flight.__struct_fields__)
    with pytest.raises(UnsupportedConditionError, match=f"{name}: cannot be asked"):
        scores(spec_of(server.url), FLIGHTS[name])


def test_a_flight_larger_than_the_connections_is_refused(server: ImaginedServer) -> None:
    with pytest.raises(UnsupportedConditionError, match="5 requests and 4 connections"):
        scores(spec_of(server.url, num_connections=4))


UNSUPPORTED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no server in that precision": ({}, {"precision": PrecisionName.FLOAT16}, "no server for"),
    "an order of its own": ({}, {"name": "deterministic"}, "the server's own"),
    "threads": ({}, {"num_threads": 1}, "the server's own"),
    "likelihood": ({"head": LogLikelihood()}, {}, "head LogLikelihood"),
    "a head in float32": ({"head": replace(ODDS, dtype=HeadDtype.FLOAT32)}, {}, "write model"),
    "a classifier in plain words": (
        {"head": Reward(), "engine": an_engine(dialect=Dialect.OPENAI)},
        {},
        "take dialect vllm",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_done_is_refused(name: str) -> None:
    changes, order, message = UNSUPPORTED[name]
    spec = a_spec("embedded:lm", **{"head": ODDS, "engine": an_engine()} | changes)
    with pytest.raises(UnsupportedConditionError, match=message):
        refuse_unsupported(spec, a_condition(**order))


def test_overrides_are_refused_and_other_engines_are_left_alone() -> None:
    spec = a_spec("embedded:lm", ODDS, engine=an_engine())
    overridden = replace(a_condition(), precision_overrides={"allow_tf32": True})
    with pytest.raises(UnsupportedConditionError, match="precision_overrides"):
        refuse_unsupported(spec, overridden)
    refuse_unsupported(spec, a_condition())
    refuse_unsupported(replace(spec, engine=Transformers()), overridden)
    with pytest.raises(UnsupportedConditionError, match="endpoint is needed"):
        EndpointVerifier(replace(spec, engine=Transformers()), a_condition())


def test_an_unknown_precision_is_told_with_the_nearest() -> None:
    engine = an_engine(urls={"float23": "http://h"})
    with pytest.raises(ConfigError, match="float32"):
        refuse_unsupported(a_spec("embedded:lm", ODDS, engine=engine), a_condition())


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "no server": ({"urls": {}}, "name the server"),
    "no address": ({"urls": {"float32": "host:8000"}}, "no http address"),
    "another scheme": ({"urls": {"float32": "ftp://host"}}, "no http address"),
    "a password": ({"urls": {"float32": "http://me:pw@host"}}, "use api_key_env"),
    "no connection": ({"num_connections": 0}, "num_connections must be at least 1"),
    "no attempt": ({"num_attempts": 0}, "num_attempts must be at least 1"),
    "no token": ({"top_logprobs": 0}, "top_logprobs must be at least 1"),
    "no time": ({"timeout_s": float("nan")}, "timeout_s is above 0"),
    "time backwards": ({"gate_wait_s": -1.0}, "gate_wait_s not below"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_an_endpoint_that_cannot_be_is_refused(name: str) -> None:
    changes, message = BAD_RECORDS[name]
    with pytest.raises(ValueError, match=message):
        an_engine(**changes)
