"""Attention, each row of a batch alone: no padding, and no neighbour, is in the call.

A row keeps the keys that any of its queries attends to. The call is then the one that the row would
make by itself: other lengths, padded widths and padding sides give the same operands. The mask is
handed on in one form for equal content: causal, none, or as it is.

What is computed does not change. A mask that lets a query see padding keeps that padding in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.conditions.operators import uncovered

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["attends", "row_attention"]


def row_attention(  # noqa: PLR0913, PLR0917 - the operator's own
    func: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    mask: "Tensor | None" = None,
    dropout: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    **options: Any,
) -> "Tensor":
    """Run `func`, ``aten::scaled_dot_product_attention``, once for each row of the batch.

    A query at a place that no query attends to is padding; its result is that of the whole batch.
    Raises UnsupportedConditionError for dropout and for keys that are not the queries' own tokens.
    """
    operands = (query, key, value)
    if dropout or key.shape[-2] != query.shape[-2]:
        raise uncovered(func, operands, "dropout, or a cache of keys: neither is of a scoring pass")
    sees = attends(query, mask, is_causal=is_causal)
    sees_bhqk = sees.expand(query.shape[0], *sees.shape[1:])
    kept_bk = sees_bhqk.any(dim=(1, 2))
    if kept_bk.all():
        made = query.new_empty(*query.shape[:-1], value.shape[-1])
    else:
        made = func(*operands, mask, dropout, is_causal, **options).clone()
    for at, kept in enumerate(kept_bk):
        own = [operand[at : at + 1, :, kept].contiguous() for operand in operands]
        seen = sees_bhqk[at : at + 1, :, kept][..., kept]
        bias = _own_bias(mask, at, kept)
        made[at, :, kept] = func(*own, *_mask_arguments(seen, bias), **options)[0]
    return made


def attends(query: "Tensor", mask: "Tensor | None", *, is_causal: bool) -> "Tensor":
    """Return which query attends to which key, ``[batch or 1, heads or 1, queries, keys]``.

    Of a self-attention: `query` is ``[batch, heads, queries, dims]``, and there are as many keys.
    """
    import torch  # noqa: PLC0415 - torch only where it is needed

    length = query.shape[-2]
    all_qk = torch.ones(length, length, dtype=torch.bool, device=query.device)
    rest = all_qk.tril() if is_causal else all_qk
    if mask is None:
        return rest[None, None]
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen[(None,) * (4 - seen.dim())].expand(-1, -1, length, length) & rest


def _own_bias(mask: "Tensor | None", at: int, kept: "Tensor") -> "Tensor | None":
    """Return what a row's mask adds to its scores, if it is more than seen or not seen."""
    import torch  # noqa: PLC0415

    if mask is None or mask.dtype == torch.bool:
        return None
    full = mask[(None,) * (4 - mask.dim())].expand(-1, -1, len(kept), len(kept))
    own = full[at if len(full) > 1 else 0][None, :, kept][..., kept].contiguous()
    is_plain = ((own == 0) | (own <= torch.finfo(own.dtype).min / 2)).all()
    return None if is_plain else own


def _mask_arguments(seen: "Tensor", bias: "Tensor | None") -> Sequence[Any]:
    """Return mask, dropout and whether it is causal, in the one form of their content."""
    if bias is not None:
        return bias, 0.0, False
    if seen.equal(seen.new_ones(seen.shape).tril()):
        return None, 0.0, True
    return None if seen.all() else seen.contiguous(), 0.0, False
