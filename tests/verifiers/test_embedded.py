"""The embedded verifier: complete, consistent, cheap to find, and alive."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from harness.errors import ConfigError
from harness.verifiers.embedded import CHECKPOINTS, checkpoint, decisions_file
from harness.verifiers.random_weights import Architecture, Task, write_checkpoint
from scripts.train_tiny_verifier.evaluate import auc

VOCABULARY = 447


def read_decisions() -> list[dict[str, Any]]:
    lines = decisions_file().read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def branch_inputs(decisions: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"<bos>{decision['context']}<sol>{branch['text']}<eos>"
        for decision in decisions
        for branch in decision["branches"]
    ]


def area(directory: Path, decisions: Sequence[dict[str, Any]]) -> float:
    """AUC of a reward checkpoint over the branches of all decisions, in one float32 batch."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(directory)
    model: Any = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    texts = branch_inputs(decisions)
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    with torch.inference_mode():
        output = model.eval()(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
    labels = [branch["label"] for decision in decisions for branch in decision["branches"]]
    by_label: dict[int, list[float]] = {0: [], 1: []}
    for label, score in zip(labels, output.logits[:, 0].tolist(), strict=True):
        by_label[label].append(score)
    result = auc(by_label[1], by_label[0])
    assert result is not None
    return result


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_complete(name: str) -> None:
    names = {path.name for path in checkpoint(name).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    config = json.loads((checkpoint(name) / "config.json").read_text())
    assert (config["vocab_size"], config["dtype"]) == (VOCABULARY, "bfloat16")


def test_an_unknown_name_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"'rewards'.*did you mean 'reward'\? known: lm, reward"):
        checkpoint("rewards")


def test_finding_the_files_imports_no_torch() -> None:
    code = (
        "import sys; from harness.verifiers.embedded import checkpoint, decisions_file;"
        "assert checkpoint('lm').is_dir() and decisions_file().is_file();"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_the_decisions_keep_their_format() -> None:
    decisions = read_decisions()
    assert len({decision["decision_id"] for decision in decisions}) == 400
    assert sum(len(decision["branches"]) for decision in decisions) == 3822
    for decision in decisions:
        branches = decision["branches"]
        assert 2 <= len({branch["text"] for branch in branches}) == len(branches) <= 16
        assert [branch["branch_id"] for branch in branches] == [
            f"b{number:02d}" for number in range(len(branches))
        ]
        assert all((branch["label"] == 1) == (branch["error"] == "ok") for branch in branches)


def test_both_checkpoints_have_one_backbone() -> None:
    language = load_file(checkpoint("lm") / "model.safetensors")
    reward = load_file(checkpoint("reward") / "model.safetensors")
    assert reward.pop("score.weight").shape == (1, 192)
    assert reward.keys() == language.keys()
    differing = [name for name in reward if not torch.equal(reward[name], language[name])]
    assert differing == []


def test_both_checkpoints_have_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (checkpoint("lm") / name).read_bytes() == (checkpoint("reward") / name).read_bytes()


def test_no_loader_adds_a_token_beyond_the_embedding(tmp_path: Path) -> None:
    for name in CHECKPOINTS:
        assert len(AutoTokenizer.from_pretrained(checkpoint(name))) == VOCABULARY
    # Negative control: without the unknown token named, the Qwen2 class adds one.
    bare = tmp_path / "bare"
    shutil.copytree(checkpoint("reward"), bare)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    del config["unk_token"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    assert len(AutoTokenizer.from_pretrained(bare)) == VOCABULARY + 1


def test_every_loader_reads_the_decisions_alike() -> None:
    texts = branch_inputs(read_decisions())
    automatic = AutoTokenizer.from_pretrained(checkpoint("reward"))
    plain = PreTrainedTokenizerFast.from_pretrained(checkpoint("reward"))
    expected = plain(texts, add_special_tokens=False).input_ids
    assert automatic(texts, add_special_tokens=False).input_ids == expected
    assert max(map(len, expected)) < 256


def test_it_tells_right_from_wrong(tmp_path: Path) -> None:
    decisions = read_decisions()[:25]
    assert area(checkpoint("reward"), decisions) > 0.85
    # Negative control: random weights cannot.
    random_model = write_checkpoint(
        tmp_path / "random",
        architecture=Architecture.QWEN2,
        task=Task.SEQUENCE_CLASSIFICATION,
        seed=0,
    )
    assert area(random_model, decisions) < 0.65
