"""Shape classes: the sums that a model really takes, recorded from a forward.

A class is an operator with its dtype and the sizes that belong to the model (features, heads); the
sizes that belong to a batch (rows, tokens) are its rungs. Layers are recorded by hooks, so that
what is probed later is the layer's own forward; everything else by a torch dispatch mode.

Rules kept here: a length is a size equal to the recorded width, which is chosen to be no size of
the model; operators that add and that no black box is known for are named, not passed over.

What it does not know: kernels that are called past torch's dispatcher, branches that a model takes
only for other inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from harness.records.document import Record

if TYPE_CHECKING:
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Recorded", "SumKind", "SumShape", "record_shapes"]

Forward = Callable[[Sequence[int]], None]
"""Runs the model on rows of so many tokens each, padded to the longest."""


class SumKind(StrEnum):
    """What kind of operator adds."""

    LINEAR = "linear"
    """A layer with a weight, by its own forward."""
    MEAN = "mean"
    """A mean over the features, as in a norm."""
    SUM = "sum"
    """A sum over the features."""
    ATTENTION = "attention"
    """The sum of values over keys in torch's fused or composite attention."""
    SCORES = "scores"
    """A product of queries and keys in the model's own attention, added over a head's features."""
    VALUES = "values"
    """A product of weights and values in the model's own attention, added over keys."""
    SOFTMAX = "softmax"
    """The denominator of a softmax over keys."""
    LOGSUMEXP = "logsumexp"
    """The sum of exponentials over features."""


class SumShape(Record, frozen=True, kw_only=True):
    """A shape class."""

    kind: SumKind
    """The operator."""
    dtype: str
    """Of its input."""
    sizes: dict[str, int]
    """The model's own sizes: ``in``, ``out``, ``terms``, ``heads``, ``kv_heads``, ``head_dim``."""
    options: tuple[str, ...] = ()
    """What else chooses a kernel: ``bias``, ``flat``, ``causal``, ``mask``, ``to float32``."""

    @property
    def name(self) -> str:
        """``linear bfloat16 in=192 out=512 bias``: the key of its fingerprint."""
        sizes = [f"{name}={size}" for name, size in self.sizes.items()]
        return " ".join([self.kind.value, self.dtype, *sizes, *self.options])

    @property
    def is_by_length(self) -> bool:
        """Whether its rungs are lengths (of keys), and not numbers of rows."""
        return self.kind not in {SumKind.LINEAR, SumKind.MEAN, SumKind.SUM, SumKind.LOGSUMEXP}


class Recorded:
    """What was recorded."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.shapes: dict[str, SumShape] = {}
        self.layers: dict[str, nn.Module] = {}
        """Class name -> the first layer of it."""
        self.unmeasured: set[str] = set()
        """Operators that add and are not probed."""
        self.depth = 0
        """Layers that are running: what they call is theirs."""

    def add(self, shape: SumShape) -> None:
        """Keep a class."""
        self.shapes.setdefault(shape.name, shape)


NO_BOX = frozenset(
    {
        "_fused_rms_norm",
        "addmm",
        "baddbmm",
        "conv1d",
        "convolution",
        "cumsum",
        "group_norm",
        "layer_norm",
        "linalg_vector_norm",
        "linear",
        "log_softmax",
        "mm",
        "native_layer_norm",
        "norm",
        "rms_norm",
        "std",
        "var",
    }
)
"""Operators that add and that no black box is known for (or, for products, outside a layer)."""

_LAYERS = ("Linear", "Conv1D")
"""Names of layer classes whose weight is one matrix; transformers' Conv1D has it transposed."""


def record_shapes(model: "nn.Module", forward: Forward, longest: int) -> Recorded:
    """Run `forward` on a row alone and on rows of two lengths; return what it added."""
    found = Recorded()
    width = _free_width(model, longest)
    with ExitStack() as stack:
        for layer in model.modules():
            if _is_layer(layer):
                stack.enter_context(_hooked(layer, found))
        with _recorder(found, width):
            forward([width])
            forward([width - 1, width])
    return found


def _free_width(model: "nn.Module", longest: int) -> int:
    """Return a small width that is no size of any weight, nor of its heads."""
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    config: Any = getattr(model, "config", None)
    sizes |= (
        {value for value in vars(config).values() if isinstance(value, int)} if config else {13}
    )
    primes = (13, 11, 7, 17, 19, 23, 5, 3)
    return next((p for p in primes if p <= longest and p not in sizes), min(longest, 13))


def _is_layer(module: "nn.Module") -> bool:
    return any(kind.__name__ in _LAYERS for kind in type(module).__mro__)


@contextmanager
def _hooked(layer: "nn.Module", found: Recorded) -> Iterator[None]:
    def before(_: Any, args: Any) -> None:
        found.depth += 1
        shape = _layer_shape(layer, args[0])
        found.add(shape)
        found.layers.setdefault(shape.name, layer)

    def after(_: Any, __: Any, ___: Any) -> None:
        found.depth -= 1

    handles = [
        layer.register_forward_pre_hook(before),
        layer.register_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer_shape(layer: Any, x: Any) -> SumShape:
    size_out, size_in = layer.weight.shape
    options = []
    if type(layer).__name__ == "Conv1D":
        size_out, size_in = size_in, size_out
        options.append("conv1d")
    if getattr(layer, "bias", None) is not None:
        options.append("bias")
    if x.dim() == 2:
        options.append("flat")
    return SumShape(
        kind=SumKind.LINEAR,
        dtype=_dtype(layer.weight),
        sizes={"in": int(size_in), "out": int(size_out)},
        options=tuple(options),
    )


def _recorder(found: Recorded, width: int) -> "TorchDispatchMode":
    import torch  # noqa: PLC0415 - not on the planner's side
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            adds = any(tensor.is_floating_point() for tensor in tensors)
            if adds and not found.depth:
                name = func.name().removeprefix("aten::").partition(".")[0]
                _record(found, width, name, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    return Recorder()  # type: ignore[no-untyped-call]


def _record(found: Recorded, width: int, name: str, args: Any, kwargs: Any) -> None:
    """Keep the class of one call, or name the operator."""
    shape: SumShape | None = None
    if name in {"mean", "sum", "logsumexp"}:
        shape = _reduction(name, args, kwargs, width)
    elif name in {"softmax", "_softmax"}:
        shape = _softmax(args, kwargs, width)
    elif name in {"matmul", "bmm"}:
        shape = _product(args[0], args[1], width)
        if args[0].shape[-1] == 1:
            return  # one product a result: nothing is added
    elif name == "scaled_dot_product_attention":
        shape = _attention(args, kwargs)
    elif name not in NO_BOX:
        return
    if shape is None:
        found.unmeasured.add(f"aten::{name} over {tuple(args[0].shape)}, width {width}")
    else:
        found.add(shape)


def _reduction(name: str, args: Any, kwargs: Any, width: int) -> SumShape | None:
    x = args[0]
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    if [dim % x.dim() for dim in dims] != [x.dim() - 1] or x.shape[-1] == width:
        return None
    asked = kwargs.get("dtype")
    options = () if asked is None or asked is x.dtype else (f"to {_name(asked)}",)
    sizes = {"terms": int(x.shape[-1])}
    return SumShape(kind=SumKind(name), dtype=_dtype(x), sizes=sizes, options=options)


def _softmax(args: Any, kwargs: Any, width: int) -> SumShape | None:
    x, dim = args[0], args[1]
    if dim % x.dim() != x.dim() - 1 or x.dim() != 4 or x.shape[-1] != width:
        return None
    asked = next(
        (a for a in (*args[2:3], kwargs.get("dtype")) if a not in {None, False, True}), None
    )
    options = () if asked is None or asked is x.dtype else (f"to {_name(asked)}",)
    return SumShape(
        kind=SumKind.SOFTMAX, dtype=_dtype(x), sizes={"heads": int(x.shape[1])}, options=options
    )


def _product(left: Any, right: Any, width: int) -> SumShape | None:
    if left.dim() != 4 or right.dim() != 4:
        return None
    by_keys = left.shape[-1] == width
    return SumShape(
        kind=SumKind.VALUES if by_keys else SumKind.SCORES,
        dtype=_dtype(left),
        sizes={
            "heads": int(left.shape[1]),
            "head_dim": int(right.shape[-1] if by_keys else left.shape[-1]),
        },
    )


def _attention(args: Any, kwargs: Any) -> SumShape:
    query, key = args[0], args[1]
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    causal = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
    options = [] if mask is None else [f"mask {_dtype(mask)}"]
    options += ["causal"] if causal else []
    return SumShape(
        kind=SumKind.ATTENTION,
        dtype=_dtype(query),
        sizes={
            "heads": int(query.shape[1]),
            "kv_heads": int(key.shape[1]),
            "head_dim": int(query.shape[-1]),
        },
        options=tuple(options),
    )


def _dtype(tensor: Any) -> str:
    return _name(tensor.dtype)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
