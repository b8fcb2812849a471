"""What trees predict of batches, beside what bits show."""

import pytest

from calibrate.config import Arm
from calibrate.orders import disagreements, observed_classes, predicted_classes, probed_rows
from harness.orders.fingerprint import (
    BatchOrders,
    BatchShape,
    OrderProbe,
    Orders,
    PlacedTree,
    Rung,
)
from harness.records.batching import Padded, Solo
from harness.records.invocation import PrecisionName

LINEAR, HEAD = "linear float32 in=8 out=8", "linear float32 in=8 out=1 flat"


def a_batch(rows: int, observed: str, tree: str = "t", **placed: str) -> BatchOrders:
    """Return a batch of width 10: one tree for the layers, the head's by place."""
    head = [PlacedTree(places=p.replace("_", " "), tree=t) for p, t in placed.items()]
    return BatchOrders(
        batch=BatchShape(rows=rows, width=10),
        rungs={
            LINEAR: Rung(size=rows * 10, trees=(PlacedTree(places="all", tree=tree),)),
            HEAD: Rung(size=rows, trees=tuple(head)),
        },
        observed=observed,
    )


def a_probe(*batches: BatchOrders, unmeasured: tuple[str, ...] = ()) -> OrderProbe:
    orders = Orders(classes=(), unmeasured=unmeasured)
    return OrderProbe(orders=orders, seconds=0.0, batches=batches, trees={}, cached=None)


def test_batches_of_equal_trees_and_equal_bits_are_classes() -> None:
    batches = [a_batch(8, "x", "b"), a_batch(1, "y", "a"), a_batch(2, "y", "a")]
    assert predicted_classes(batches) == ((1, 2), (8,))
    assert observed_classes(batches) == ((1, 2), (8,))
    assert disagreements(a_probe(*batches)) == ()


def test_other_trees_and_equal_bits_are_told_with_the_class() -> None:
    (found,) = disagreements(a_probe(a_batch(1, "x", "a"), a_batch(2, "x", "a"), a_batch(3, "x")))
    assert (found.left, found.right, found.predicted_alike) == ((1, 2), (3,), False)
    assert found.reason.startswith(f"other trees in {LINEAR}, and")


def test_equal_trees_and_other_bits_are_told_with_what_was_not_measured() -> None:
    probe = a_probe(a_batch(1, "x"), a_batch(2, "y"), unmeasured=("aten::layer_norm",))
    (found,) = disagreements(probe)
    assert (found.left, found.right, found.predicted_alike) == ((1,), (2,), True)
    assert "aten::layer_norm has no box" in found.reason


def test_a_refused_class_is_named() -> None:
    refused = BatchOrders(
        batch=BatchShape(rows=2, width=10),
        rungs={LINEAR: Rung(size=20, refused="randomised")},
        observed="y",
    )
    alone = BatchOrders(
        batch=BatchShape(rows=1, width=10), rungs={LINEAR: Rung(size=10, refused="r")}, observed="x"
    )
    (found,) = disagreements(a_probe(alone, refused))
    assert f"{LINEAR} was refused (randomised)" in found.reason


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        ({"all": "a"}, {"rows_0": "a", "rows_1": "b"}, True),
        ({"all": "a"}, {"rows_1": "a", "rows_0,2": "b"}, False),
        ({"all": "a"}, {"rows_0-1": "a", "rows_2": "b"}, True),
        ({"all": "a"}, {"columns_0": "a", "columns_1": "b"}, False),
    ],
)
def test_only_the_first_rows_results_count(
    left: dict[str, str],
    right: dict[str, str],
    alike: bool,  # noqa: FBT001 - a column of the table
) -> None:
    classes = predicted_classes([a_batch(1, "x", **left), a_batch(3, "x", **right)])
    assert classes == (((1, 3),) if alike else ((1,), (3,)))


def test_numbers_of_rows_are_those_of_the_sweep_within_the_arm() -> None:
    arm = Arm(precision=PrecisionName.FLOAT32, batching=Padded(max_rows=12))
    assert probed_rows(arm, (3, 12, 32)) == (1, 2, 3, 4, 8, 12)
    solo = Arm(precision=PrecisionName.FLOAT32, batching=Solo())
    assert probed_rows(solo, (3, 32)) == (1, 2, 3, 4, 8, 16)
