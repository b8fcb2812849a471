"""Measures every sum of a model, inside the model's own forward.

The operators are probed from within a forward (before its first layer runs), so that whatever
surrounds them there is in force: switches, replaced forwards, dispatch modes. The layers' weights
hold masks meanwhile and are put back.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.errors import UnsupportedConditionError
from harness.orders import operators, positive
from harness.orders.fingerprint import (
    BatchShape,
    ClassOrder,
    Orders,
    PlacedTree,
    Rung,
    rungs_of,
)
from harness.orders.fprev import UnfitOperatorError
from harness.orders.measure import Part, measure
from harness.orders.operators import View
from harness.orders.shapes import Forward, Recorded, SumKind, SumShape, record_shapes
from harness.orders.tree import SummationTree

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Survey"]


class Survey:
    """The sums of one model, recorded once and measured on demand."""

    def __init__(self, model: "nn.Module", forward: Forward, longest: int) -> None:
        """Record which sums `forward` takes; rows have up to `longest` tokens."""
        self._model, self._forward, self._longest = model, forward, longest
        self._recorded: Recorded = record_shapes(model, forward, longest)
        self._trees: dict[str, SummationTree] = {}

    def orders(self) -> Orders:
        """Measure every class over its ladder."""
        classes: list[ClassOrder] = self._inside(self._classes)
        return Orders(
            classes=tuple(classes),
            unmeasured=tuple(sorted(self._recorded.unmeasured)),
        )

    def at(self, batches: Sequence[BatchShape]) -> list[dict[str, Rung]]:
        """Measure every class at the shapes of these batches; return what was found, by name."""
        found: list[dict[str, Rung]] = self._inside(
            lambda: [{name: self._at(s, batch) for name, s in self._shapes()} for batch in batches]
        )
        return found

    @property
    def trees(self) -> dict[str, SummationTree]:
        """Every tree that was found so far, by digest."""
        return dict(sorted(self._trees.items()))

    def _shapes(self) -> list[tuple[str, SumShape]]:
        return list(self._recorded.shapes.items())

    def _classes(self) -> list[ClassOrder]:
        return [
            ClassOrder(
                shape=shape,
                rungs=tuple(
                    self._rung(shape, size, 1, size) for size in rungs_of(shape, self._longest)
                ),
            )
            for _, shape in self._shapes()
        ]

    def _at(self, shape: SumShape, batch: BatchShape) -> Rung:
        if shape.is_by_length:
            return self._rung(shape, batch.width, batch.rows, batch.width)
        if "flat" in shape.options:  # a head, at one place a row
            return self._rung(shape, batch.rows, 1, batch.rows)
        return self._rung(shape, batch.rows * batch.width, batch.rows, batch.width)

    def _rung(self, shape: SumShape, size: int, rows: int, width: int) -> Rung:
        """Measure one class at ``[rows, width]`` tokens."""
        try:
            parts = self._parts(shape, rows, width)
        except (UnfitOperatorError, UnsupportedConditionError) as error:
            return Rung(size=size, refused=str(error))
        except RuntimeError as error:  # torch has no kernel for it, or no memory
            return Rung(size=size, refused=str(error).partition("\n")[0])
        for part in parts:
            self._trees.setdefault(part.tree.digest, part.tree)
        placed = [PlacedTree(places=part.places, tree=part.tree.digest) for part in parts]
        return Rung(size=size, trees=tuple(placed))

    def _parts(self, shape: SumShape, rows: int, width: int) -> tuple[Part, ...]:
        device = str(next(self._model.parameters()).device)
        if shape.kind in {SumKind.SOFTMAX, SumKind.LOGSUMEXP}:
            box = _denominator(shape, rows, width, device)
            return (Part("all", positive.reveal_positive(box)),)
        with ExitStack() as stack:
            if shape.kind is SumKind.LINEAR:
                leading = (rows * width,) if "flat" in shape.options else (rows, width)
                product = stack.enter_context(
                    operators.layer_product(
                        self._recorded.layers[shape.name],
                        leading,
                        is_transposed="conv1d" in shape.options,
                    )
                )
                views: list[View] = [operators.Rows(product), operators.Columns(product)]
            else:
                views = _views(shape, rows, width, device)
            return measure(views, list(self._trees.values())[::-1])

    def _inside(self, work: Callable[[], Any]) -> Any:
        """Do `work` before the first layer of a forward runs."""
        layer = next(iter(self._recorded.layers.values()), None)
        if layer is None:
            return work()
        found: list[Any] = []
        is_busy = False

        def before(_: Any, __: Any) -> None:
            nonlocal is_busy
            if not is_busy:
                is_busy = True
                found.append(work())

        handle = layer.register_forward_pre_hook(before)
        try:
            self._forward([3])
        finally:
            handle.remove()
        return found[0]


def _views(shape: SumShape, rows: int, width: int, device: str) -> list[View]:
    sizes, dtype = shape.sizes, shape.dtype
    if shape.kind in {SumKind.MEAN, SumKind.SUM}:
        call = partial(_reduce, shape.kind, _result(shape))
        divisor = sizes["terms"] if shape.kind is SumKind.MEAN else 1
        arguments = (call, rows * width, sizes["terms"], dtype, device)
        return [
            operators.Reduced(*arguments, divisor=divisor),
            operators.EveryRow(*arguments, divisor=divisor),
        ]
    if shape.kind is SumKind.ATTENTION:
        attend = partial(_attend, shape.options, sizes["heads"] != sizes["kv_heads"])
        own = {name: sizes[name] for name in ("heads", "kv_heads", "head_dim")}
        return [
            operators.Attention(attend, rows=rows, length=width, dtype=dtype, device=device, **own)
        ]
    by_keys = shape.kind is SumKind.VALUES
    product = operators.Product(
        call=partial(_multiply, rows),
        groups=rows * sizes["heads"],
        m=width,
        n=sizes["head_dim"] if by_keys else width,
        k=width if by_keys else sizes["head_dim"],
        dtype=dtype,
        device=device,
    )
    return [operators.Rows(product), operators.Columns(product)]


def _denominator(shape: SumShape, rows: int, width: int, device: str) -> operators.Denominator:
    result = _result(shape) or shape.dtype
    if shape.kind is SumKind.LOGSUMEXP:
        call, full = partial(_logsumexp), (rows, width, shape.sizes["terms"])
        return operators.Denominator(call, full, dtype=shape.dtype, result=result, device=device)
    full_4 = (rows, shape.sizes["heads"], width, width)
    return operators.Denominator(
        partial(_softmax, _result(shape)), full_4, dtype=shape.dtype, result=result, device=device
    )


def _result(shape: SumShape) -> str | None:
    """Return the dtype that a reduction is asked to give, None for its input's."""
    asked = [option for option in shape.options if option.startswith("to ")]
    return asked[0].removeprefix("to ") if asked else None


def _reduce(kind: SumKind, result: str | None, x: "Tensor") -> "Tensor":
    import torch  # noqa: PLC0415 - not on the planner's side

    dtype = None if result is None else getattr(torch, result)
    reduce = torch.mean if kind is SumKind.MEAN else torch.sum
    made: Tensor = reduce(x, dim=[-1], keepdim=True, dtype=dtype)
    return made


def _logsumexp(x: "Tensor") -> "Tensor":
    import torch  # noqa: PLC0415 - not on the planner's side

    return torch.logsumexp(x, dim=-1, keepdim=True)


def _softmax(result: str | None, x: "Tensor") -> "Tensor":
    import torch  # noqa: PLC0415 - not on the planner's side

    dtype = None if result is None else getattr(torch, result)
    return torch.softmax(x, dim=-1, dtype=dtype)


def _multiply(rows: int, a: "Tensor", b: "Tensor") -> "Tensor":
    import torch  # noqa: PLC0415 - not on the planner's side

    left, right = (x.reshape(rows, -1, *x.shape[1:]) for x in (a, b))
    return torch.matmul(left, right).reshape(-1, a.shape[1], b.shape[2])


def _attend(
    options: tuple[str, ...],
    is_grouped: bool,  # noqa: FBT001 - a fact
    q: "Tensor",
    k: "Tensor",
    v: "Tensor",
) -> "Tensor":
    import torch  # noqa: PLC0415 - not on the planner's side

    masks = [option.removeprefix("mask ") for option in options if option.startswith("mask ")]
    mask = None
    if masks:
        length = q.shape[2]
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()[None, None]
        mask = mask.expand(len(q), 1, length, length)
        if masks[0] != "bool":
            zeros = torch.zeros(mask.shape, dtype=getattr(torch, masks[0]), device=q.device)
            mask = zeros.masked_fill(~mask, torch.finfo(zeros.dtype).min)
    made: Tensor = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal="causal" in options, enable_gqa=is_grouped
    )
    return made
