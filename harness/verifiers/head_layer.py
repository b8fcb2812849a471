"""The linear layer of a model's head: where it is, and its own dtype if the config asks for one.

A head that is to run in its own dtype is read from the checkpoint again: what was loaded in the
model's dtype has been rounded.
"""

from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError
from harness.records.verifier import HeadDtype, VerifierSpec
from harness.verifiers.checkpoint import Checkpoint
from harness.verifiers.heads import model_task

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["install_head"]

_CLASSIFIERS = ("score", "classifier.out_proj", "classifier")
"""Where transformers' classification models keep their last layer."""


def install_head(model: Any, checkpoint: Checkpoint, spec: VerifierSpec) -> "nn.Linear":
    """Put the head's linear layer in the dtype asked for, from the stored values; return it.

    Raises ConfigError when the model has no such layer.
    """
    name, layer = _head_layer(model, spec)
    if spec.head.dtype is HeadDtype.MODEL:
        return layer
    retyped = _retyped(layer, _stored(model, checkpoint, name, layer), spec.head.dtype)
    model.set_submodule(name, retyped)
    return retyped


def _head_layer(model: Any, spec: VerifierSpec) -> "tuple[str, nn.Linear]":
    from torch import nn  # noqa: PLC0415 - not on the planner's side

    layers = dict(model.named_modules())
    if model_task(spec.head) == "causal_lm":
        output = model.get_output_embeddings()
        names = [name for name, layer in layers.items() if layer is output]
    else:
        names = [name for name in _CLASSIFIERS if name in layers]
    for name in names:
        if isinstance(layers[name], nn.Linear):
            return name, layers[name]
    raise ConfigError(f"head: {type(model).__name__} has no linear head layer that is known here")


def _stored(
    model: Any, checkpoint: Checkpoint, name: str, layer: "nn.Linear"
) -> "dict[str, Tensor]":
    """Return the layer's stored weight, maybe under the name it is tied to, and its bias."""
    tied = [other for other, value in model.named_parameters() if value is layer.weight]
    found = dict(checkpoint.stored([f"{name}.weight", f"{name}.bias", *tied]))
    weights = [found[key] for key in (f"{name}.weight", *tied) if key in found]
    if not weights or (layer.bias is not None and f"{name}.bias" not in found):
        raise ConfigError(f"head.dtype: the checkpoint has no {name}.weight to read")
    bias = {} if layer.bias is None else {"bias": found[f"{name}.bias"]}
    return {"weight": weights[0], **bias}


def _retyped(layer: "nn.Linear", stored: "dict[str, Tensor]", dtype: HeadDtype) -> "nn.Linear":
    import torch  # noqa: PLC0415 - not on the planner's side

    kind: torch.dtype = getattr(torch, str(dtype))
    new = torch.nn.Linear(
        layer.in_features, layer.out_features, "bias" in stored, device="meta", dtype=kind
    )
    new.load_state_dict({key: value.to(kind) for key, value in stored.items()}, assign=True)
    new.register_forward_pre_hook(lambda _, args: (args[0].to(kind),))
    return new.requires_grad_(requires_grad=False).eval().to(layer.weight.device)
