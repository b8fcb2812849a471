"""Whether a model in memory is its checkpoint: nothing missing, left over, or of another value.

Weights that were rounded on the way, initialised anew, or left out are found before anything is
scored. Compared are the weights that keep their name; a library may store some under other names.
"""

from collections.abc import Collection, Mapping
from typing import Any

from harness.errors import ModelLoadError
from harness.verifiers.checkpoint import Checkpoint, tensors_digest

__all__ = ["loaded_digest", "refuse_incomplete", "refuse_other_values"]

_KINDS = {
    "missing_keys": "missing",
    "unexpected_keys": "left over",
    "mismatched_keys": "of another shape",
    "error_msgs": "in error",
}
_ADVICE = (
    "a missing layer would be freshly initialised; "
    "choose the head that this checkpoint was trained for"
)


def loaded_digest(model: Any) -> str:
    """Return the digest of a model's parameters and buffers as they are in memory."""
    return tensors_digest(sorted(model.state_dict().items()))


def refuse_incomplete(folder: str, loading_info: Mapping[str, Collection[Any]]) -> None:
    """Raise ModelLoadError when weights were missing, left over or of another shape."""
    found = [
        f"weights {word}: {_some(names)}"
        for kind, word in _KINDS.items()
        if (names := loading_info.get(kind))
    ]
    if found:
        raise ModelLoadError(f"{folder}: {'; '.join(found)}; {_ADVICE}")


def refuse_other_values(model: Any, checkpoint: Checkpoint) -> None:
    """Raise ModelLoadError unless each weight is the stored one, cast to the weight's dtype."""
    import torch  # noqa: PLC0415 - not on the planner's side

    state, compared = model.state_dict(), 0
    for name, stored in checkpoint.stored(state):
        loaded = state[name]
        if not torch.equal(loaded.cpu(), stored.to(loaded.dtype)):
            raise ModelLoadError(f"{checkpoint.folder}: {name} has other values than are stored")
        compared += 1
    if not compared:
        raise ModelLoadError(f"{checkpoint.folder}: no weight could be compared with the stored")


def _some(names: Collection[Any]) -> str:
    listed = sorted(str(name) for name in names)
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return ", ".join(listed[:4]) + more
