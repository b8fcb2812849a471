"""An operator as torch's dispatcher hands it over: its name, its tensors, and how it is refused."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import UnsupportedConditionError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["base_name", "tensors", "uncovered"]


def base_name(func: Any) -> str:
    """Return ``add`` for ``aten::add_.Tensor``."""
    name: str = func.name().partition("::")[2].partition(".")[0]
    return name.removesuffix("_")


def tensors(values: Iterable[Any]) -> "Iterator[Tensor]":
    """Yield the tensors among an operator's arguments or results, lists included."""
    import torch  # noqa: PLC0415

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)


def uncovered(func: Any, operands: Sequence[Any], why: str) -> UnsupportedConditionError:
    """Return the error for an operator that a batch-invariant order does not cover."""
    shapes = " and ".join(str(list(tensor.shape)) for tensor in tensors(operands))
    return UnsupportedConditionError(
        f"batch_invariant does not cover {func.name()} of {shapes or 'no tensor'}: {why}"
    )
