"""A row's score is its own: in fine arithmetic no padding, on either side, moves it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from harness.conditions.attention import Attention
from harness.errors import ConfigError, ModelLoadError, UnsupportedConditionError
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    LogLikelihood,
    LogOdds,
    Overflow,
    ProcessReward,
    Prompt,
    Reward,
    StepReduction,
    StepSource,
)
from harness.verifiers import open_verifier
from harness.verifiers import transformers as backend
from harness.verifiers.inputs import padded_inputs
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
    reference_logits,
    solo,
    worst,
)

LEFT, RIGHT = PaddingSide
FLOAT32, FLOAT64 = PrecisionName.FLOAT32, PrecisionName.FLOAT64
LIMIT = {FLOAT32: 1e-5, FLOAT64: 1e-12}
"""Relative; many roundings lie between two orders of summation."""


def steps(source: str, **more: Any) -> ProcessReward:
    return ProcessReward(
        source=StepSource(source),
        separator="\n",
        reduce=StepReduction.PRODUCT,
        include_last_token=True,
        **more,
    )


CASES: list[tuple[Any, Any, Head]] = [
    (QWEN2, LM, LogOdds(yes=("1",), no=("2",))),
    (LLAMA, LM, LogLikelihood()),
    (QWEN2, LM, ExpectedGrade(grades={"1": 1.0, "2": 2.0})),
    (LLAMA, LM, steps("yes_no", yes=("1",), no=("2",))),
    (QWEN2, SEQUENCE, Reward()),
    (LLAMA, SEQUENCE, steps("sequence_classification")),
    (QWEN2, TOKEN, steps("token_classification")),
    (BERT, SEQUENCE, Reward()),
    (BERT, TOKEN, steps("token_classification")),
]


@pytest.mark.parametrize("precision", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(("architecture", "task", "head"), CASES)
def test_padding_moves_no_score(
    build: Build, architecture: Any, task: Any, head: Head, precision: PrecisionName
) -> None:
    verifier = open_verifier(a_spec(build(architecture, task), head), a_condition(precision))
    rows = verifier.encode(TEXTS)
    alone = solo(verifier, rows)
    sides = [RIGHT] if (architecture, task) == (BERT, SEQUENCE) else [LEFT, RIGHT]
    for side in sides:
        for extra in (0, 1, 37, 300):  # the last is wider than the model's context
            gap = worst(batched(verifier, rows, side, extra), alone)
            assert gap < LIMIT[precision], (side, extra, gap)
    verifier.close()


@pytest.mark.parametrize("architecture", [QWEN2, LLAMA, BERT])
def test_positions_that_are_not_shifted_would_be_seen(
    build: Build, architecture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control. A decoder with rotary positions sees distances only, so the row's own
    positions are broken, not moved as a whole."""

    def unshifted(*args: Any, **options: Any) -> dict[str, torch.Tensor]:
        inputs = padded_inputs(*args, **options)
        columns = torch.arange(inputs["input_ids"].shape[1])
        return inputs | {"position_ids": (columns // 2).expand_as(inputs["input_ids"])}

    head = steps("token_classification")
    verifier = open_verifier(a_spec(build(architecture, TOKEN), head), a_condition())
    rows = verifier.encode(TEXTS)
    alone = solo(verifier, rows)
    assert worst(batched(verifier, rows, LEFT, 7), alone) < LIMIT[FLOAT32]
    monkeypatch.setattr(backend, "padded_inputs", unshifted)
    assert worst(batched(verifier, rows, LEFT, 7), alone) > 1e-3
    verifier.close()


def test_learnt_positions_that_start_with_the_padding_would_be_seen(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the very mistake, on positions that are absolute."""

    def unshifted(*args: Any, **options: Any) -> dict[str, torch.Tensor]:
        inputs = padded_inputs(*args, **options)
        columns = torch.arange(inputs["input_ids"].shape[1])
        return inputs | {"position_ids": columns.expand_as(inputs["input_ids"])}

    verifier = open_verifier(
        a_spec(build(BERT, TOKEN), steps("token_classification")), a_condition()
    )
    rows = verifier.encode(TEXTS)
    alone = solo(verifier, rows)
    monkeypatch.setattr(backend, "padded_inputs", unshifted)
    assert worst(batched(verifier, rows, LEFT, 7), alone) > 1e-3
    verifier.close()


def test_an_encoder_that_pools_its_first_column_refuses_left_padding(build: Build) -> None:
    verifier = open_verifier(a_spec(build(BERT, SEQUENCE), Reward()), a_condition())
    rows = verifier.encode(TEXTS)
    with pytest.raises(UnsupportedConditionError, match=r"pools column 0.*side: right"):
        batched(verifier, rows, LEFT)
    alone = verifier.score(rows[:1], len(rows[0].token_ids), LEFT)  # nothing is padded
    assert worst(alone, solo(verifier, rows[:1])) < LIMIT[FLOAT32]
    verifier.close()


def test_an_encoder_that_pools_its_first_token_may_not_lose_it(build: Build) -> None:
    spec = a_spec(build(BERT, SEQUENCE), Reward(), overflow=Overflow.KEEP_END)
    with pytest.raises(ConfigError, match="keep_end would drop the first token"):
        open_verifier(spec, a_condition())


def test_a_batch_must_be_as_wide_as_its_rows(build: Build) -> None:
    verifier = open_verifier(a_spec(build(QWEN2, SEQUENCE), Reward()), a_condition())
    row = verifier.encode(TEXTS)[0]
    with pytest.raises(ValueError, match="does not fit a width"):
        verifier.score([row, row], len(row.token_ids) - 1, RIGHT)
    verifier.close()


PADS = {
    "inside the prompt": "<bos>{context}<pad><sol>{branch}<pad>",
    "the end": "{context}{branch}",
}


@pytest.mark.parametrize("template", PADS.values(), ids=PADS.keys())
def test_the_pooled_row_is_found_by_count_and_not_by_the_pad_id(
    build: Build, template: str
) -> None:
    folder = build(QWEN2, SEQUENCE)
    spec = a_spec(folder, Reward(), prompt=Prompt(template=template))
    verifier = open_verifier(spec, a_condition(FLOAT64))
    rows = verifier.encode(TEXTS)
    last = [hidden_score(folder, row.token_ids) for row in rows]
    assert worst(batched(verifier, rows, RIGHT, 3), last) < LIMIT[FLOAT64]
    library = [float(found[0]) for found in reference_logits(folder, SEQUENCE, rows)]
    if "<pad>" in template:  # negative control: transformers pools before a pad id
        assert worst(library, last) > 1e-3
    else:
        assert worst(library, last) < LIMIT[FLOAT64]
    verifier.close()


def hidden_score(folder: Path, token_ids: tuple[int, ...]) -> float:
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
    with torch.inference_mode():
        hidden = model.eval().model(input_ids=torch.tensor([token_ids])).last_hidden_state
        return float(model.score(hidden[0, -1]))


def test_padding_with_the_end_token_changes_no_bit(build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "pad-is-eos"
    shutil.copytree(build(QWEN2, SEQUENCE), folder)
    for name, key, value in (
        ("tokenizer_config.json", "pad_token", "<eos>"),
        ("config.json", "pad_token_id", 2),
    ):
        plain = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(plain | {key: value}))
    found = []
    for model in (build(QWEN2, SEQUENCE), folder):
        verifier = open_verifier(a_spec(model, Reward()), a_condition())
        rows = verifier.encode(TEXTS)
        found.append(batched(verifier, rows, RIGHT, 5) + batched(verifier, rows, LEFT, 5))
        verifier.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("family", ["roberta", "gpt2", "opt", "distilbert", "bloom"])
def test_families_that_count_positions_otherwise(build: Build, tmp_path: Path, family: str) -> None:
    """Scored as the library scores a row alone, or refused: never scored otherwise."""
    shape = {"vocab_size": 447, "num_labels": 1, "pad_token_id": 0}
    small = {
        "roberta": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
        "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64},
        "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    }[family]
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **shape, **small)
    auto: Any = AutoModelForSequenceClassification
    model = auto.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(build(QWEN2, SEQUENCE) / name, tmp_path)
    spec = a_spec(tmp_path, Reward(), max_tokens=200)
    order = {"attention": Attention.EAGER} if family == "bloom" else {}
    if family == "bloom":
        with pytest.raises(ModelLoadError, match="takes no position ids"):
            open_verifier(spec, a_condition(FLOAT64, **order))
        return
    verifier = open_verifier(spec, a_condition(FLOAT64))
    rows = verifier.encode(TEXTS)
    expected = [float(logits[0]) for logits in reference_logits(tmp_path, SEQUENCE, rows)]
    assert worst(solo(verifier, rows), expected) < LIMIT[FLOAT64]
    assert worst(batched(verifier, rows, RIGHT, 5), expected) < LIMIT[FLOAT64]
    if family not in {"roberta", "distilbert"}:
        assert worst(batched(verifier, rows, LEFT, 5), expected) < LIMIT[FLOAT64]
    verifier.close()
