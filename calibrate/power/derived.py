"""Checkpoints derived from the committed one: nearly the same weights, or another tokenizer.

Decides what is changed and how; the same change of the same checkpoint gives the same bytes. What
was changed is stored in float32, so that a small change is not lost before a model is loaded; how
many weights differ is counted in the dtype in which they will be loaded. One shard at a time is in
memory.

A layer is whatever shares the first number in its tensors' names; embeddings and heads are none.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.codec import digest
from harness.errors import ConfigError
from harness.files import read_bytes
from harness.records.document import Record
from harness.verifiers.checkpoint import Checkpoint, find_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Change", "Derived", "ForgottenMerges", "Int8", "Noise", "derive"]

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.gguf", "*.onnx")


class Int8(Record, frozen=True, kw_only=True):
    """Every matrix of every layer to int8 and back, one scale an output channel."""


class Noise(Record, frozen=True, kw_only=True):
    """Weights times ``1 + relative * N(0, 1)``, element by element."""

    relative: float
    """Standard deviation of the factor."""
    every_layer: bool = False
    """Whether all layers are changed; else the middle one."""
    seed: int = 0
    """Seed of the noise."""


class ForgottenMerges(Record, frozen=True, kw_only=True):
    """A byte-pair tokenizer without the later half of its merges: longer rows of shorter tokens."""


Change = Int8 | Noise | ForgottenMerges


class Derived(Record, frozen=True, kw_only=True):
    """A checkpoint that was written."""

    folder: Path
    """Where it is."""
    num_weights: int
    """Weights of the whole checkpoint."""
    num_changed: int
    """Those that differ once loaded."""


def derive(model: str, revision: str | None, change: Change, dtype: str, folder: Path) -> Derived:
    """Write `model` with `change` into the new `folder`.

    `dtype` is the torch dtype in which it will be loaded. Raises ModelLoadError for a model that is
    not to be had, ConfigError for one that cannot be changed so.
    """
    checkpoint = find_checkpoint(model, revision)
    other_files = shutil.ignore_patterns(*WEIGHT_FILES)
    shutil.copytree(checkpoint.folder, folder, ignore=other_files)
    if isinstance(change, ForgottenMerges):
        _forget_merges(folder / "tokenizer.json")
        return _with_weights(checkpoint, _unchanged, dtype, folder)
    return _with_weights(checkpoint, _tensor_change(change, _layers(checkpoint)), dtype, folder)


TensorChange = Callable[[str, "Tensor"], "Tensor"]


def _with_weights(
    checkpoint: Checkpoint, changed: TensorChange, dtype: str, folder: Path
) -> Derived:
    import torch  # noqa: PLC0415 - heavy
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    loaded, num_weights, num_changed = getattr(torch, dtype), 0, 0
    for shard in checkpoint.shards:
        before = load_file(shard)
        after = {name: changed(name, before[name]) for name in sorted(before)}
        save_file(after, folder / Path(shard).name, metadata={"format": "pt"})
        num_weights += sum(tensor.numel() for tensor in before.values())
        differ = (before[name].to(loaded) != after[name].to(loaded) for name in before)
        num_changed += sum(int(one.sum()) for one in differ)
    return Derived(folder=folder, num_weights=num_weights, num_changed=num_changed)


def _unchanged(_name: str, tensor: "Tensor") -> "Tensor":
    return tensor


def _tensor_change(change: Int8 | Noise, layers: Iterable[int]) -> TensorChange:
    ordered = sorted(layers)
    if not ordered:
        raise ConfigError("no layer is numbered in this checkpoint's tensor names")
    middle = ordered[len(ordered) // 2]

    def changed(name: str, tensor: "Tensor") -> "Tensor":
        layer = _layer(name)
        if layer is None or not tensor.is_floating_point():
            return tensor
        if isinstance(change, Int8):
            return _int8_and_back(tensor) if tensor.ndim == 2 else tensor
        return _noisy(name, tensor, change) if change.every_layer or layer == middle else tensor

    return changed


def _int8_and_back(weight: "Tensor") -> "Tensor":
    """Round ``[out, in]`` to 255 levels a row, the largest magnitude at 127."""
    values = weight.float()
    scale = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    return (values / scale).round() * scale


def _noisy(name: str, tensor: "Tensor", noise: Noise) -> "Tensor":
    import torch  # noqa: PLC0415 - heavy

    seed = int(digest([noise.seed, name]).removeprefix("sha256:")[:12], 16)
    generator = torch.Generator().manual_seed(seed)
    return tensor.float() * (1 + noise.relative * torch.randn(tensor.shape, generator=generator))


def _layers(checkpoint: Checkpoint) -> set[int]:
    from safetensors import safe_open  # noqa: PLC0415 - heavy

    found: set[int] = set()
    for shard in checkpoint.shards:
        with safe_open(shard, framework="pt") as file:
            found |= {layer for name in file.keys() if (layer := _layer(name)) is not None}  # noqa: SIM118 - no mapping
    return found


def _layer(name: str) -> int | None:
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else None


def _forget_merges(path: Path) -> None:
    """Cut the merges; raise ConfigError where there are none."""
    tokenizer = json.loads(read_bytes(path)) if path.is_file() else {}
    merges = tokenizer.get("model", {}).get("merges", [])
    if len(merges) < 2:
        raise ConfigError("this tokenizer has no byte-pair merges in a tokenizer.json")
    tokenizer["model"]["merges"] = merges[: len(merges) // 2]
    path.unlink()  # its mode may be that of a read-only original
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
