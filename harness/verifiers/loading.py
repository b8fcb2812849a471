"""Loads a tokenizer and a model, whole and fresh.

Every precision is another load from the stored values; nothing that was loaded is cast.
"""

import inspect
from pathlib import Path
from typing import Any

from harness.errors import ModelLoadError
from harness.records.verifier import VerifierSpec
from harness.verifiers.checkpoint import Checkpoint
from harness.verifiers.heads import ModelTask, model_task
from harness.verifiers.wholeness import refuse_incomplete, refuse_other_values

__all__ = ["load_model", "load_tokenizer"]

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""Without any of them transformers makes an empty tokenizer and says nothing."""

_FLOAT64 = {"experts_implementation": "eager"}
"""torch's grouped product of experts has no float64; the model's own loop over them has."""


def load_tokenizer(checkpoint: Checkpoint, spec: VerifierSpec) -> Any:
    """Load the fast tokenizer; raise ModelLoadError when there is none."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - not on the planner's side

    if not any((Path(checkpoint.folder) / name).is_file() for name in _VOCABULARIES):
        known = ", ".join(_VOCABULARIES)
        raise ModelLoadError(f"{checkpoint.folder}: no tokenizer; one of {known} is needed")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, trust_remote_code=spec.trust_remote_code
        )
    except Exception as error:
        raise _not_loaded(checkpoint, "tokenizer", error) from error
    if not tokenizer.is_fast:
        raise ModelLoadError(f"{checkpoint.folder}: a fast tokenizer is needed (tokenizer.json)")
    return tokenizer


def load_model(checkpoint: Checkpoint, spec: VerifierSpec, dtype: str, attention: str) -> Any:
    """Load the model with its weights in `dtype` and transformers' `attention` implementation.

    Raises ModelLoadError unless it is whole and takes position ids.
    """
    import torch  # noqa: PLC0415 - not on the planner's side

    try:
        model, loading_info = _auto_class(model_task(spec.head)).from_pretrained(
            checkpoint.folder,
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            trust_remote_code=spec.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            output_loading_info=True,
            **_FLOAT64 if dtype == "float64" else {},
        )
    except Exception as error:
        raise _not_loaded(checkpoint, "model", error) from error
    refuse_incomplete(checkpoint.folder, loading_info)
    refuse_other_values(model, checkpoint)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        kind = type(model).__name__
        raise ModelLoadError(f"{checkpoint.folder}: {kind} takes no position ids to pad with")
    return model.eval().to(str(spec.device))


def _auto_class(task: ModelTask) -> Any:
    import transformers  # noqa: PLC0415 - not on the planner's side

    return {
        "causal_lm": transformers.AutoModelForCausalLM,
        "sequence_classification": transformers.AutoModelForSequenceClassification,
        "token_classification": transformers.AutoModelForTokenClassification,
    }[task]


def _not_loaded(checkpoint: Checkpoint, what: str, error: Exception) -> ModelLoadError:
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelLoadError(f"{checkpoint.folder}: the {what} cannot be loaded ({cause})")
