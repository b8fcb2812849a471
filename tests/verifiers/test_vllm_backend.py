"""The vLLM backend on a real engine: heads, flights, and what it reads back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from harness.conditions.batching import Batch
from harness.conditions.flight import Flight
from harness.errors import ConfigError, InputFileError, ModelLoadError, UnsupportedConditionError
from harness.messages import Ready, Scored
from harness.records.engine import Transformers, Vllm
from harness.records.invocation import PrecisionName
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    HeadDtype,
    LogLikelihood,
    LogOdds,
    ProcessReward,
    Reward,
    StepReduction,
    StepSource,
    VerifierSpec,
)
from harness.runner import ConditionProcess
from harness.serving.content import prompt_digest
from harness.verifiers import open_verifier
from tests.serving.engines import NARROW, WIDE, write_model
from tests.verifiers.cases import TEXTS, a_condition, a_spec, solo, worst

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

ENGINE = Vllm(
    kv_cache_bytes=64 << 20, max_model_len=256, max_num_seqs=16, enforce_eager=True, block_size=32
)
CACHING = replace(ENGINE, prefix_caching=True)
ODDS = LogOdds(yes=(" gets", "("), no=("'",))
STEPS = ProcessReward(
    source=StepSource.SEQUENCE_CLASSIFICATION,
    separator="\n",
    reduce=StepReduction.MIN,
    include_last_token=True,
)
HEADS: dict[str, tuple[str, Head]] = {
    "log odds": ("embedded:lm", ODDS),
    "grade, float32 head": (
        "embedded:lm",
        ExpectedGrade(grades={" gets": 1.0, "'": 2.0, "(": 5.0}, dtype=HeadDtype.FLOAT32),
    ),
    "likelihood": ("embedded:lm", LogLikelihood()),
    "reward": ("embedded:reward", Reward()),
    "step rewards": ("embedded:reward", STEPS),
}


class Engine:
    """A process with an engine, and what it said when it was ready."""

    def __init__(self, process: ConditionProcess) -> None:
        self._process = process
        self.ready: Ready = process.ready()
        self.lengths = [len(row.token_ids) for row in self.ready.rows]

    def fly(self, *flights: Flight, rows: Sequence[int] = range(len(TEXTS))) -> list[Scored]:
        batches = [
            Batch(rows=tuple(rows), width=max(self.lengths), side=None, flight=flight)
            for flight in flights
        ]
        return list(self._process.run(batches))


@contextmanager
def started(
    spec: VerifierSpec, precision: PrecisionName = PrecisionName.FLOAT32
) -> Iterator[Engine]:
    with ConditionProcess(spec, a_condition(precision, num_threads=1), TEXTS) as process:
        yield Engine(process)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A judge that generates before it grades, on the model that moves."""
    model = write_model(tmp_path_factory.mktemp("wide") / "model", WIDE)
    with started(a_spec(model, ODDS, engine=CACHING, reasoning_tokens=4)) as engine:
        yield engine


@pytest.fixture(scope="module")
def pooler() -> Iterator[Engine]:
    with started(a_spec("embedded:reward", Reward(), engine=ENGINE)) as engine:
        yield engine


@pytest.mark.parametrize("name", HEADS)
def test_every_head_scores_as_transformers_does(name: str) -> None:
    model, head = HEADS[name]
    plain = open_verifier(a_spec(model, head), a_condition(num_threads=None))
    rows = plain.encode(TEXTS)
    expected = solo(plain, rows)
    plain.close()
    with started(a_spec(model, head, engine=ENGINE)) as engine:
        assert engine.ready.rows == tuple(rows)
        (scored,) = engine.fly(Flight())
    assert worst(scored.scores, expected) < 1e-4, (scored.scores, expected)
    assert len(set(scored.scores)) == len(TEXTS)


def test_the_build_and_the_condition_are_the_engines_own(judge: Engine) -> None:
    build, condition = judge.ready.build, judge.ready.condition
    assert build.engine.startswith("vllm 0.32")
    assert condition.precision_mode.resolved["dtype"] == "float32"
    assert condition.precision_mode.resolved["logprobs_mode"] == "raw_logits"
    order = condition.reduction_order
    assert order.requested["enable_prefix_caching"] is True
    assert order.resolved["enable_prefix_caching"] is True
    assert order.resolved["attention_backend"] == "CPU_ATTN"
    assert order.resolved["max_num_seqs"] == 16
    assert order.resolved["num_threads"] == 1
    assert condition.loaded_digest.startswith("sha256:")


def test_what_ran_is_read_back_step_by_step(pooler: Engine) -> None:
    at_once, one_by_one = pooler.fly(Flight(), Flight(arrivals=tuple(range(len(TEXTS)))))
    (step,) = at_once.steps
    assert [slot.request for slot in step.slots] == list(range(len(TEXTS)))
    assert [slot.num_tokens for slot in step.slots] == pooler.lengths
    assert [[slot.request for slot in s.slots] for s in one_by_one.steps] == [
        [at] for at in range(len(TEXTS))
    ]
    assert at_once.generated == ((),) * len(TEXTS)


def test_a_step_computes_no_more_than_its_budget(pooler: Engine) -> None:
    budget = max(pooler.lengths) - 3
    cut, whole = pooler.fly(Flight(token_budget=budget), Flight())
    assert {step.num_tokens <= budget for step in cut.steps} == {True}
    assert any(slot.num_computed_tokens for step in cut.steps for slot in step.slots)
    assert len(whole.steps) == 1, "the budget outlived its flight"


def test_tokens_are_generated_before_the_score_and_after_it(judge: Engine) -> None:
    scored, longer = judge.fly(Flight(), Flight(extra_tokens=3))
    assert {len(own) for own in scored.generated} == {5}  # four of reasoning, one is drawn
    assert {len(own) for own in longer.generated} == {8}
    assert scored.scores == longer.scores
    assert len(longer.steps) == len(scored.steps) + 3


def test_a_cold_cache_is_cold_and_a_warm_one_is_warm(judge: Engine) -> None:
    rows = [judge.lengths.index(max(judge.lengths))]
    cold, warm, again = judge.fly(Flight(), Flight(is_warm=True), Flight(), rows=rows)
    assert cold.steps[0].slots[0].num_computed_tokens == 0
    assert warm.steps[0].slots[0].num_computed_tokens == 32
    assert again.steps == cold.steps
    assert again.scores == cold.scores


def test_a_preempted_request_begins_anew(judge: Engine) -> None:
    whole, preempted = judge.fly(Flight(), Flight(preempt_before=2))
    assert not any(step.preempted for step in whole.steps)
    lost = [one for step in preempted.steps for one in step.preempted]
    assert sorted(lost) == list(range(len(TEXTS)))
    first = [s.num_computed_tokens for step in preempted.steps for s in step.slots if not s.request]
    assert first.count(0) == 2
    assert preempted.generated == whole.generated


def test_batch_mates_move_the_judge_and_a_pin_does_not(judge: Engine) -> None:
    """Positive control: decoding beside others moves float32 on this model."""
    crowd, crowd_again = judge.fly(Flight(), Flight())
    alone = [judge.fly(Flight(), rows=[at])[0].scores[0] for at in range(len(TEXTS))]
    assert crowd.scores == crowd_again.scores
    assert list(crowd.scores) != alone, "nothing moved: no positive control here"
    assert worst(crowd.scores, alone) < 1e-4
    pinned, other = judge.fly(Flight(pinned=crowd.steps), Flight(arrivals=(0, 2, 4, 6, 8)))
    assert pinned.note == ""
    assert pinned.steps == crowd.steps
    assert pinned.scores == crowd.scores
    assert other.steps != crowd.steps


def test_a_pin_that_cannot_be_kept_says_so_and_the_engine_goes_on(judge: Engine) -> None:
    (warm,) = judge.fly(Flight(is_warm=True))
    pinned, after = judge.fly(Flight(pinned=warm.steps), Flight())
    assert "the pin ended early" in pinned.note
    assert len(pinned.scores) == len(after.scores) == len(TEXTS)
    assert after.note == ""


def test_prefill_alone_moves_nothing_on_a_narrow_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Negative control: the same flights as above, on a model whose kernels do not switch."""
    model = write_model(tmp_path_factory.mktemp("narrow") / "model", NARROW)
    with started(a_spec(model, ODDS, engine=ENGINE, reasoning_tokens=4)) as engine:
        (crowd,) = engine.fly(Flight())
        alone = [engine.fly(Flight(), rows=[at])[0].scores[0] for at in range(len(TEXTS))]
    assert list(crowd.scores) == alone


def test_each_precision_is_loaded_fresh(judge: Engine) -> None:
    spec = judge.ready.build.verifier
    with started(spec, PrecisionName.BFLOAT16) as narrow:
        resolved = narrow.ready.condition
        (scored,) = narrow.fly(Flight())
    assert resolved.precision_mode.resolved["dtype"] == "bfloat16"
    assert resolved.loaded_digest != judge.ready.condition.loaded_digest
    assert narrow.ready.build.build_id == judge.ready.build.build_id
    (fine,) = judge.fly(Flight())
    assert 0 < worst(scored.scores, fine.scores) < 0.2


def test_an_item_goes_by_the_digest_that_the_engine_knows(judge: Engine) -> None:
    digests = {prompt_digest(row.token_ids) for row in judge.ready.rows}
    assert len(digests) == len(TEXTS)
    assert digests.isdisjoint(row.content_digest for row in judge.ready.rows)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a head that vLLM lacks": (
        {"head": replace(STEPS, source=StepSource.YES_NO, yes=("(",), no=("'",))},
        UnsupportedConditionError,
        "engine vllm: head.source yes_no",
    ),
    "a word that is no token": (
        {"head": LogOdds(yes=("nonsense",), no=("'",))},
        ConfigError,
        "nonsense",
    ),
    "a cache of nothing": (
        {"head": ODDS, "engine": replace(ENGINE, kv_cache_bytes=1)},
        ModelLoadError,
        "vLLM cannot start on it",
    ),
    "a row that leaves no room to reason": (
        {"head": ODDS, "reasoning_tokens": 240},
        InputFileError,
        "too long",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_served_is_told(name: str) -> None:
    changes, error, message = WRONG[name]
    spec = a_spec("embedded:lm", **{"engine": ENGINE} | changes)
    with pytest.raises(error, match=message), started(spec):
        pass


def test_forwards_and_flights_are_not_mixed_up(pooler: Engine) -> None:
    spec = replace(pooler.ready.build.verifier, engine=Transformers())
    message = "no scheduler runs here"
    with pytest.raises(UnsupportedConditionError, match=message), started(spec) as plain:
        plain.fly(Flight())


def test_a_pooling_engine_generates_nothing() -> None:
    spec = a_spec("embedded:reward", Reward(), engine=ENGINE)
    with pytest.raises(UnsupportedConditionError, match="generates nothing"), started(spec) as one:
        one.fly(Flight(extra_tokens=2))
