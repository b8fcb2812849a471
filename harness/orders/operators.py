"""The black boxes: torch's operators at a stated shape, seen through masks.

Each puts many probes into one call without changing its shape: a probe is a row of the left
operand, a column of the right one, or a row to be reduced. What a call gives is read at every
place that the same probe reaches (all columns for a row, all rows for a column), so that an order
which differs from place to place is seen. Two views of one operator differ in which operand holds
the masks, and so in which places they compare.

Masks are powers of two, far apart: a unit beside a mask is lost in any accumulator up to float64,
and sums of units are exact in the result. float16 has no room for that: there the accumulator may
have 24 bits at most, and a wider one is refused for counts that fit no tree.

What it does not know: the place of a bias among the terms (it is 0 here); a sum whose terms cannot
cancel, such as a norm's squares within one fused kernel; the scores inside a fused attention
kernel and its denominator; places that were not compared with each other, see `Views`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.orders import fprev, positive

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "Attention",
    "Columns",
    "Denominator",
    "EveryRow",
    "Product",
    "Reduced",
    "Rows",
    "Scale",
    "View",
    "layer_product",
    "scale_of",
]

Masks = NDArray[np.int8]
Read = NDArray[np.float64]


class Scale(NamedTuple):
    """The numbers that stand for a mask and a unit in a dtype."""

    big: float
    """A mask."""
    unit: float
    """A unit."""
    capacity: int
    """Most units whose sum is exact in the result, and lost beside a mask."""
    rounded_capacity: int
    """Most units that can be told after each term and the result were rounded."""

    def values(self, masks: Masks) -> NDArray[np.float64]:
        """Return the terms that `masks` stand for."""
        table = np.zeros(5)
        table[fprev.UNIT], table[fprev.PLUS], table[fprev.MINUS] = self.unit, self.big, -self.big
        return table[masks]


_SCALES = {
    "float64": Scale(2.0**300, 1.0, 2**40, 2**40),
    "float32": Scale(2.0**100, 1.0, 2**20, 2**20),
    "bfloat16": Scale(2.0**100, 1.0, 2**8, 2**4),
    "float16": Scale(2.0**14, 2.0**-19, 2**8, 2**4),
}
_WEIGHTED_FLOAT16 = Scale(2.0**14, 2.0**-14, 2**3, 2**3)
"""Units are divided by the number of terms, and must not be lost for being too small."""


def scale_of(dtype: str) -> Scale:
    """Return the scale of a dtype by torch's name for it."""
    return _SCALES[dtype]


class View(Protocol):
    """An operator at one shape with the masks in one of its operands."""

    num_terms: int
    """Terms of each sum."""
    capacity: int
    """Most units in a probe."""
    per_call: int
    """Probes in one call."""
    products: int
    """Terms that one call adds, over all its results."""
    places: str
    """What the compared places are: ``columns``, ``rows``, ``heads``."""

    def read(self, masks: Masks) -> Read:
        """Return the units counted, `[probes, places]`."""


class Product(NamedTuple):
    """A matrix product ``[groups, m, k] x [groups, k, n]`` to be called with operands of ours."""

    call: Callable[["Tensor", "Tensor"], "Tensor"]
    """Takes ``[groups, m, k]`` and ``[groups, k, n]``; returns ``[groups, m, n]``."""
    groups: int
    """Products side by side, such as heads."""
    m: int
    """Rows of the left operand."""
    n: int
    """Columns of the right one."""
    k: int
    """Terms."""
    dtype: str
    """Of the operands and the result."""
    device: str
    """Where they are."""

    def tensor(self, values: NDArray[np.float64]) -> "Tensor":
        """Return values as an operand."""
        return _tensor(values, self.dtype, self.device)


class _ProductView:
    def __init__(self, product: Product) -> None:
        self._product = product
        self._scale = scale_of(product.dtype)
        self.num_terms, self.capacity = product.k, self._scale.capacity
        self.products = product.groups * product.m * product.n * product.k

    def _read(self, masks: Masks, width: int, call: Callable[["Tensor"], "Tensor"]) -> Read:
        """Put masks as ``[groups, width, k]`` call by call; `call` gives ``[groups, width, e]``."""
        found = []
        for chunk in _chunks(masks, self.per_call):
            filled = np.zeros((self.per_call, self.num_terms))
            filled[: len(chunk)] = self._scale.values(chunk)
            held = filled.reshape(self._product.groups, width, self.num_terms)
            made = _numbers(call(self._product.tensor(held)))
            found.append(made.reshape(self.per_call, -1)[: len(chunk)] / self._scale.unit)
        return np.concatenate(found)

    per_call: int


class Rows(_ProductView):
    """Masks in the rows of the left operand; compared are the result's columns."""

    places = "columns"

    def __init__(self, product: Product) -> None:
        """Begin with ones on the right."""
        super().__init__(product)
        self.per_call = product.groups * product.m
        self._ones = product.tensor(np.ones((product.groups, product.k, product.n)))

    def read(self, masks: Masks) -> Read:
        """Return the units counted, `[probes, columns]`."""
        return self._read(masks, self._product.m, lambda a: self._product.call(a, self._ones))


class Columns(_ProductView):
    """Masks in the columns of the right operand; compared are the result's rows."""

    places = "rows"

    def __init__(self, product: Product) -> None:
        """Begin with ones on the left."""
        super().__init__(product)
        self.per_call = product.groups * product.n
        self._ones = product.tensor(np.ones((product.groups, product.m, product.k)))

    def read(self, masks: Masks) -> Read:
        """Return the units counted, `[probes, rows]`."""

        def call(b: "Tensor") -> "Tensor":
            return self._product.call(self._ones, b.transpose(1, 2)).transpose(1, 2)

        return self._read(masks, self._product.n, call)


@contextmanager
def layer_product(
    layer: "nn.Module", leading: tuple[int, ...], *, is_transposed: bool = False
) -> Iterator[Product]:
    """Give the product that a layer's own forward makes of ``[*leading, in]``.

    Its weight and bias hold our numbers meanwhile and are put back, bit by bit, in ``finally``; the
    forward may have been replaced, by `split_k` say. `is_transposed`: the weight is ``[in, out]``.
    """
    import torch  # noqa: PLC0415 - not on the planner's side

    parameters = [parameter for _, parameter in layer.named_parameters(recurse=False)]
    kept = [parameter.detach().clone() for parameter in parameters]
    weight: Any = layer.weight
    n, k = weight.shape[::-1] if is_transposed else weight.shape
    held: list[Any] = [None]

    def call(a: "Tensor", b: "Tensor") -> "Tensor":
        if held[0] is not b:
            weight.copy_(b[0] if is_transposed else b[0].transpose(0, 1))
            held[0] = b
        made: Tensor = layer(a.reshape(*leading, k))
        return made.reshape(1, -1, n)

    try:
        with torch.no_grad():
            for parameter in parameters:
                parameter.zero_()
            m = int(np.prod(leading))
            dtype = str(weight.dtype).removeprefix("torch.")
            yield Product(call, 1, m, int(n), int(k), dtype, str(weight.device))
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


_PRODUCTS_A_TERM = 16
"""What a term of a reduction, fresh from memory, costs in products of a matrix multiplication."""


class Reduced:
    """A sum or mean over the last dimension of ``[1, rows, terms]``, a probe a row."""

    places = "results"

    def __init__(  # noqa: PLR0913 - a shape
        self,
        call: Callable[["Tensor"], "Tensor"],
        rows: int,
        num_terms: int,
        dtype: str,
        device: str,
        *,
        divisor: int = 1,
    ) -> None:
        """`call` reduces; what it gives is multiplied by `divisor`, which a mean divides by."""
        self._call, self._rows, self._dtype, self._device = call, rows, dtype, device
        self._scale, self._divisor = scale_of(dtype), divisor
        exact = divisor & (divisor - 1) == 0 and dtype != "float16"
        self.num_terms = num_terms
        self.capacity = self._scale.capacity if exact else self._scale.rounded_capacity
        self.per_call, self.products = rows, rows * num_terms * _PRODUCTS_A_TERM

    def read(self, masks: Masks) -> Read:
        """Return the units counted, `[probes, 1]`."""
        found = []
        for chunk in _chunks(masks, self._rows):
            filled = np.zeros((1, self._rows, self.num_terms))
            filled[0, : len(chunk)] = self._scale.values(chunk)
            found.append(self._counts(filled)[: len(chunk), None])
        return np.concatenate(found)

    def _counts(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        made = _numbers(self._call(_tensor(terms, self._dtype, self._device)))
        return made.reshape(-1) * (self._divisor / self._scale.unit)


class EveryRow(Reduced):
    """The same with one probe in every row; compared are the rows."""

    places = "rows"

    def read(self, masks: Masks) -> Read:
        """Return the units counted, `[probes, rows]`."""
        self.per_call = 1
        terms = self._scale.values(masks)
        return np.stack([self._counts(np.tile(one, (1, self._rows, 1))) for one in terms])


class Attention:
    """The sum of values over keys in one call of torch's attention, seen at the last query.

    All scores are 0, so every key has weight 1 (or 1 / keys); masks stand in the values.
    """

    places = "heads"

    def __init__(  # noqa: PLR0913 - a shape
        self,
        call: Callable[["Tensor", "Tensor", "Tensor"], "Tensor"],
        *,
        rows: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        length: int,
        dtype: str,
        device: str,
    ) -> None:
        """`call` takes q, k, v ``[rows, heads, length, head_dim]`` and attends."""
        self._call, self._dtype, self._device = call, dtype, device
        self._queries = np.zeros((rows, heads, length, head_dim))
        self._keys = np.zeros((rows, kv_heads, length, head_dim))
        exact = length & (length - 1) == 0
        self._scale = _WEIGHTED_FLOAT16 if dtype == "float16" else scale_of(dtype)
        self.num_terms = length
        self.capacity = self._scale.capacity if exact else self._scale.rounded_capacity
        self.per_call = rows * kv_heads * head_dim
        self.products = rows * heads * length * length * head_dim

    def read(self, masks: Masks) -> Read:
        """Return the units counted, `[probes, query heads of a group]`."""
        rows, kv_heads, length, head_dim = self._keys.shape
        heads = self._queries.shape[1]
        q, k = self._tensor(self._queries), self._tensor(self._keys)
        found = []
        for chunk in _chunks(masks, self.per_call):
            filled = np.zeros((self.per_call, length))
            filled[: len(chunk)] = self._scale.values(chunk)
            by_head = filled.reshape(rows, kv_heads, head_dim, length)
            made = _numbers(self._call(q, k, self._tensor(by_head.transpose(0, 1, 3, 2))))
            last = made[:, :, -1].reshape(rows, kv_heads, heads // kv_heads, head_dim)
            counted = last.transpose(0, 1, 3, 2).reshape(self.per_call, -1)
            found.append(counted[: len(chunk)] * (length / self._scale.unit))
        return np.concatenate(found)

    def _tensor(self, values: NDArray[np.float64]) -> "Tensor":
        return _tensor(values, self._dtype, self._device)


class Denominator:
    """The sum of exponentials in a softmax or logsumexp over the last dimension.

    See `harness.orders.positive.GrainBox`. A grain is exp(x) for an x that both bfloat16 and
    float32 hold, about 0.4 of the last place of 1 in the dtype of the result.
    """

    _GRAINS = {"float32": -16.875, "float64": -37.0}

    def __init__(
        self,
        call: Callable[["Tensor"], "Tensor"],
        shape: Sequence[int],
        *,
        dtype: str,
        result: str,
        device: str,
    ) -> None:
        """`call` takes ``[*shape]`` of `dtype`, gives `result`, whose width the sum has.

        Raises UnfitOperatorError for a result too narrow to show that a grain was added.
        """
        if result not in self._GRAINS:
            message = f"a result in {result} cannot show whether one grain was added to 1"
            raise fprev.UnfitOperatorError(message)
        self._call, self._shape, self._dtype, self._device = call, tuple(shape), dtype, device
        self.num_terms = self._shape[-1]
        self._rows = int(np.prod(self._shape[:-1]))
        self._values = np.array([-np.inf, self._GRAINS[result], 0.0])

    def __call__(self, masks: Masks) -> NDArray[np.bool_]:
        """Return whether the grains of each probe were counted, `[probes]`."""
        found = []
        for chunk in _chunks(masks, self._rows):
            codes = np.full((self._rows, self.num_terms), positive.ABSENT, dtype=np.int8)
            codes[:, 0] = positive.ONE
            codes[: len(chunk)] = chunk
            terms = self._values[codes].reshape(self._shape)
            made = _numbers(self._call(_tensor(terms, self._dtype, self._device)))
            alone = made.reshape(self._rows, -1)
            if alone.shape[1] > 1:  # a softmax: what the 1 has become
                ones = (codes == positive.ONE).argmax(axis=1)
                found.append((alone[np.arange(self._rows), ones] < 1.0)[: len(chunk)])
            else:
                found.append((alone[:, 0] > 0.0)[: len(chunk)])
        return np.concatenate(found)


def _chunks(masks: Masks, size: int) -> Iterator[Masks]:
    for start in range(0, len(masks), size):
        yield masks[start : start + size]


def _tensor(values: NDArray[np.float64], dtype: str, device: str) -> "Tensor":
    import torch  # noqa: PLC0415 - not on the planner's side

    contiguous = np.ascontiguousarray(values)
    return torch.from_numpy(contiguous).to(getattr(torch, dtype)).to(device)


def _numbers(tensor: "Tensor") -> NDArray[np.float64]:
    import torch  # noqa: PLC0415 - not on the planner's side

    found: NDArray[np.float64] = tensor.detach().to(torch.float64).cpu().numpy()
    return found
