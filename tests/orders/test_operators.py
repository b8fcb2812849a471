"""torch's operators as black boxes: known orders are found, found orders give torch's own bits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise as neighbours
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.conditions.split_k import split_k
from harness.orders import operators
from harness.orders.fprev import UnfitOperatorError
from harness.orders.measure import Part, measure
from harness.orders.operators import Columns, Product, Rows, layer_product
from harness.orders.patterns import build, halves, pairwise, pattern, sequential, split
from harness.orders.positive import reveal_positive
from harness.orders.tree import SummationTree
from tests.orders.boxes import add


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def found(parts: tuple[Part, ...]) -> dict[str, SummationTree]:
    return {part.places: part.tree for part in parts}


def by_tree(tree: SummationTree, a: Tensor, b: Tensor) -> Tensor:
    """Multiply, and add by `tree` in float32; the result is in the operands' dtype."""
    terms = (a.float()[:, :, None, :] * b.float().transpose(1, 2)[:, None]).numpy()
    sums = add(tree, terms.reshape(-1, tree.num_terms).astype(np.float64))
    return torch.from_numpy(sums).to(a.dtype).reshape(*a.shape[:2], b.shape[2])


def a_product(
    call: Callable[[Tensor, Tensor], Tensor],
    m: int = 3,
    n: int = 5,
    k: int = 40,
    dtype: str = "float32",
) -> list[operators.View]:
    product = Product(call, 1, m, n, k, dtype, "cpu")
    return [Rows(product), Columns(product)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", [sequential, pairwise, split(4, sequential, sequential)])
def test_an_order_made_by_hand_is_found_in_every_dtype(order: Any, dtype: str) -> None:
    tree = build(300, order)
    assert found(measure(a_product(partial(by_tree, tree), k=300, dtype=dtype))) == {"all": tree}


def test_rows_and_columns_with_orders_of_their_own_are_listed() -> None:
    trees = [build(40, sequential), build(40, pairwise)]

    def by_row(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([by_tree(trees[0], a[:, :2], b), by_tree(trees[1], a[:, 2:], b)], dim=1)

    def by_column(a: Tensor, b: Tensor) -> Tensor:
        return by_row(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2)

    assert found(measure(a_product(by_row))) == {"rows 0-1": trees[0], "rows 2": trees[1]}
    assert found(measure(a_product(by_column))) == {
        "columns 0-1": trees[0],
        "columns 2-4": trees[1],
    }


def test_a_row_that_no_probe_came_to_is_compared_all_the_same() -> None:
    trees = [build(4, sequential), build(4, pairwise)]

    def last_differs(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([by_tree(trees[0], a[:, :-1], b), by_tree(trees[1], a[:, -1:], b)], dim=1)

    parts = found(measure(a_product(last_differs, m=64, n=2, k=4)))
    assert parts == {"rows 0-62": trees[0], "rows 63": trees[1]}


def test_an_order_that_depends_on_row_and_column_is_refused() -> None:
    trees = [build(40, sequential), build(40, pairwise)]

    def call(a: Tensor, b: Tensor) -> Tensor:
        plain, other = (by_tree(tree, a, b) for tree in trees)
        checkers = torch.arange(3)[:, None] + torch.arange(5)[None]
        return torch.where(checkers % 2 == 0, plain, other)

    with pytest.raises(UnfitOperatorError):
        measure(a_product(call))


def test_a_tree_of_another_shape_is_no_substitute() -> None:
    """What is known already is only taken when it is confirmed."""
    tree, other = build(40, sequential), build(40, pairwise)
    views = a_product(partial(by_tree, tree))
    assert found(measure(views, [other, build(12, sequential)])) == {"all": tree}
    assert found(measure(views, [other, tree])) == {"all": tree}


def test_a_randomised_sum_is_refused() -> None:
    rng = np.random.default_rng(1)

    def call(a: Tensor, b: Tensor) -> Tensor:
        order = torch.from_numpy(rng.permutation(40))
        return by_tree(build(40, sequential), a[..., order], b[:, order])

    with pytest.raises(UnfitOperatorError):
        measure(a_product(call))


def test_an_accumulator_that_saturates_is_refused() -> None:
    """One of 8 bits, summing what its result could count."""

    def call(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(1, 3, 5, dtype=torch.bfloat16)
        for at in range(a.shape[2]):
            total = total + (a[:, :, at, None] * b[:, None, at]).bfloat16()
        return total.float()

    with pytest.raises(UnfitOperatorError, match="400 units alone are not counted"):
        measure(a_product(call, k=400))


@pytest.mark.parametrize("m", [1, 2, 4, 17, 64])
@pytest.mark.parametrize("k", [96, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tree_of_a_real_layer_gives_the_layers_bits(dtype: str, m: int, k: int) -> None:
    """Terms are taken so that products are exact: what rounds is the additions alone."""
    layer = nn.Linear(k, 24, dtype=getattr(torch, dtype))
    with layer_product(layer, (1, m)) as product:
        parts = found(measure([Rows(product), Columns(product)]))
    torch.manual_seed(m + k)
    x = (torch.rand(1, m, k) + 0.01).to(layer.weight.dtype)
    layer.weight.fill_(1.0)
    nn.init.zeros_(layer.bias)
    b = layer.weight.transpose(0, 1)[None]
    assert set(parts) == {"all"}
    assert torch.equal(layer(x), by_tree(parts["all"], x, b))


def test_another_tree_would_not_give_them() -> None:
    """The negative control of the test above: that comparison can fail."""
    torch.manual_seed(0)
    x, b = torch.rand(1, 4, 512) + 0.01, torch.ones(1, 512, 24)
    assert not torch.equal(
        by_tree(build(512, sequential), x, b), by_tree(build(512, pairwise), x, b)
    )


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_split_k_is_seen_in_the_layers_own_forward(parts: int) -> None:
    model = nn.Sequential(nn.Linear(96, 8))
    with layer_product(model[0], (1, 16)) as product:
        plain = found(measure([Rows(product), Columns(product)]))["all"]
    with split_k(model, parts), layer_product(model[0], (1, 16)) as product:
        tree = found(measure([Rows(product), Columns(product)]))["all"]
    edges = [part * 96 // parts for part in range(parts + 1)]
    roots = [tree.below(at) for at in range(96, len(tree.sizes))]
    for first, last in neighbours(edges):
        assert any(terms == tuple(range(first, last)) for _, terms in roots)
    assert tree != plain


def test_a_layer_is_put_back_bit_by_bit_whatever_happens() -> None:
    layer = nn.Linear(12, 5)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(UnfitOperatorError), layer_product(layer, (2, 3)) as product:  # noqa: PT012
        measure([Rows(product)])
        assert not torch.equal(layer.weight, before["weight"])
        measure([Rows(product._replace(call=lambda a, b: a @ b * torch.nan))])
    after = layer.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("terms", [48, 192])
def test_the_tree_of_a_real_mean_gives_its_bits(rows: int, terms: int) -> None:
    call = partial(torch.mean, dim=-1, keepdim=True)
    arguments: Any = (call, rows, terms, "float32", "cpu")
    views = [
        operators.Reduced(*arguments, divisor=terms),
        operators.EveryRow(*arguments, divisor=terms),
    ]
    tree = found(measure(views))["all"]
    torch.manual_seed(terms)
    x = torch.rand(1, rows, terms)
    sums = torch.from_numpy(add(tree, x.reshape(-1, terms).double().numpy())).float()
    assert torch.equal(x.mean(-1).reshape(-1), sums / terms)


def test_rows_reduced_in_different_orders_are_told_apart() -> None:
    trees = [build(32, sequential), build(32, halves)]

    def call(x: Tensor) -> Tensor:
        terms = x[0].double().numpy()
        sums = [add(trees[at % 2], row[None]) for at, row in enumerate(terms)]
        return torch.from_numpy(np.stack(sums)).float()

    views = [cls(call, 5, 32, "float32", "cpu") for cls in (operators.Reduced, operators.EveryRow)]
    assert found(measure(views)) == {"rows 0,2,4": trees[0], "rows 1,3": trees[1]}


@pytest.mark.parametrize("length", [1, 2, 3, 48, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_attention_over_keys_in_a_known_order_is_found(dtype: str, length: int) -> None:
    tree = build(length, pairwise)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        terms = v.double().transpose(2, 3).reshape(-1, length).numpy()
        sums = torch.from_numpy(add(tree, terms)).reshape(*v.shape[:2], 1, v.shape[3]) / length
        return sums.to(v.dtype).repeat_interleave(3, dim=1).expand(-1, -1, length, -1)

    view = operators.Attention(
        attend, rows=2, heads=6, kv_heads=2, head_dim=8, length=length, dtype=dtype, device="cpu"
    )
    assert found(measure([view])) == {"all": tree}


def test_heads_that_add_in_different_orders_are_told_apart() -> None:
    trees = [build(16, sequential), build(16, pairwise)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        terms = v.double().transpose(2, 3).reshape(-1, 16).numpy()
        sums = [torch.from_numpy(add(tree, terms)).reshape(1, 1, 1, 8) / 16 for tree in trees]
        return torch.cat(sums, dim=1).float().expand(-1, -1, 16, -1)

    view = operators.Attention(
        attend, rows=1, heads=2, kv_heads=1, head_dim=8, length=16, dtype="float32", device="cpu"
    )
    assert found(measure([view])) == {"heads 0": trees[0], "heads 1": trees[1]}


@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_the_tree_of_real_attention_gives_its_bits(kernel: str) -> None:
    backend = {"flash": "FLASH_ATTENTION", "math": "MATH"}[kernel]
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    with ExitStack() as stack:
        chosen = getattr(torch.nn.attention.SDPBackend, backend)
        stack.enter_context(torch.nn.attention.sdpa_kernel(chosen))
        view = operators.Attention(
            attend,
            rows=1,
            heads=2,
            kv_heads=2,
            head_dim=16,
            length=64,
            dtype="float32",
            device="cpu",
        )
        tree = found(measure([view]))["all"]
        torch.manual_seed(4)
        v = torch.rand(1, 2, 64, 16)
        made = attend(torch.zeros_like(v), torch.zeros_like(v), v)[:, :, -1]
    terms = v.double().transpose(2, 3).reshape(-1, 64).numpy()
    sums = torch.from_numpy(add(tree, terms)).float().reshape(1, 2, 16) / 64
    assert torch.equal(made, sums)


@pytest.mark.parametrize("length", [3, 40, 64])
def test_the_denominator_of_a_softmax_in_a_known_order_is_found(length: int) -> None:
    tree = build(length, pairwise)

    def softmax(x: Tensor) -> Tensor:
        terms = x.exp().double().reshape(-1, length).numpy()
        return x.exp() / torch.from_numpy(add(tree, terms)).float().reshape(*x.shape[:-1], 1)

    def logsumexp(x: Tensor) -> Tensor:
        terms = x.exp().double().reshape(-1, length).numpy()
        return torch.from_numpy(add(tree, terms)).float().log().reshape(*x.shape[:-1], 1)

    for call in (softmax, logsumexp):
        box = operators.Denominator(
            call, (1, 2, 8, length), dtype="float32", result="float32", device="cpu"
        )
        assert reveal_positive(box) == tree


def test_a_softmax_of_torch_has_an_order() -> None:
    box = operators.Denominator(
        partial(torch.softmax, dim=-1),
        (1, 2, 8, 64),
        dtype="float32",
        result="float32",
        device="cpu",
    )
    assert pattern(reveal_positive(box)) != "one term"


def test_a_softmax_with_a_narrow_result_is_refused() -> None:
    with pytest.raises(UnfitOperatorError, match="a result in bfloat16 cannot show"):
        operators.Denominator(
            partial(torch.softmax, dim=-1),
            (1, 8),
            dtype="bfloat16",
            result="bfloat16",
            device="cpu",
        )
