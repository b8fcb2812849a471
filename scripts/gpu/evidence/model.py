"""A decoder with random weights, made on the device: the same values in every precision.

Every weight is drawn in float32, rounded to bfloat16, and made 0 where float16 would lose digits of
it, so that every precision holds it exactly: two arms differ in arithmetic alone. The digest is
over a part of every weight, read back from the model as loaded.
"""

import hashlib
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["SHAPES", "make_model", "weights_digest"]

SHAPES: dict[str, dict[str, int]] = {
    "7b": {
        "vocab_size": 32768,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
}
"""Name -> sizes; ``7b`` has the layers of Qwen2.5-7B and a smaller vocabulary."""

_GAIN = 1.0
_SMALLEST = 2.0**-14  # float16's smallest normal number
_DIGESTED = 4096  # values of each weight that the digest reads


def make_model(shape: str, dtype: str, attention: str, device: str) -> Any:
    """Return a one-label classifier on `device`, its weights in `dtype`."""
    import torch  # noqa: PLC0415 - after the condition's environment is set
    import transformers  # noqa: PLC0415

    config = transformers.AutoConfig.for_model(
        "qwen2", **SHAPES[shape], num_labels=1, pad_token_id=0, tie_word_embeddings=False
    )
    with torch.device(device):
        model = transformers.AutoModelForSequenceClassification.from_config(  # type: ignore[no-untyped-call]
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )
    _draw(model, torch.Generator(device).manual_seed(0))
    return model.eval()


def weights_digest(model: Any) -> str:
    """Return the digest of a part of every weight, as bfloat16: equal for equal values."""
    import torch  # noqa: PLC0415

    total = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        part = weight.detach().reshape(-1)[:_DIGESTED].to(torch.bfloat16).view(torch.int16)
        total.update(f"{name}|{tuple(weight.shape)}|".encode())
        total.update(part.cpu().numpy().tobytes())
    return f"sha256:{total.hexdigest()}"


def _draw(model: Any, generator: "torch.Generator") -> None:
    import torch  # noqa: PLC0415

    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator, device=weight.device)
            drawn = _scaled(name, noise).to(torch.bfloat16)
            weight.copy_(drawn.masked_fill(drawn.abs() < _SMALLEST, 0.0))


def _scaled(name: str, noise: "torch.Tensor") -> "torch.Tensor":
    if noise.ndim > 1:
        return noise * (_GAIN / math.sqrt(noise.shape[-1]))
    return noise * 0.1 + (0.0 if name.endswith("bias") else 1.0)
