"""Alignment: one row's own values out of a tensor of a padded batch.

A tensor's first dimension is the batch's (or 1, for all rows alike), and one or two of the others
are its columns; flattened batches and the few places that a head reads are known too. Only the
row's own tokens are kept, so that the result is the same for any padding, width and slot.

What it does not know: the meaning of a dimension. A tensor of other content whose sizes are those
of the batch is taken for one; both sides of a comparison must then agree in it by chance.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from harness.verifiers.forwards import Reads

__all__ = ["RowPlace", "lets_through"]


class RowPlace(NamedTuple):
    """Where one row stands in a batch."""

    row: int
    """Its slot."""
    start: int
    """Column of its first token."""
    length: int
    """How many tokens it has."""
    num_rows: int
    """Rows of the batch."""
    width: int
    """Columns of the batch."""
    reads: "Reads"
    """The places of all rows that the head reads."""

    @property
    def columns(self) -> slice:
        """The row's own columns."""
        return slice(self.start, self.start + self.length)

    def own(self, tensor: "Tensor") -> "Tensor | None":
        """Return a copy of the row's values; None where the tensor is not of this batch."""
        found = self._find(tensor)
        return None if found is None else found.detach().clone()

    def outside(self, tensor: "Tensor") -> "Tensor | None":
        """Return what the row's own queries have for keys that are not its own tokens.

        Of a tensor ``[batch, heads, queries, keys]``; None for another.
        """
        if tensor.dim() != 4 or tuple(tensor.shape[2:]) != (self.width, self.width):
            return None
        slot = self._slot(tensor)
        if slot is None:
            return None
        own = range(self.start, self.start + self.length)
        others = [column for column in range(self.width) if column not in own]
        return tensor[slot][:, self.columns][..., others]

    def _find(self, tensor: "Tensor") -> "Tensor | None":
        if not tensor.dim():
            return None
        slot = self._slot(tensor)
        if slot is None:
            return self._flattened(tensor)
        row = tensor[slot]
        if row.dim() == 3 and tuple(row.shape[1:]) == (self.width, self.width):
            return row[:, self.columns, self.columns]
        for dim in range(min(row.dim(), 2)):
            if row.shape[dim] == self.width:
                return row.narrow(dim, self.start, self.length)
        return self._read(row) if row.dim() == 2 else row

    def _slot(self, tensor: "Tensor") -> int | None:
        if tensor.shape[0] == self.num_rows:
            return self.row
        return 0 if tensor.shape[0] == 1 and tensor.dim() > 1 else None

    def _flattened(self, tensor: "Tensor") -> "Tensor | None":
        if tensor.shape[0] == self.num_rows * self.width:
            first = self.row * self.width + self.start
            return tensor[first : first + self.length]
        if tensor.shape[0] == len(self.reads.rows):
            return tensor[[at for at, row in enumerate(self.reads.rows) if row == self.row]]
        return None

    def _read(self, row: "Tensor") -> "Tensor | None":
        """Return the row's reads, from one place for each column that any row reads."""
        kept = sorted(set(self.reads.columns))
        if len(row) != len(kept):
            return row if len(row) == 1 else None
        places = zip(self.reads.rows, self.reads.columns, strict=True)
        return row[[kept.index(column) for at, column in places if at == self.row]]


def lets_through(mask: "Tensor | None") -> bool:
    """Return whether any entry of a mask, boolean or additive, lets a query see a key."""
    import torch  # noqa: PLC0415 - not on the planner's side

    if mask is None or not mask.numel():
        return False
    if mask.is_floating_point():
        return bool((mask > torch.finfo(mask.dtype).min / 2).any())
    return bool(mask.any())
