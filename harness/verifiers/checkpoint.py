"""Checkpoints: where they are, what they hold, and whether it was loaded whole.

Only safetensors are read: a pickle may run code. The digest is over every stored tensor (name,
dtype, shape, bytes), so it does not change when a checkpoint is cut into other shards. A model is
loaded fresh for each precision, then compared with what is stored, so that weights which were
rounded on the way, initialised anew, or left out are found before anything is scored.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ModelLoadError
from harness.records.document import Record
from harness.verifiers import embedded

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Checkpoint",
    "find_checkpoint",
    "loaded_digest",
    "refuse_incomplete",
    "refuse_other_values",
    "weights_digest",
]

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Checkpoint(Record, frozen=True, kw_only=True):
    """A folder with a config, a tokenizer and safetensors."""

    folder: str
    """Where it is."""
    shards: tuple[str, ...]
    """Its safetensors files, sorted."""

    def stored(self) -> Iterator[tuple[str, "Tensor"]]:
        """Yield every stored tensor by name, sorted."""
        from safetensors import safe_open  # noqa: PLC0415 - not on the planner's side

        where = {}
        for shard in self.shards:
            with safe_open(shard, framework="pt") as file:
                where |= dict.fromkeys(file.keys(), shard)
        for name in sorted(where):
            with safe_open(where[name], framework="pt") as file:
                yield name, file.get_tensor(name)


def find_checkpoint(model: str, revision: str | None) -> Checkpoint:
    """Find the checkpoint of ``embedded:NAME``, a folder, or a hub name.

    Raises ModelLoadError when it is not to be had, or holds pickles only.
    """
    if model.startswith("embedded:"):
        folder = embedded.checkpoint(model.removeprefix("embedded:"))
    elif Path(model).is_dir():
        folder = Path(model)
    else:
        folder = _from_hub(model, revision)
    return _checkpoint(folder)


def _checkpoint(folder: Path) -> Checkpoint:
    shards = tuple(sorted(str(path) for path in folder.glob("*.safetensors")))
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder}: no config.json; is it a transformers checkpoint?")
    if not shards:
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        found = f"only pickles ({', '.join(pickles)})" if pickles else "no weights"
        advice = "save it with save_pretrained(..., safe_serialization=True)"
        raise ModelLoadError(f"{folder}: {found}; safetensors are needed: {advice}")
    return Checkpoint(folder=str(folder), shards=shards)


def _from_hub(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - not on the planner's side

    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py"],
            )
        )
    except Exception as error:
        advice = "give a folder, embedded:reward or embedded:lm, or check the name and the network"
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelLoadError(
            f"model {model!r}: no such folder, and not from a hub ({cause}); {advice}"
        ) from error


def weights_digest(checkpoint: Checkpoint) -> str:
    """Return the digest of all stored tensors."""
    return _digest_of(checkpoint.stored())


def loaded_digest(model: Any) -> str:
    """Return the digest of a model's parameters and buffers as they are in memory."""
    return _digest_of(sorted(model.state_dict().items()))


def refuse_incomplete(folder: str, loading_info: Any) -> None:
    """Raise ModelLoadError when weights were missing, left over or of another shape."""
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    found = [
        f"{kind.replace('_', ' ')}: {_some(names)}"
        for kind in kinds
        if (names := loading_info[kind])
    ]
    if found:
        advice = "a missing head would be freshly initialised: choose the head that this checkpoint was trained for"
        raise ModelLoadError(f"{folder}: {'; '.join(found)}; {advice}")


def refuse_other_values(model: Any, checkpoint: Checkpoint) -> int:
    """Compare each loaded weight with the stored one cast to its dtype; return how many.

    Raises ModelLoadError naming the first weight that differs.
    """
    import torch  # noqa: PLC0415 - not on the planner's side

    state, compared = model.state_dict(), 0
    for name, stored in checkpoint.stored():
        if name not in state:
            continue
        loaded = state[name]
        if not torch.equal(loaded.cpu(), stored.to(loaded.dtype)):
            raise ModelLoadError(
                f"{checkpoint.folder}: {name} was loaded with other values than stored"
            )
        compared += 1
    return compared


def _digest_of(tensors: "Iterable[tuple[str, Tensor]]") -> str:
    import torch  # noqa: PLC0415 - not on the planner's side

    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy())
    return f"sha256:{total.hexdigest()}"


def _some(names: Iterable[Any]) -> str:
    listed = sorted(str(name) for name in names)
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return ", ".join(listed[:4]) + more
