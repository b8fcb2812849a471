"""Split-K: linear layers that add their K products as explicit partial sums, in a fixed order.

Every `nn.Linear` of a model (its subclasses too: a language-model head, a score head) computes
``((x0 w0 + x1 w1) + x2 w2) + ... + bias``, each part one matmul over a slice of ``in_features``
and each addition rounded in the layer's dtype. It is another order of the same sum: what a kernel
does when it splits K, made explicit, on any device.

What it does not know: layers that are no `nn.Linear` (GPT-2's Conv1D, fused experts) and code that
reads a layer's weight without calling the layer; they keep the vendor's order.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING

from harness.errors import UnsupportedConditionError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["split_k"]


@contextmanager
def split_k(model: "nn.Module", parts: int) -> Iterator[int]:
    """Make every linear layer of `model` add in `parts` partial sums; restore in ``finally``.

    Yields the number of layers changed. Raises `UnsupportedConditionError`, with nothing changed,
    if there is no linear layer, one is narrower than `parts`, or one's forward is not `nn.Linear`'s
    (a nested use, an adapter, a hook of another library).
    """
    layers = _linear_layers(model)
    _check(layers, parts)
    with ExitStack() as stack:
        for layer in layers.values():
            stack.callback(layer.__dict__.pop, "forward", None)
            layer.__dict__["forward"] = partial(_forward, layer, parts)
        yield len(layers)


def _linear_layers(model: "nn.Module") -> "dict[str, nn.Linear]":
    from torch import nn  # noqa: PLC0415 - torch only where it is needed

    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}


def _check(layers: "dict[str, nn.Linear]", parts: int) -> None:
    if parts < 2:
        raise UnsupportedConditionError(f"split_k needs at least 2 parts, found {parts}")
    if not layers:
        raise UnsupportedConditionError("split_k: the model has no nn.Linear layer to split")
    for name, layer in layers.items():
        if not _is_plain(layer):
            raise UnsupportedConditionError(
                f"split_k: layer {name or '(root)'} has a forward of its own: nested use of "
                "split_k, an adapter, or another library's hook; remove it first"
            )
        if layer.in_features < parts:
            raise UnsupportedConditionError(
                f"split_k: layer {name or '(root)'} adds {layer.in_features} products, fewer than "
                f"the {parts} parts asked for"
            )


def _is_plain(layer: "nn.Linear") -> bool:
    from torch import nn  # noqa: PLC0415

    return "forward" not in layer.__dict__ and type(layer).forward is nn.Linear.forward


def _forward(layer: "nn.Linear", parts: int, x_nk: "Tensor") -> "Tensor":
    """Return the layer's output ``[..., out_features]`` for ``x_nk`` ``[..., in_features]``."""
    from torch.nn.functional import linear  # noqa: PLC0415

    size = layer.in_features
    edges = [part * size // parts for part in range(parts + 1)]
    partial_sums = (
        linear(x_nk[..., start:end], layer.weight[:, start:end]) for start, end in pairwise(edges)
    )
    total_nm = reduce(add, partial_sums)
    return total_nm if layer.bias is None else total_nm + layer.bias
