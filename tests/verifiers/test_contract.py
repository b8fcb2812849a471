"""The contract of `harness.verifiers.protocol`, against every backend."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from harness.conditions.condition import resolved_switches
from harness.errors import InputFileError
from harness.records.batching import PaddingSide
from harness.records.verifier import (
    Device,
    ExpectedGrade,
    Head,
    LogLikelihood,
    LogOdds,
    Overflow,
    ProcessReward,
    Reduction,
    Reward,
    StepReduction,
    StepSource,
    VerifierSpec,
)
from harness.verifiers import RowText, Verifier, open_verifier
from tests.verifiers.cases import (
    BERT,
    LLAMA,
    LM,
    QWEN2,
    SEQUENCE,
    TEXTS,
    TOKEN,
    Build,
    a_condition,
    a_spec,
    batched,
    longest,
    solo,
)

STEPS = ProcessReward(
    source=StepSource.TOKEN_CLASSIFICATION,
    separator="\n",
    reduce=StepReduction.MIN,
    include_last_token=True,
)
BACKENDS = (
    "fake:exact",
    "fake:rounding",
    "fake:coupled",
    "embedded:reward",
    "embedded:lm",
    "qwen2-reward",
    "qwen2-steps",
    "llama-log-odds",
    "llama-grade",
    "bert-reward",
    "bert-steps",
)


def spec_of(backend: str, build: Build) -> VerifierSpec:
    if backend.startswith("fake:") or backend == "embedded:reward":
        return a_spec(backend, Reward())
    heads: dict[str, tuple[Any, Head]] = {
        "embedded:lm": ("embedded:lm", LogLikelihood(reduce=Reduction.SUM)),
        "qwen2-reward": ((QWEN2, SEQUENCE, 3), Reward(label=2)),
        "qwen2-steps": ((QWEN2, TOKEN, 2), STEPS),
        "llama-log-odds": ((LLAMA, LM), LogOdds(yes=("1", "2"), no=("0",))),
        "llama-grade": ((LLAMA, LM), ExpectedGrade(grades={"1": 1.0, "5": 5.0})),
        "bert-reward": ((BERT, SEQUENCE), Reward()),
        "bert-steps": ((BERT, TOKEN), STEPS),
    }
    model, head = heads[backend]
    return a_spec(model if isinstance(model, str) else build(*model), head)


@pytest.fixture(scope="module", params=BACKENDS)
def spec(request: pytest.FixtureRequest, build: Build) -> VerifierSpec:
    return spec_of(request.param, build)


@pytest.fixture(scope="module")
def verifier(spec: VerifierSpec) -> Iterator[Verifier]:
    opened = open_verifier(spec, a_condition())
    yield opened
    opened.close()


def test_encoding_is_pure(verifier: Verifier) -> None:
    rows = verifier.encode(TEXTS)
    assert verifier.encode(TEXTS) == rows
    assert [verifier.encode([text])[0] for text in TEXTS] == rows
    assert len({row.content_digest for row in rows}) == len(rows)
    assert verifier.encode([]) == []


def test_there_is_one_score_a_row_in_the_order_of_the_rows(verifier: Verifier) -> None:
    rows = verifier.encode(TEXTS)
    alone = solo(verifier, rows)
    assert len(set(alone)) == len(rows)
    together = batched(verifier, rows, PaddingSide.RIGHT)
    assert len(together) == len(rows)
    assert all(isinstance(score, float) for score in together)
    nearest = [min(alone, key=lambda score: abs(score - found)) for found in together]
    assert nearest == alone


def test_the_same_row_twice_is_scored_twice(verifier: Verifier) -> None:
    row = verifier.encode(TEXTS[:1])[0]
    assert len(verifier.score([row, row], len(row.token_ids), PaddingSide.RIGHT)) == 2


def test_nothing_is_remembered_between_calls(verifier: Verifier) -> None:
    rows = verifier.encode(TEXTS)
    first = batched(verifier, rows, PaddingSide.RIGHT)
    solo(verifier, rows)
    batched(verifier, rows[::-1], PaddingSide.RIGHT, extra=9)
    assert batched(verifier, rows, PaddingSide.RIGHT) == first


def test_a_reopened_verifier_scores_alike(verifier: Verifier, spec: VerifierSpec) -> None:
    rows = verifier.encode(TEXTS)
    other = open_verifier(spec, a_condition())
    try:
        assert (other.facts(), other.resolved()) == (verifier.facts(), verifier.resolved())
        expected = batched(verifier, rows, PaddingSide.RIGHT)
        assert batched(other, rows, PaddingSide.RIGHT) == expected
    finally:
        other.close()


def test_closing_restores_every_switch(spec: VerifierSpec) -> None:
    before = resolved_switches(Device.CPU)
    opened = open_verifier(spec, a_condition(name="deterministic", onednn=False))
    inside = resolved_switches(Device.CPU)
    opened.close()
    assert resolved_switches(Device.CPU) == before
    if not spec.model.startswith("fake:"):
        assert inside.order["mkldnn.enabled"] is False
        assert torch.backends.mkldnn.enabled


def test_a_failed_opening_restores_every_switch(spec: VerifierSpec) -> None:
    before = resolved_switches(Device.CPU)
    with pytest.raises(Exception, match="nothing-such"):
        open_verifier(
            a_spec("fake:nothing-such" if "fake" in spec.model else "/nothing-such", Reward()),
            a_condition(name="deterministic"),
        )
    assert resolved_switches(Device.CPU) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RowText(context="c", branch="", name="decision 'd', branch 'b'"), "no token"),
        (RowText(context="c" * 9000, branch="x", name="decision 'd', branch 'b'"), "too long"),
    ],
)
def test_a_bad_row_is_named(verifier: Verifier, text: RowText, message: str) -> None:
    with pytest.raises(InputFileError, match=f"decision 'd', branch 'b': .*{message}"):
        verifier.encode([*TEXTS, text])


def test_the_end_can_be_kept(spec: VerifierSpec, verifier: Verifier) -> None:
    if "bert-sequence" in spec.model:
        return  # refused when it is opened: see test_padding
    whole = verifier.encode(TEXTS)
    limit = longest(whole) - 3
    kept = open_verifier(
        a_spec(spec.model, spec.head, max_tokens=limit, overflow=Overflow.KEEP_END), a_condition()
    )
    try:
        rows = kept.encode(TEXTS)
    finally:
        kept.close()
    assert max(row.num_dropped for row in rows) == 3
    for row, full in zip(rows, whole, strict=True):
        assert row.token_ids == full.token_ids[row.num_dropped :]
        branch = full.token_ids[full.branch_start : full.branch_end]
        assert row.token_ids[row.branch_start : row.branch_end] == branch
