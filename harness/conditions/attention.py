"""Attention kernels: which one is asked for, and which one really ran.

What torch's switches allow and what its dispatcher then picks are two facts: a mask, a head size or
a dtype may rule a kernel out. So the kernel is observed as it is dispatched. Watching costs Python
time per operator and is meant for a first batch, not for every one; it changes no bit.

What it does not know: kernels that a model calls past torch's dispatcher (a compiled extension,
FlexAttention), and what other shapes than the observed ones would dispatch to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from harness.errors import UnsupportedConditionError
from harness.records.switches import SwitchValues
from harness.records.verifier import Device

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Attention", "attention_kernels", "attention_switches", "attn_implementation"]


class Attention(StrEnum):
    """The attention kernel that a condition asks for."""

    AUTO = "auto"
    """torch's own choice among all its kernels."""
    SDPA = "sdpa"
    """The same, said outright."""
    EAGER = "eager"
    """The model's own code: matmul, softmax, matmul."""
    MATH = "math"
    """torch's composite of matmul, softmax, matmul; half types are computed in float32."""
    FLASH = "flash"
    """The fused flash kernel of the device, and no other."""
    MEM_EFFICIENT = "mem_efficient"
    """The fused memory-efficient kernel, and no other; CUDA only."""
    CUDNN = "cudnn"
    """cuDNN's fused kernel, and no other; CUDA only."""


KERNELS = {
    Device.CPU: (Attention.FLASH, Attention.MATH),
    Device.CUDA: (Attention.FLASH, Attention.MEM_EFFICIENT, Attention.CUDNN, Attention.MATH),
}
"""The kernels that torch can choose among on a device, each with a switch ``sdpa.<name>``."""

OBSERVED = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "mem_efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_safe_softmax": "math",  # what the composite dissolves into outside inference mode
}
"""Operator -> the short name of the kernel that its appearance proves."""

SOFTMAX = frozenset({"aten::softmax", "aten::_softmax"})
"""A softmax over ``[batch, heads, queries, keys]`` outside those operators: the model's own."""


def attn_implementation(attention: Attention) -> str:
    """Return the name under which transformers knows the code path."""
    return "eager" if attention is Attention.EAGER else "sdpa"


def attention_switches(attention: Attention, device: Device) -> SwitchValues:
    """Return the kernel toggles: all on for torch's own choice, else one on and the rest off.

    With the rest off a call that the kernel cannot serve fails instead of falling back in silence.
    """
    if attention is Attention.EAGER:
        return {}
    kernels = KERNELS[device]
    if attention in {Attention.AUTO, Attention.SDPA}:
        return {f"sdpa.{kernel}": True for kernel in kernels}
    if attention not in kernels:
        raise UnsupportedConditionError(
            f"attention {attention} does not exist on {device}; choose from: auto, sdpa, eager, "
            f"{', '.join(kernels)}"
        )
    return {f"sdpa.{kernel}": kernel is attention for kernel in kernels}


@contextmanager
def attention_kernels() -> Iterator[set[str]]:
    """Collect the short names of the attention kernels that run inside.

    Yields a set that fills as they run: ``flash``, ``mem_efficient``, ``cudnn``, ``math`` (torch's
    composite), ``eager`` (a softmax over four dimensions in the model's own code).
    """
    seen: set[str] = set()
    with _observer(seen):
        yield seen


def _observer(seen: set[str]) -> "TorchDispatchMode":
    import torch  # noqa: PLC0415 - torch only where it is needed
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    composite = torch.ops.aten.scaled_dot_product_attention.default

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = _kernel(func.name().partition(".")[0], args)
            if name is not None:
                seen.add(name)
            if func is composite:  # inference mode dispatches it whole
                with self:
                    return func.decompose(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    return Observer()  # type: ignore[no-untyped-call]


def _kernel(operator: str, args: Any) -> str | None:
    if operator in SOFTMAX and args[0].dim() == 4:
        return "eager"
    return OBSERVED.get(operator)
