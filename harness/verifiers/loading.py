"""Loads a tokenizer and a model, whole and fresh, and finds the layer of its head.

Every precision is another load from the stored values; nothing that was loaded is cast, but for a
head layer that is to run in its own dtype, which is read from the checkpoint again.
"""

from typing import Any

from harness.errors import ConfigError, ModelLoadError
from harness.records.verifier import HeadDtype, VerifierSpec
from harness.verifiers.checkpoint import Checkpoint, refuse_incomplete, refuse_other_values
from harness.verifiers.heads import model_task

__all__ = ["install_head", "load_model", "load_tokenizer"]


def load_tokenizer(checkpoint: Checkpoint, spec: VerifierSpec) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - not on the planner's side

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{checkpoint.folder}: the tokenizer cannot be loaded ({error})"
        ) from error
    if not tokenizer.is_fast:
        raise ModelLoadError(f"{checkpoint.folder}: a fast tokenizer is needed (tokenizer.json)")
    return tokenizer


def load_model(
    checkpoint: Checkpoint, spec: VerifierSpec, dtype: str, attn_implementation: str
) -> Any:
    """Load the model with its weights in `dtype`; raise ModelLoadError unless it is whole."""
    import torch  # noqa: PLC0415 - not on the planner's side

    try:
        model, loading_info = _auto_class(spec).from_pretrained(
            checkpoint.folder,
            dtype=getattr(torch, dtype),
            attn_implementation=attn_implementation,
            trust_remote_code=spec.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelLoadError(
            f"{checkpoint.folder}: the model cannot be loaded ({error})"
        ) from error
    refuse_incomplete(checkpoint.folder, loading_info)
    refuse_other_values(model, checkpoint)
    return model.eval().to(str(spec.device))


def _auto_class(spec: VerifierSpec) -> Any:
    import transformers  # noqa: PLC0415 - not on the planner's side

    return {
        "causal_lm": transformers.AutoModelForCausalLM,
        "sequence_classification": transformers.AutoModelForSequenceClassification,
        "token_classification": transformers.AutoModelForTokenClassification,
    }[model_task(spec.head)]


def install_head(model: Any, checkpoint: Checkpoint, spec: VerifierSpec) -> Any:
    """Put the head's linear layer in the dtype asked for, from the stored values; return it."""
    name, module = _head_layer(model, spec)
    if spec.head.dtype is HeadDtype.MODEL:
        return module
    return _retyped_head(model, checkpoint, name, spec.head.dtype)


def _head_layer(model: Any, spec: VerifierSpec) -> tuple[str, Any]:
    import torch  # noqa: PLC0415 - not on the planner's side

    if model_task(spec.head) == "causal_lm":
        wanted = model.get_output_embeddings()
        named = [(n, m) for n, m in model.named_modules() if m is wanted]
    else:
        named = [
            (name, module)
            for name in ("score", "classifier.out_proj", "classifier")
            if isinstance(module := _submodule(model, name), torch.nn.Linear)
        ]
    if not named:
        raise ConfigError(f"{type(model).__name__}: no linear head layer was found")
    return named[0]


def _submodule(model: Any, name: str) -> Any:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _retyped_head(model: Any, checkpoint: Checkpoint, name: str, dtype: HeadDtype) -> Any:
    import torch  # noqa: PLC0415 - not on the planner's side

    kind = getattr(torch, str(dtype))
    old = model.get_submodule(name)
    stored = dict(checkpoint.stored())
    tied = next((n for n, p in model.named_parameters() if p is old.weight), f"{name}.weight")
    weight = stored.get(f"{name}.weight", stored.get(tied))
    if weight is None:
        raise ConfigError(f"head.dtype: the checkpoint has no {name}.weight to read")
    new = torch.nn.Linear(*reversed(weight.shape), bias=old.bias is not None, dtype=kind)
    with torch.no_grad():
        new.weight.copy_(weight.to(kind))
        if old.bias is not None:
            new.bias.copy_(stored[f"{name}.bias"].to(kind))
    new.register_forward_pre_hook(lambda _, args: (args[0].to(kind),))
    model.set_submodule(name, new.to(old.weight.device))
    return new
