"""A padded batch as a model takes it: token ids, mask, position ids, each ``[rows, width]``.

In a batch of a set shape every row is shorter than the batch is wide: with a mask there is always
something to mask, so that a library never drops it, and takes another kernel, when rows happen to
be full. A causal model that is padded on the right needs none: nothing looks at what comes later.

Position ids count a row's own tokens from the model's first position, so they are the same for
either padding side and for any width. Padding repeats a position that the row has: a width beyond
the model's context is no error as long as the rows fit.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from harness.records.batching import PaddingSide
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["filled_up", "first_columns", "first_position", "padded_inputs", "padding_id"]


def filled_up(
    rows: Sequence[EncodedRow], width: int, num_rows: int, padding: int
) -> list[EncodedRow]:
    """Return `rows` and as many inert rows as are missing for `num_rows`.

    An inert row is one token of padding that is attended to: a row of which all is masked would be
    NaN. Raises ValueError for a row that leaves no column of padding, or for too many rows.
    """
    longest = max(len(row.token_ids) for row in rows)
    if longest >= width or len(rows) > num_rows:
        found = f"{len(rows)} rows of up to {longest} tokens"
        raise ValueError(f"{found} do not fit {num_rows} rows of fewer than {width}")
    inert = EncodedRow(token_ids=(padding,), branch_start=0, branch_end=1)
    return [*rows, *[inert] * (num_rows - len(rows))]


def first_columns(rows: Sequence[EncodedRow], width: int, side: PaddingSide | None) -> list[int]:
    """Return the column of each row's first token; raise ValueError when a row does not fit."""
    longest = max(len(row.token_ids) for row in rows)
    if longest > width:
        raise ValueError(f"a row of {longest} tokens does not fit a width of {width}")
    if side is PaddingSide.LEFT:
        return [width - len(row.token_ids) for row in rows]
    return [0] * len(rows)


def padded_inputs(  # noqa: PLR0913 - what a batch is made of
    rows: Sequence[EncodedRow],
    starts: Sequence[int],
    width: int,
    *,
    padding: int,
    first_position: int = 0,
    masked: bool = True,
) -> "dict[str, Tensor]":
    """Return the arguments of a model's forward, on the CPU; not `masked`: padding is seen."""
    import torch  # noqa: PLC0415 - not on the planner's side

    lengths_r1 = torch.tensor([[len(row.token_ids)] for row in rows])
    offsets_rw = torch.arange(width) - torch.tensor(starts)[:, None]
    is_token_rw = (offsets_rw >= 0) & (offsets_rw < lengths_r1)
    ids_rw = torch.full((len(rows), width), padding)
    ids_rw[is_token_rw] = torch.tensor([*chain.from_iterable(row.token_ids for row in rows)])
    positions_rw = torch.minimum(offsets_rw.clamp(min=0), lengths_r1 - 1)
    return {
        "input_ids": ids_rw,
        "attention_mask": is_token_rw.long() if masked else torch.ones_like(ids_rw),
        "position_ids": positions_rw + first_position,
    }


def padding_id(tokenizer: Any, model: Any) -> int:
    """Return any valid id: padding is masked, and nothing is found by its id."""
    own = getattr(model.config, "pad_token_id", None)
    candidates = (tokenizer.pad_token_id, own, tokenizer.eos_token_id, 0)
    return next(int(found) for found in candidates if found is not None)


def first_position(model: Any) -> int:
    """Return the first position id: 0, but padding index + 1 in the RoBERTa family."""
    embeddings = getattr(model.base_model, "embeddings", None)
    if hasattr(embeddings, "create_position_ids_from_input_ids"):
        return int(getattr(embeddings, "padding_idx", 0)) + 1
    return 0
