"""Checkpoints: where they are and what they store.

Only safetensors are read: a pickle may run code. The digest is over every stored tensor (name,
dtype, shape, bytes), so it does not change when a checkpoint is cut into other shards.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ModelLoadError
from harness.records.document import Record
from harness.verifiers import embedded
from harness.verifiers.hub import fetch_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Checkpoint", "find_checkpoint", "tensors_digest"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.gguf", "*.safetensors")


class Checkpoint(Record, frozen=True, kw_only=True):
    """A folder with a config, a tokenizer and safetensors."""

    folder: str
    """Where it is."""
    shards: tuple[str, ...]
    """Its safetensors files, sorted."""

    def stored(self, wanted: Iterable[str] | None = None) -> Iterator[tuple[str, "Tensor"]]:
        """Yield the stored tensors by name, sorted: all of them, or those `wanted`.

        Raises ModelLoadError when a file is not whole safetensors.
        """
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - not the planner's

        try:
            with ExitStack() as stack:
                files: dict[str, Any] = {}
                for shard in self.shards:
                    file = stack.enter_context(safe_open(shard, framework="pt"))
                    files |= dict.fromkeys(file.keys(), file)
                names = files if wanted is None else set(wanted) & files.keys()
                for name in sorted(names):
                    yield name, files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            advice = "copy or download the checkpoint again"
            raise ModelLoadError(
                f"{self.folder}: no whole safetensors ({error}); {advice}"
            ) from error

    def digest(self) -> str:
        """Return the digest of all stored tensors."""
        return tensors_digest(self.stored())


def find_checkpoint(model: str, revision: str | None) -> Checkpoint:
    """Find the checkpoint of ``embedded:NAME``, a folder, or a hub name.

    Raises ModelLoadError when it is not to be had, or has no safetensors.
    """
    if model.startswith("embedded:"):
        folder = embedded.checkpoint(model.removeprefix("embedded:"))
    elif Path(model).is_dir():
        folder = Path(model)
    else:
        folder = fetch_checkpoint(model, revision)
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder}: no config.json; is it a transformers checkpoint?")
    if (folder / "adapter_config.json").is_file():
        raise ModelLoadError(f"{folder}: an adapter; merge it into its model and save that")
    return Checkpoint(folder=str(folder), shards=tuple(str(path) for path in _shards(folder)))


def tensors_digest(tensors: "Iterable[tuple[str, Tensor]]") -> str:
    """Return the digest of named tensors, in the order given."""
    import torch  # noqa: PLC0415 - not on the planner's side

    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data: Any = flat.view(torch.uint8).numpy()
        total.update(data)
    return f"sha256:{total.hexdigest()}"


def _shards(folder: Path) -> list[Path]:
    """Return the files that transformers would read, and no other that lies beside them."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / _INDEX).is_file():
        raise ModelLoadError(f"{folder}: {_found_instead(folder)}")
    shards = sorted({folder / name for name in _weight_map(folder / _INDEX).values()})
    for shard in shards:
        if not shard.is_file():
            raise ModelLoadError(f"{shard}: {_INDEX} names this shard and it is not there")
    return shards


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{index}: no index of shards ({error!r})") from error
    return found


def _found_instead(folder: Path) -> str:
    others = sorted(path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
    found = f"only {', '.join(others)}" if others else "no weights"
    advice = f"save it with model.save_pretrained(folder), which writes {_SINGLE}"
    return f"{found}; safetensors are needed, since a pickle may run code: {advice}"
