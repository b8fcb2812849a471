"""The trees of the operator that differs, named at both shapes from a probe."""

import pytest

from calibrate.parted_trees import parted_trees
from harness.orders.fingerprint import BatchOrders, BatchShape, OrderProbe, Orders, PlacedTree, Rung
from harness.orders.tree import SummationTree, tree_of
from harness.verifiers.divergence import Cause, Operator, Parting

IN_TURN, IN_PAIRS = tree_of([[[0, 1], 2], 3]), tree_of([[0, 1], [2, 3]])
LINEAR = Operator(name="aten::linear", shapes=((1, 4), (8, 4)), dtypes=("float32", "float32"))
NAME = "linear float32 in=4 out=8 bias"


def parting(operator: Operator) -> Parting:
    return Parting(
        module="m",
        kind="Linear",
        origin="m",
        cause=Cause.ORDER,
        differing_inputs=(),
        left=operator,
        right=operator,
    )


def probed(left: SummationTree, right: SummationTree, name: str = NAME) -> OrderProbe:
    batches = tuple(
        BatchOrders(
            batch=BatchShape(rows=rows, width=5),
            rungs={
                name: Rung(size=rows, trees=(PlacedTree(places="all", tree=tree.digest),)),
                "linear float32 in=8 out=4": Rung(size=rows, refused="no order"),
            },
            observed="",
        )
        for rows, tree in ((1, left), (12, right))
    )
    return OrderProbe(
        orders=Orders(classes=(), unmeasured=()),
        seconds=0.0,
        batches=batches,
        trees={tree.digest: tree for tree in (left, right)},
        cached=None,
    )


def test_two_trees_are_named_with_their_sizes_and_digests() -> None:
    lines = parted_trees(probed(IN_TURN, IN_PAIRS), parting(LINEAR))
    short = IN_TURN.digest.rpartition(":")[2][:12]
    assert lines[0] == f"  left  adds: {NAME} at 1: sequential {short}"
    assert lines[1].startswith(f"  right adds: {NAME} at 12: pairwise ")
    assert len(lines) == 2


def test_equal_trees_say_that_the_difference_is_elsewhere() -> None:
    (*_, last) = parted_trees(probed(IN_TURN, IN_TURN), parting(LINEAR))
    assert last == "  the same trees at both shapes: what differs is in a sum that no probe reaches"


def test_one_pattern_over_more_terms_is_said() -> None:
    longer = tree_of([[[[0, 1], 2], 3], 4])
    (*_, last) = parted_trees(probed(IN_TURN, longer), parting(LINEAR))
    assert last == "  one pattern over other numbers of terms: padding's terms are in it"


@pytest.mark.parametrize(
    "name", ["linear float32 in=4 out=9", "linear bfloat16 in=4 out=8", "mean float32 terms=4"]
)
def test_another_class_is_not_taken_for_the_operators(name: str) -> None:
    lines = parted_trees(probed(IN_TURN, IN_PAIRS, name), parting(LINEAR))
    assert lines == ("no summation tree was measured for aten::linear",)
