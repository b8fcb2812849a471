"""Checkpoints with random weights: every architecture and score head, in a few hundred kB.

Decides the shape of those models and how their weights are drawn. They know nothing, so they serve
tests of loading, batching and score heads, never as evidence about a verifier.

Rules kept here: the same arguments give the same bytes of weights; torch's global generator is left
as it was; the weights are large enough for scores to differ clearly between inputs (by several
times what a library's usual initial scale gives); safetensors only; a directory appears whole or
not at all. The tokenizer is the embedded verifier's.
"""

import math
import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError
from harness.verifiers.embedded import checkpoint

if TYPE_CHECKING:
    import torch

__all__ = ["Architecture", "Task", "WeightDtype", "write_checkpoint"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

_MATRIX_GAIN = 1.5
"""Standard deviation of a product's output over that of its input; about 1 keeps signals alive."""

_EMBEDDING_SCALE = 0.25
"""Keeps the logits of a tied output layer (8 times as large, at 64 dimensions) within reason."""

_BIAS_SCALE = 0.1


class Architecture(StrEnum):
    """A model family of transformers."""

    QWEN2 = "qwen2"
    """Decoder, grouped key/value heads, biases on queries, keys and values."""
    LLAMA = "llama"
    """Decoder, grouped key/value heads, no biases."""
    BERT = "bert"
    """Encoder: attends both ways, learnt positions, a pooler before the sequence head."""


class Task(StrEnum):
    """The head on top, as `AutoModelFor...` names it."""

    CAUSAL_LM = "causal_lm"
    SEQUENCE_CLASSIFICATION = "sequence_classification"
    TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - a task, not a secret


class WeightDtype(StrEnum):
    """The dtype that the weights are stored in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


_SHAPE = {
    "vocab_size": 447,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Vocabulary and special ids are the embedded tokenizer's."""

_EXTRA_SHAPE: dict[Architecture, dict[str, Any]] = {
    Architecture.QWEN2: {"num_key_value_heads": 2, "tie_word_embeddings": True},
    Architecture.LLAMA: {"num_key_value_heads": 2, "tie_word_embeddings": False},
    Architecture.BERT: {"type_vocab_size": 2},
}

_AUTO_CLASS = {
    Task.CAUSAL_LM: "AutoModelForCausalLM",
    Task.SEQUENCE_CLASSIFICATION: "AutoModelForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "AutoModelForTokenClassification",
}


def write_checkpoint(  # noqa: PLR0913 - a model's whole recipe, by keyword
    directory: Path,
    *,
    architecture: Architecture,
    task: Task,
    seed: int,
    num_labels: int = 1,
    dtype: WeightDtype = WeightDtype.FLOAT32,
) -> Path:
    """Write config, weights and tokenizer into the new or empty `directory` and return it.

    `num_labels` counts for the two classification tasks only. Raises ConfigError where the
    directory holds files, the family has no such head, or `num_labels` is below 1.
    """
    _check(directory, architecture, task, num_labels)
    model = _draw_model(architecture, task, seed, num_labels)
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        # A fresh object, saved once: it is never scored with, so casting it in place is safe.
        model.to(_torch_dtype(dtype)).save_pretrained(temporary)
        for name in _TOKENIZER_FILES:
            shutil.copyfile(checkpoint("reward") / name, temporary / name)
        _open_to_readers(temporary)
        temporary.replace(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _open_to_readers(directory: Path) -> None:
    """Undo the private modes of temporary directories and of safetensors' writer."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)


def _check(directory: Path, architecture: Architecture, task: Task, num_labels: int) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory}: exists and is not empty; name a new directory")
    if architecture is Architecture.BERT and task is Task.CAUSAL_LM:
        raise ConfigError(
            "bert attends both ways and has no causal language-model head: take qwen2 or llama,"
            " or ask bert for sequence_classification or token_classification"
        )
    if num_labels < 1:
        raise ConfigError(f"num_labels is {num_labels}: a head needs at least 1")


def _draw_model(architecture: Architecture, task: Task, seed: int, num_labels: int) -> Any:
    import torch  # noqa: PLC0415 - only who writes a model pays for torch
    import transformers  # noqa: PLC0415

    labels = {} if task is Task.CAUSAL_LM else {"num_labels": num_labels}
    config = transformers.AutoConfig.for_model(
        architecture.value, **_SHAPE, **_EXTRA_SHAPE[architecture], **labels
    )
    # The constructor draws weights of its own from the global generator; they are drawn again.
    with torch.random.fork_rng(devices=[]):
        model = getattr(transformers, _AUTO_CLASS[task]).from_config(config, dtype=torch.float32)
    _draw_weights(model, torch.Generator().manual_seed(seed))
    return model


def _draw_weights(model: Any, generator: "torch.Generator") -> None:
    """Fill every parameter, in the order of names, so that a library's own order is no matter."""
    import torch  # noqa: PLC0415

    embeddings = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding)
    }
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_scaled(name, noise, is_embedding=name in embeddings))


def _scaled(name: str, noise: "torch.Tensor", *, is_embedding: bool) -> "torch.Tensor":
    if is_embedding:
        return noise * _EMBEDDING_SCALE
    if noise.ndim > 1:
        return noise * (_MATRIX_GAIN / math.sqrt(noise.shape[-1]))
    around = 0.0 if name.endswith("bias") else 1.0  # a vector that is no bias scales a norm
    return around + noise * _BIAS_SCALE


def _torch_dtype(dtype: WeightDtype) -> "torch.dtype":
    import torch  # noqa: PLC0415

    resolved: torch.dtype = getattr(torch, dtype.value)
    return resolved
