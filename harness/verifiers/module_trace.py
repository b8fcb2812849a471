"""Module calls of a forward, cut to one row, and pairs of them from two batches."""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.conditions.operators import tensors
from harness.verifiers.alignment import RowPlace, lets_through
from harness.verifiers.bits import alike, equal_values, gap_between, same_bits
from harness.verifiers.divergence import ModuleGrowth

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModuleCall", "ModulePair", "module_calls", "named_modules"]


@dataclass
class ModuleCall:
    """One call of a module, cut to the row."""

    name: str
    """The module's name, with ``#2`` behind it when it is called a second time."""
    kind: str
    """Its class."""
    parent: str
    """The call inside which it runs; empty for none."""
    inputs: "dict[str, Tensor | None]" = field(default_factory=dict)
    """Argument -> the row's values in it; None where it has none."""
    sees_others: bool = False
    """Whether a mask among the arguments lets the row see tokens that are not its own."""
    outputs: "list[Tensor | None]" = field(default_factory=list)
    """The row's values in each tensor that it returns."""


class ModulePair:
    """The same call in both batches."""

    def __init__(self, left: ModuleCall, right: ModuleCall) -> None:
        """Take two calls of one name."""
        self.left, self.right, self.name = left, right, left.name
        both = zip(left.outputs, right.outputs, strict=False)
        self.outputs = [(a, b) for a, b in both if a is not None and b is not None and alike(a, b)]

    @property
    def same_output(self) -> bool:
        """Whether no output that can be compared differs."""
        return all(same_bits(a, b) for a, b in self.outputs)

    def differing_inputs(self) -> tuple[str, ...]:
        """Return the arguments that differ; a mask also when it shows the row other tokens."""
        left, right = self.left.inputs, self.right.inputs
        names = [name for name in left | right if _differs(name, left.get(name), right.get(name))]
        if self.left.sees_others != self.right.sees_others:
            names.extend(name for name in left | right if "mask" in name and name not in names)
        return tuple(names)

    def is_integer(self, name: str) -> bool:
        """Return whether the argument `name` holds integers."""
        value = self.left.inputs.get(name)
        return value is not None and not value.is_floating_point()

    def holds(self, name: str, values: "Sequence[Tensor | None]") -> bool:
        """Return whether the argument `name` is one of `values`, on either side."""
        given = [call.inputs.get(name) for call in (self.left, self.right)]
        both = [(a, b) for a in given for b in values if a is not None and b is not None]
        return any(alike(a, b) and same_bits(a, b) for a, b in both)

    def growth(self) -> ModuleGrowth:
        """Return how far the outputs differ."""
        gaps = [gap_between(a, b) for a, b in self.outputs]
        return ModuleGrowth(
            module=self.name,
            kind=self.left.kind,
            num_values=sum(a.numel() for a, _ in self.outputs),
            num_different=sum(int((~equal_values(a, b)).sum()) for a, b in self.outputs),
            max_difference=max(gap.absolute for gap in gaps),
            max_ulps=max(gap.ulps for gap in gaps),
            max_relative=max(gap.relative for gap in gaps),
        )


@contextmanager
def module_calls(model: Any, place: RowPlace, calls: list[ModuleCall]) -> Iterator[None]:
    """Record every module call of `model` in `calls`, in the order in which they end."""
    counts: Counter[str] = Counter()
    running: list[ModuleCall] = []

    def enter(name: str, module: Any, args: Any, kwargs: Any) -> None:
        counts[name] += 1
        numbered = name if counts[name] == 1 else f"{name}#{counts[name]}"
        parent = running[-1].name if running else ""
        call = ModuleCall(name=numbered, kind=type(module).__name__, parent=parent)
        for argument, value in _named(module, args, kwargs).items():
            call.inputs[argument] = place.own(value)
            call.sees_others |= "mask" in argument and lets_through(place.outside(value))
        running.append(call)

    def leave(output: Any) -> None:
        call = running.pop()
        call.outputs = [place.own(tensor) for tensor in _flat_tensors(output)]
        calls.append(call)

    with ExitStack() as stack:
        for name, module in named_modules(model).items():
            hook = module.register_forward_pre_hook(
                lambda m, args, kwargs, n=name: enter(n, m, args, kwargs), with_kwargs=True
            )
            stack.callback(hook.remove)
            stack.callback(module.register_forward_hook(lambda _m, _a, out: leave(out)).remove)
        yield


def named_modules(model: Any) -> dict[str, Any]:
    """Return the modules by name, the whole model under its class's."""
    return {name or type(model).__name__: module for name, module in model.named_modules()}


def _named(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "dict[str, Tensor]":
    """Return a call's tensors by the names of their arguments."""
    bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    named: dict[str, Tensor] = {}
    for name, value in bound.items():
        inner = value.items() if isinstance(value, dict) else [(name, value)]
        for key, part in inner:
            found = list(_flat_tensors(part))
            named |= {key if len(found) == 1 else f"{key}[{n}]": t for n, t in enumerate(found)}
    return named


def _flat_tensors(value: Any) -> "Iterator[Tensor]":
    """Yield the tensors of a module's argument or output, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    yield from tensors([value])


def _differs(name: str, left: "Tensor | None", right: "Tensor | None") -> bool:
    """Return whether an input differs; an absent mask hides nothing, or what is later."""
    if left is None or right is None:
        only = left if right is None else right
        return "mask" in name and only is not None and not _is_trivial(only)
    return alike(left, right) and not same_bits(left, right)


def _is_trivial(mask: "Tensor") -> bool:
    import torch  # noqa: PLC0415

    seen = mask if mask.dtype == torch.bool else mask == (0 if mask.is_floating_point() else 1)
    return bool(seen.all()) or bool((seen == torch.ones_like(seen).tril()).all())
