"""Operators in a fixed order: what runs inside a model so that no batch changes a sum.

Every operator that a model calls is taken at torch's dispatcher and falls under one rule:

* a product with a weight, a norm, a softmax, a sum over a dimension of the weights: in fixed tiles
  of rows (`tiles`);
* attention: each row of the batch alone, cut to the keys that any query attends to, so that the
  call is the one that the row would make by itself, whatever it is padded to and on which side;
* element by element: as it is where IEEE arithmetic leaves one result (add, multiply); else (exp,
  cosine, SiLU) over one contiguous, filled-up vector, since a library's vector code and the code
  for its last few elements may round differently;
* moving, comparing, counting: as it is; no sum is rounded;
* composite operators: by their parts;
* anything else is refused by name: a product of two activations (eager attention), a sum over a
  dimension of the batch, a convolution. Nothing is passed over in silence.

What an operator computes is not changed, a mask least of all: a model that lets a row see its
padding still does, and its scores still move.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.conditions.operators import base_name, tensors, uncovered
from harness.conditions.row_attention import row_attention
from harness.conditions.tiles import NARROW, WIDE, Tiles

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FixedOrder"]

_EXACT = frozenset(
    """
    abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min div eq
    fill floor ge gt isfinite isinf isnan le logical_and logical_not logical_or logical_xor lt
    masked_fill maximum minimum mul ne neg relu remainder round sign sqrt sub trunc where
    """.split()  # noqa: SIM905 - a list to read
)
"""Element by element with one correctly rounded result, or none to round."""

_MOVES = frozenset(
    """
    _assert_async _local_scalar_dense _to_copy _unsafe_view amax amin arange cat clone
    constant_pad_nd copy detach embedding empty empty_like empty_strided fill flip full full_like
    gather index index_copy index_select item lift_fresh max min new_empty new_empty_strided
    new_full new_ones new_zeros ones ones_like repeat roll scalar_tensor scatter stack tril triu
    zero zeros zeros_like
    """.split()  # noqa: SIM905 - a list to read
)
"""Nothing is added; a copy to another dtype rounds each value for itself."""

_LANES = 64
"""A multiple of the elements that a CPU's vector code takes at a time, in any dtype."""


class FixedOrder:
    """The rules, for one model; `run` is what a dispatch mode hands its operators to."""

    def __init__(self, model: Any, kernels: Iterable[str] = ()) -> None:
        """Read the model's weights; operators named in `kernels` already keep one order."""
        parameters = [*model.parameters(), *model.buffers()]
        self._weights = {tensor.untyped_storage().data_ptr() for tensor in parameters}
        self._sizes = {size for tensor in parameters for size in tensor.shape}
        self._kernels = frozenset(kernels)
        self._tiles = Tiles()
        self.is_running = False
        self._rules: Mapping[str, Callable[..., Any]] = {
            "linear": self._linear,
            "mm": self._mm,
            "addmm": self._addmm,
            "bmm": self._bmm,
            "layer_norm": self._layer_norm,
            "rms_norm": self._rms_norm,
            "mean": self._over_last,
            "sum": self._over_last,
            "softmax": self._over_last,
            "_softmax": self._over_last,
            "log_softmax": self._over_last,
            "_log_softmax": self._over_last,
            "logsumexp": self._over_last,
            "linalg_vector_norm": self._over_last,
            "scaled_dot_product_attention": row_attention,
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run every operator by these rules."""
        self.is_running = True
        try:
            with _mode(self):
                yield
        finally:
            self.is_running = False

    def run(self, mode: "TorchDispatchMode", func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator by its rule; raise UnsupportedConditionError where there is none."""
        import torch  # noqa: PLC0415 - torch only where it is needed

        name = base_name(func)
        if func.is_view or name in _MOVES or name in self._kernels or not _rounds(args, kwargs):
            return func(*args, **kwargs)
        if name in self._rules:
            return self._rules[name](func, *args, **kwargs)
        if torch.Tag.pointwise in func.tags:
            return _pointwise(func, args, kwargs)
        with mode:
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        made = func(*args, **kwargs)
        if any(tensor.is_floating_point() for tensor in tensors([made])):
            raise uncovered(func, args, "it may add over the batch, and has no fixed order here")
        return made

    def _linear(self, func: Any, x: "Tensor", w: "Tensor", bias: "Tensor | None" = None) -> Any:
        self._check_weight(func, w, (x, w))
        constants = (w,) if bias is None else (w, bias)
        key = ("linear", *map(_layout, constants))
        return self._rows(key, func, x, constants)

    def _mm(self, func: Any, x: "Tensor", w: "Tensor") -> Any:
        self._check_weight(func, w, (x, w))
        return self._rows(("mm", _layout(w)), func, x, (w,))

    def _addmm(self, func: Any, bias: "Tensor", x: "Tensor", w: "Tensor", **scales: Any) -> Any:
        self._check_weight(func, w, (bias, x, w))
        self._check_weight(func, bias, (bias, x, w))
        key = ("addmm", _layout(w), _layout(bias), *scales.items())
        return self._rows(key, lambda rows, w, b: func(b, rows, w, **scales), x, (w, bias))

    def _bmm(self, func: Any, left: "Tensor", right: "Tensor") -> Any:
        if left.shape[-1] != 1:
            why = "both operands are activations; take attention auto, flash or math"
            raise uncovered(func, (left, right), why)
        return left * right  # one product a result: nothing is added

    def _layer_norm(  # noqa: PLR0913, PLR0917 - the operator's own
        self,
        func: Any,
        x: "Tensor",
        shape: Sequence[int],
        weight: "Tensor | None" = None,
        bias: "Tensor | None" = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Any:
        return self._norm(func, x, shape, (weight, bias, eps))

    def _rms_norm(
        self,
        func: Any,
        x: "Tensor",
        shape: Sequence[int],
        weight: "Tensor | None" = None,
        eps: float | None = None,
    ) -> Any:
        return self._norm(func, x, shape, (weight, eps))

    def _norm(self, func: Any, x: "Tensor", shape: Sequence[int], rest: tuple[Any, ...]) -> Any:
        if len(shape) != 1:
            raise uncovered(func, (x,), "it normalises over more than one dimension")
        self._check_size(func, x)
        key = (func, *(value for value in rest if isinstance(value, float)))
        return self._rows(key, lambda rows: func(rows, shape, *rest), x, ())

    def _over_last(self, func: Any, x: "Tensor", dim: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Run a reduction over the last dimension; `linalg_vector_norm` has its order first."""
        order: tuple[Any, ...] = ()
        if base_name(func) == "linalg_vector_norm":
            order, dim, rest = (dim,), rest[0] if rest else None, rest[1:]
        dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
        if [d % x.dim() for d in dims] != [x.dim() - 1]:
            raise uncovered(func, (x,), "it adds over another dimension than the last")
        self._check_size(func, x)
        one = -1 if isinstance(dim, int) else [-1]
        magnitudes = NARROW if "soft" in func.name() or "exp" in func.name() else WIDE
        key = (func, *order, *rest, *kwargs.items())
        operator = partial(_reduced, func, (*order, one, *rest), kwargs)
        return self._rows(key, operator, x, (), magnitudes)

    def _rows(
        self,
        key: tuple[Any, ...],
        operator: Callable[..., "Tensor"],
        x: "Tensor",
        constants: tuple["Tensor", ...],
        magnitudes: int = WIDE,
    ) -> "Tensor":
        """Run `operator` over the last dimension of `x`, in tiles of rows."""
        made = self._tiles.run(
            key,
            lambda rows: operator(rows, *constants),
            x.reshape(-1, x.shape[-1]),
            probe=lambda rows: operator(rows, *map(_all_ones, constants)),
            magnitudes=magnitudes,
        )
        return made.reshape(*x.shape[:-1], *made.shape[1:])

    def _check_weight(self, func: Any, tensor: "Tensor", operands: tuple["Tensor", ...]) -> None:
        if tensor.untyped_storage().data_ptr() not in self._weights:
            why = "the right operand is no weight; take attention auto, flash or math"
            raise uncovered(func, operands, why)

    def _check_size(self, func: Any, x: "Tensor") -> None:
        if x.shape[-1] not in self._sizes:
            raise uncovered(func, (x,), "it adds over a dimension that no weight has: the batch's")


def _mode(order: FixedOrder) -> "TorchDispatchMode":
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return order.run(self, func, args, kwargs or {})

    return Mode()  # type: ignore[no-untyped-call]


def _pointwise(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator that takes element by element."""
    import torch  # noqa: PLC0415

    if base_name(func) in _EXACT and kwargs.get("alpha", 1) == 1:
        return func(*args, **kwargs)
    wide = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim()]
    if not wide:
        return func(*args, **kwargs)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in wide))  # type: ignore[no-untyped-call]
    flat = [_flat(arg, shape) if any(arg is one for one in wide) else arg for arg in args]
    made = func(*flat, **kwargs)
    if not isinstance(made, torch.Tensor):
        raise uncovered(func, args, "it has several results")
    result = made[: shape.numel()].view(shape)
    return args[0].copy_(result) if func._schema.is_mutable else result  # noqa: SLF001


def _flat(tensor: "Tensor", shape: "torch.Size") -> "Tensor":
    """Return the elements as a fresh vector, filled up with ones to whole vectors of the CPU."""
    vector = tensor.new_ones(-(-shape.numel() // _LANES) * _LANES)
    vector[: shape.numel()].view(shape).copy_(tensor)
    return vector


def _reduced(func: Any, rest: Sequence[Any], kwargs: Mapping[str, Any], rows: "Tensor") -> Any:
    return func(rows, *rest, **kwargs)


def _rounds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether floating-point values go in, or are asked for."""
    dtype = kwargs.get("dtype")
    asked = dtype is not None and dtype.is_floating_point
    return asked or any(tensor.is_floating_point() for tensor in tensors(args))


def _layout(tensor: "Tensor") -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _all_ones(constant: "Tensor") -> "Tensor":
    """Return ones that lie in memory as `constant` does."""
    import torch  # noqa: PLC0415

    return torch.empty_strided(
        constant.shape, constant.stride(), dtype=constant.dtype, device=constant.device
    ).fill_(1)
