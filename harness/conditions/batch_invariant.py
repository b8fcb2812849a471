"""Batch-invariant order: sums that no neighbour, padded width or padding side can change.

`batch_invariant` puts a model's every operator under the rules of `fixed_order`. On CUDA with vLLM
installed the products, softmaxes and means are vLLM's batch-invariant kernels; attention and norms,
which those leave alone, still go by the rules. Without vLLM, and on a CPU, all of it is
``fixed_order``. What is not covered is refused by name when the model first runs.

Rules kept here: the model's own code runs, only its operators are taken; everything is restored in
``finally``; a second use at the same time is refused.

What it does not know: whether vLLM's kernels keep their promise on the device at hand. No CUDA
device has run this code: the choice of vLLM, its names and its undoing are tested with a stand-in
module. The calibration's guard `invariance` shows, on any device, whether it holds.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.conditions.fixed_order import FixedOrder
from harness.errors import UnsupportedConditionError
from harness.records.verifier import Device

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FIXED_ORDER", "EnclosedForward", "batch_invariant"]

FIXED_ORDER = "fixed_order"
"""The implementation that is in this package."""

VLLM_MODULES = (
    "vllm.model_executor.layers.batch_invariant",
    "vllm.model_executor.layers.quantization.utils.batch_invariant",
)
"""Where vLLM has had its operators."""

VLLM_KERNELS = frozenset(
    {"linear", "mm", "addmm", "softmax", "_softmax", "log_softmax", "_log_softmax", "mean"}
)
"""The operators that vLLM replaces, or keeps to one order by its settings, and that are used."""

VLLM_VARIABLE = "VLLM_BATCH_INVARIANT"


@contextmanager
def batch_invariant(model: "nn.Module", device: Device = Device.CPU) -> Iterator[str]:
    """Keep every sum of `model` in one order; restore in ``finally``.

    Yields the implementation: ``fixed_order``, or ``vllm X.Y``. Raises UnsupportedConditionError,
    with nothing changed, where a part of the model has a forward of its own (a nested use, an
    adapter, another library's hook), or vLLM is installed and its operators are not found; and from
    the model's forward, for an operator that it cannot cover.
    """
    entries = _entries(model)
    with ExitStack() as stack:
        name, kernels = FIXED_ORDER, frozenset[str]()
        if device is Device.CUDA and find_spec("vllm") is not None:
            name, kernels = stack.enter_context(_vllm_operators()), VLLM_KERNELS
        order = FixedOrder(model, kernels)
        for entry in entries:
            stack.callback(entry.__dict__.pop, "forward", None)
            entry.__dict__["forward"] = EnclosedForward(entry.forward, order)
        yield name


class EnclosedForward:
    """A module's forward under the dispatch mode, unless an outer one is under it already."""

    def __init__(self, inner: Callable[..., Any], order: FixedOrder) -> None:
        """Enclose `inner`, which may be replaced by what is to run under the mode in its place."""
        update_wrapper(self, inner)
        self.inner, self._order = inner, order

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward."""
        if self._order.is_running:
            return self.inner(*args, **kwargs)
        with self._order.running():
            return self.inner(*args, **kwargs)


def _entries(model: "nn.Module") -> list["nn.Module"]:
    """Return what may be called from outside: the model and its direct parts."""
    entries = [model, *model.children()]
    for name, module in model.named_modules():
        if "forward" in module.__dict__:
            raise UnsupportedConditionError(
                f"batch_invariant: {name or 'the model'} has a forward of its own: nested use, an "
                "adapter, or another library's hook; remove it first"
            )
    return entries


@contextmanager
def _vllm_operators() -> Iterator[str]:
    """Put vLLM's batch-invariant operators in torch's place; yield ``vllm X.Y``."""
    module = _vllm_module()
    variable = os.environ.get(VLLM_VARIABLE)
    bmm = import_module("torch").bmm
    os.environ[VLLM_VARIABLE] = "1"  # its compiled kernels look there as well
    try:
        module.enable_batch_invariant_mode()
        if not getattr(module, "_batch_invariant_MODE", True):
            raise UnsupportedConditionError("vllm: its batch-invariant mode does not come on")
        yield f"vllm {_vllm_version()}"
    finally:
        _undo(module, variable, bmm)


def _vllm_module() -> ModuleType:
    for name in VLLM_MODULES:
        try:
            module = import_module(name)
        except ImportError:
            continue
        if hasattr(module, "enable_batch_invariant_mode"):
            return module
    raise UnsupportedConditionError(
        f"batch_invariant: vllm {_vllm_version()} has its batch-invariant operators at none of the "
        f"known places ({', '.join(VLLM_MODULES)}); use another vllm, or uninstall it to have "
        "fixed_order"
    )


def _vllm_version() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return str(getattr(import_module("vllm"), "__version__", "of unknown version"))


def _undo(module: ModuleType, variable: str | None, bmm: Any) -> None:
    """Take vLLM's operators out again; it has no call for that in its newer releases."""
    if hasattr(module, "disable_batch_invariant_mode"):
        module.disable_batch_invariant_mode()
    else:
        library = getattr(module, "_batch_invariant_LIB", None)
        if library is not None:
            library._destroy()  # noqa: SLF001 - torch has no public one
        module._batch_invariant_LIB = None  # type: ignore[attr-defined]  # noqa: SLF001
        module._batch_invariant_MODE = False  # type: ignore[attr-defined]  # noqa: SLF001
    import_module("torch").bmm = bmm  # type: ignore[attr-defined]
    if variable is None:
        os.environ.pop(VLLM_VARIABLE, None)
    else:
        os.environ[VLLM_VARIABLE] = variable
