"""The summation trees of an operator at the shapes of two batches, in words.

Pure: from a probe of both batches. What it does not know: the sums that no probe reaches, such as
the scores and denominators inside a fused attention; equal trees then say so.
"""

from collections.abc import Iterator, Sequence

from harness.orders.fingerprint import BatchOrders, OrderProbe
from harness.orders.patterns import pattern
from harness.verifiers.divergence import Operator, Parting

__all__ = ["parted_trees"]

KINDS = {
    "aten::linear": "linear",
    "aten::mm": "linear",
    "aten::addmm": "linear",
    "aten::mean": "mean",
    "aten::sum": "sum",
    "aten::scaled_dot_product_attention": "attention",
    "aten::softmax": "softmax",
    "aten::logsumexp": "logsumexp",
}
"""Operator -> the kind of its shape class in a probe."""

_DIGEST_CHARS = 12


def parted_trees(found: OrderProbe, parting: Parting) -> tuple[str, ...]:
    """Return a line for each batch with the trees of the first operator that differs, if probed."""
    if parting.left is None or parting.right is None or len(found.batches) != 2:
        return ()
    left, right = found.batches
    sides = list(_trees(found, left, parting.left)), list(_trees(found, right, parting.right))
    if not all(sides):
        return (f"no summation tree was measured for {parting.left.name}",)
    lines = [
        f"  {side} adds: {'; '.join(s)}" for side, s in zip(("left ", "right"), sides, strict=True)
    ]
    if _digests(sides[0]) == _digests(sides[1]):
        unseen = "what differs is in a sum that no probe reaches"
        lines.append(f"  the same trees at both shapes: {unseen}")
    elif _patterns(sides[0]) == _patterns(sides[1]):
        lines.append("  one pattern over other numbers of terms: padding's terms are in it")
    return tuple(lines)


def _trees(found: OrderProbe, batch: BatchOrders, operator: Operator) -> Iterator[str]:
    """Yield ``CLASS at SIZE: pattern (digest)`` for the classes that `operator` may be of."""
    for name, rung in batch.rungs.items():
        if not _is_of(name, operator):
            continue
        for one in rung.trees:
            places = "" if one.places == "all" else f", {one.places}"
            short = one.tree.rpartition(":")[2][:_DIGEST_CHARS]
            yield f"{name} at {rung.size}{places}: {pattern(found.trees[one.tree])} {short}"


def _is_of(name: str, operator: Operator) -> bool:
    kind, dtype, *rest = name.split()
    if kind != KINDS.get(operator.name) or dtype != operator.dtypes[0]:
        return False
    if kind == "linear":
        num_out, num_in = operator.shapes[1]
        return f"in={num_in}" in rest and f"out={num_out}" in rest
    return kind != "attention" or ("mask" in rest) == (len(operator.shapes) > 3)


def _digests(lines: Sequence[str]) -> set[str]:
    return {line.rpartition(" ")[2] for line in lines}


def _patterns(lines: Sequence[str]) -> set[str]:
    return {line.partition(": ")[2].rpartition(" ")[0] for line in lines}
