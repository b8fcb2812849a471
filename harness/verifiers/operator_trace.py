"""Operator calls inside one module call, cut to one row."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.conditions.batch_invariant import EnclosedForward
from harness.conditions.operators import base_name, tensors
from harness.conditions.row_attention import attends
from harness.verifiers.alignment import RowPlace, lets_through
from harness.verifiers.bits import alike, same_bits
from harness.verifiers.divergence import Operator
from harness.verifiers.module_trace import named_modules

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OperatorCall", "OperatorPair", "first_difference", "operator_calls"]

_SMALL = 1024
"""Values that a tensor may have to be kept whole: a scale, not a weight."""


@dataclass
class OperatorCall:
    """One operator call, cut to the row."""

    name: str
    """As the dispatcher knows it, overload included."""
    shown: Operator
    """Name, shapes and dtypes."""
    inputs: "list[Tensor | None]"
    """The row's values in its tensors; None where there are none."""
    outputs: "list[Tensor | None]"
    """The same of its results."""
    shared: "list[Tensor | None]"
    """Its other tensors, where they are small; None for the row's own and for large ones."""
    sees: "Tensor | None"
    """Of an attention: which of the row's queries sees which of its keys, `[heads, n, n]`."""
    sees_others: bool
    """Of an attention: whether the row sees tokens that are not its own."""


@contextmanager
def operator_calls(
    model: Any, name: str, place: RowPlace, calls: list[OperatorCall]
) -> Iterator[None]:
    """Record in `calls` what runs within the module call `name`, as `module_calls` names it."""
    module_name, _, number = name.partition("#")
    mode, counts = _recorder(place, calls), Counter[str]()

    def recorded(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        counts["calls"] += 1
        if counts["calls"] != int(number or 1):
            return forward(*args, **kwargs)
        with mode:
            return forward(*args, **kwargs)

    module = named_modules(model)[module_name]
    own = module.__dict__.get("forward")
    if isinstance(own, EnclosedForward):  # record what the model asks for, not what is made of it
        with _replaced(own, "inner", partial(recorded, own.inner)):
            yield
    else:
        with _replaced(module, "forward", partial(recorded, module.forward)):
            yield


@contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Put `value` over an instance's attribute."""
    before = holder.__dict__.get(name)
    holder.__dict__[name] = value
    try:
        yield
    finally:
        del holder.__dict__[name]
        if before is not None:
            holder.__dict__[name] = before


def _recorder(place: RowPlace, calls: list[OperatorCall]) -> "TorchDispatchMode":
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - not the planner's

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = list(tensors([*args, *(kwargs or {}).values()]))
            inputs = [place.own(tensor) for tensor in given]  # before it may write over them
            shared = [_small(tensor) if place.own(tensor) is None else None for tensor in given]
            made = func(*args, **(kwargs or {}))
            calls.append(
                OperatorCall(
                    name=func.name(),
                    shown=_shown(func, given),
                    inputs=inputs,
                    shared=shared,
                    outputs=[place.own(tensor) for tensor in tensors([made])],
                    **_sight(place, func, args, kwargs or {}, made),
                )
            )
            return made

    return Recorder()  # type: ignore[no-untyped-call]


def _shown(func: Any, given: "Sequence[Tensor]") -> Operator:
    return Operator(
        name=func.name().partition(".")[0],
        shapes=tuple(tuple(tensor.shape) for tensor in given),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in given),
    )


def _sight(
    place: RowPlace, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any
) -> dict[str, Any]:
    """Return what an attention, whole or by its softmax, lets the row see."""
    name = base_name(func)
    if name == "scaled_dot_product_attention" and args[0].shape[-2] == args[1].shape[-2]:
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        is_causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
        seen = attends(args[0], mask, is_causal=is_causal).expand(len(args[0]), -1, -1, -1)
        return {"sees": place.own(seen), "sees_others": lets_through(place.outside(seen))}
    weights = place.outside(made) if "softmax" in name else None
    return {"sees": None, "sees_others": weights is not None and bool(weights.any())}


def _small(tensor: "Tensor") -> "Tensor | None":
    return tensor.clone() if tensor.numel() <= _SMALL else None


class OperatorPair(NamedTuple):
    """The same call in both batches."""

    left: OperatorCall
    """In the left."""
    right: OperatorCall
    """In the right."""

    @property
    def sees_differ(self) -> bool:
        """Whether an attention lets the row see other tokens in one than in the other."""
        same_own = _same([self.left.sees], [self.right.sees])
        return self.left.sees_others != self.right.sees_others or not same_own

    @property
    def same_choices(self) -> bool:
        """Whether no integers of the row that go in differ."""
        return _same(_integers(self.left.inputs), _integers(self.right.inputs))

    @property
    def same_inputs(self) -> bool:
        """Whether no values of the row that go in differ."""
        return _same(self.left.inputs, self.right.inputs)

    @property
    def same_shared(self) -> bool:
        """Whether no small tensor that goes in, and holds no values of one row, differs."""
        return _same(self.left.shared, self.right.shared)


def first_difference(
    left: Sequence[OperatorCall], right: Sequence[OperatorCall]
) -> OperatorPair | None:
    """Return the first operator of one name on both sides whose result for the row differs.

    Integers are passed over: a column's index moves with the padding, and rightly so.
    """
    names = [call.name for call in left], [call.name for call in right]
    blocks = SequenceMatcher(None, *names, autojunk=False).get_matching_blocks()
    pairs = (OperatorPair(left[a + n], right[b + n]) for a, b, size in blocks for n in range(size))
    return next((p for p in pairs if not _same(_values(p.left), _values(p.right))), None)


def _values(call: OperatorCall) -> "list[Tensor | None]":
    return [t if t is not None and t.is_floating_point() else None for t in call.outputs]


def _integers(values: "Sequence[Tensor | None]") -> "list[Tensor | None]":
    return [t if t is not None and not t.is_floating_point() else None for t in values]


def _same(left: "Sequence[Tensor | None]", right: "Sequence[Tensor | None]") -> bool:
    both = zip(left, right, strict=False)
    return all(same_bits(a, b) for a, b in both if a is not None and b is not None and alike(a, b))
