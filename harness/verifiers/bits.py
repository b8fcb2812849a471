"""Bits: whether two tensors are the same, and how far apart they are.

Equal means the same value with the same sign of zero, or both no number.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Gap", "alike", "equal_values", "gap_between", "same_bits"]


class Gap(NamedTuple):
    """The largest differences between two tensors."""

    absolute: float
    """Infinite where only one side is a number."""
    ulps: float
    """In units in the last place of the larger value; of integers, as they are."""
    relative: float
    """To the largest absolute value in either tensor."""


def alike(left: "Tensor | None", right: "Tensor | None") -> bool:
    """Return whether both are there, with one shape and dtype."""
    if left is None or right is None:
        return False
    return left.shape == right.shape and left.dtype == right.dtype


def equal_values(left: "Tensor", right: "Tensor") -> "Tensor":
    """Return where both are the same value, sign of zero included, or both no number."""
    import torch  # noqa: PLC0415

    if not left.is_floating_point():
        return left == right
    same = (left == right) & (torch.signbit(left) == torch.signbit(right))
    return same | (left.isnan() & right.isnan())


def same_bits(left: "Tensor", right: "Tensor") -> bool:
    """Return whether two tensors that are alike are the same."""
    return bool(equal_values(left, right).all())


def gap_between(left: "Tensor", right: "Tensor") -> Gap:
    """Return the largest differences between two tensors that are alike."""
    differs = ~equal_values(left, right)
    if not differs.any():
        return Gap(0.0, 0.0, 0.0)
    a, b = left.double()[differs], right.double()[differs]
    gaps = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    scale = float(left.double().abs().fmax(right.double().abs()).max())
    ulps = gaps / _ulp(a.abs().fmax(b.abs()), left.dtype)
    return Gap(float(gaps.max()), float(ulps.max()), float(gaps.max()) / (scale or 1.0))


def _ulp(magnitudes: "Tensor", dtype: Any) -> "Tensor":
    """Return the unit in the last place of each value, as float64."""
    import torch  # noqa: PLC0415 - not on the planner's side

    if not dtype.is_floating_point:
        return torch.ones_like(magnitudes)
    kind = torch.finfo(dtype)
    clamped = magnitudes.nan_to_num(nan=kind.max, posinf=kind.max).clamp(kind.tiny, kind.max)
    return kind.eps * torch.exp2(torch.frexp(clamped).exponent.double() - 1)
