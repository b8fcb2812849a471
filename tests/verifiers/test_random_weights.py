"""Random-weight checkpoints: they load whole, vary, and follow the seed alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from harness.errors import ConfigError
from harness.verifiers.embedded import decisions_file
from harness.verifiers.random_weights import Architecture, Task, WeightDtype, write_checkpoint

AUTO_CLASS: dict[Task, Any] = {
    Task.CAUSAL_LM: transformers.AutoModelForCausalLM,
    Task.SEQUENCE_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
    Task.TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
}

KINDS = [
    (architecture, task)
    for architecture in Architecture
    for task in Task
    if (architecture, task) != (Architecture.BERT, Task.CAUSAL_LM)
]


def write(directory: Path, *, seed: int = 1, **changes: Any) -> Path:
    arguments = {"architecture": Architecture.QWEN2, "task": Task.SEQUENCE_CLASSIFICATION} | changes
    return write_checkpoint(directory, seed=seed, **arguments)


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def scores(directory: Path, model: Any) -> torch.Tensor:
    """Last logit of the last position for 20 texts of several lengths, each alone."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    texts = decisions_file().read_text(encoding="utf-8").splitlines()[:20]
    rows = [tokenizer(text[60 : 100 + 4 * at]).input_ids for at, text in enumerate(texts)]
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([row])).logits for row in rows]
    return torch.stack([item.flatten()[-1].double() for item in logits])


@pytest.mark.parametrize(("architecture", "task"), KINDS)
def test_it_loads_whole_and_its_scores_vary(
    tmp_path: Path, architecture: Architecture, task: Task
) -> None:
    directory = write(tmp_path / "model", architecture=architecture, task=task)
    model, report = AUTO_CLASS[task].from_pretrained(directory, output_loading_info=True)
    assert not any(report.values()), report
    assert sum(path.stat().st_size for path in directory.iterdir()) < 600_000
    found = scores(directory, model.eval())
    assert bool(torch.isfinite(found).all())
    assert found.std().item() > 0.1


def test_a_dead_head_would_be_seen(tmp_path: Path) -> None:
    """Negative control of the test above."""
    directory = write(tmp_path / "model")
    model = AUTO_CLASS[Task.SEQUENCE_CLASSIFICATION].from_pretrained(directory)
    torch.nn.init.zeros_(model.score.weight)
    assert scores(directory, model.eval()).std().item() == 0


def test_the_seed_alone_decides_the_weights(tmp_path: Path) -> None:
    first = write(tmp_path / "first", seed=1)
    torch.rand(7)
    assert weights(write(tmp_path / "again", seed=1)) == weights(first)
    assert weights(write(tmp_path / "other", seed=2)) != weights(first)


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    write(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", WeightDtype)
def test_the_weights_are_stored_in_the_dtype_asked_for(tmp_path: Path, dtype: WeightDtype) -> None:
    directory = write(tmp_path / "model", dtype=dtype)
    stored = load_file(directory / "model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {f"torch.{dtype}"}


def test_the_number_of_labels_is_kept(tmp_path: Path) -> None:
    stored = load_file(write(tmp_path / "model", num_labels=3) / "model.safetensors")
    assert stored["score.weight"].shape == (3, 64)


def test_no_label_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_labels is 0"):
        write(tmp_path / "model", num_labels=0)


def test_bert_has_no_causal_head(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bert .* take qwen2 or llama"):
        write(tmp_path / "model", architecture=Architecture.BERT, task=Task.CAUSAL_LM)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_there_are_never_written_over(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", seed=1)
    before = weights(directory)
    with pytest.raises(ConfigError, match="not empty"):
        write(directory, seed=2)
    assert weights(directory) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
