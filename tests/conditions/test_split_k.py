"""Split-K: the bits of a hand-written sum of partial sums, one matmul a part, and restored."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForSequenceClassification

from harness.conditions.split_k import split_k
from harness.conditions.switches import applied
from harness.errors import UnsupportedConditionError

REWARD = Path(__file__).parents[2] / "harness" / "verifiers" / "embedded" / "reward"

MATMULS = {"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep the tests quick on a busy machine."""
    with applied({"num_threads": 1}):
        yield


class MatmulCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name().partition(".")[0] in MATMULS
        return func(*args, **(kwargs or {}))


def layer(dtype: torch.dtype, size: int = 192, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(size, 64, bias=bias).to(dtype).eval()


def rows(dtype: torch.dtype, size: int = 192) -> torch.Tensor:
    return torch.randn(3, 5, size, generator=torch.Generator().manual_seed(9)).to(dtype)


def by_hand(x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    """Return four partial sums of 48 products each, added left to right, the bias last."""
    first = nn.functional.linear(x[..., 0:48], linear.weight[:, 0:48])
    second = nn.functional.linear(x[..., 48:96], linear.weight[:, 48:96])
    third = nn.functional.linear(x[..., 96:144], linear.weight[:, 96:144])
    fourth = nn.functional.linear(x[..., 144:192], linear.weight[:, 144:192])
    total = ((first + second) + third) + fourth
    return total if linear.bias is None else total + linear.bias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_bits_are_those_of_the_sum_by_hand_and_not_the_vendors(
    dtype: torch.dtype, *, bias: bool
) -> None:
    linear, x = layer(dtype, bias=bias), rows(dtype)
    with torch.inference_mode():
        vendor = linear(x)
        with split_k(linear, 4) as changed:
            split = linear(x)
        assert changed == 1
        assert split.dtype is dtype
        assert torch.equal(split, by_hand(x, linear))
        assert not torch.equal(split, vendor)
        assert torch.equal(linear(x), vendor)


@pytest.mark.parametrize("parts", [2, 3, 5, 7])
def test_each_part_is_one_matmul_and_no_product_is_lost(parts: int) -> None:
    linear, x = layer(torch.float64, size=50), rows(torch.float64, size=50)
    expected = linear(x)
    with split_k(linear, parts), torch.no_grad(), MatmulCount() as matmuls:
        found = linear(x)
    assert matmuls.count == parts
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_without_split_k_there_is_one_matmul() -> None:
    linear = layer(torch.float32)
    with torch.no_grad(), MatmulCount() as matmuls:
        linear(rows(torch.float32))
    assert matmuls.count == 1


def test_every_linear_of_a_transformer_is_split_and_restored() -> None:
    model = AutoModelForSequenceClassification.from_pretrained(REWARD, dtype=torch.bfloat16).eval()
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    ids = torch.randint(5, 400, (8, 40), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        vendor = model(input_ids=ids).logits
        with split_k(model, 4) as changed:
            split = [model(input_ids=ids).logits for _ in range(2)]
        after = model(input_ids=ids).logits
    assert changed == len(linears) == 6 * 7 + 1
    assert torch.equal(split[0], split[1])
    assert not torch.equal(split[0], vendor)
    assert torch.equal(after, vendor)
    assert all("forward" not in vars(linear) for linear in linears)


def test_it_is_restored_after_an_exception() -> None:
    linear = layer(torch.float32)
    with pytest.raises(ZeroDivisionError), split_k(linear, 2):
        raise ZeroDivisionError
    assert "forward" not in vars(linear)


def test_nested_use_is_refused_and_the_outer_one_stays() -> None:
    linear, x = layer(torch.float32), rows(torch.float32)
    with torch.no_grad(), split_k(linear, 4):
        with pytest.raises(UnsupportedConditionError, match="nested use"), split_k(linear, 2):
            pytest.fail("entered")
        assert torch.equal(linear(x), by_hand(x, linear))


class Scaled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return 2 * super().forward(input)


class Named(nn.Linear):
    """A subclass that keeps the forward of its base."""


def test_a_subclass_with_the_same_forward_is_split() -> None:
    with split_k(nn.Sequential(Named(8, 8), nn.ReLU(), Named(8, 8)), 2) as changed:
        assert changed == 2


@pytest.mark.parametrize(
    ("make", "parts", "message"),
    [
        (lambda: nn.LayerNorm(8), 2, r"no nn\.Linear layer"),
        (lambda: nn.Sequential(nn.Linear(8, 8), Scaled(8, 8)), 2, "layer 1 has a forward"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(3, 8)), 4, "layer 1 adds 3 products"),
        (lambda: nn.Linear(8, 8), 1, "at least 2 parts"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_untouched(
    make: Callable[[], nn.Module], parts: int, message: str
) -> None:
    model = make()
    with pytest.raises(UnsupportedConditionError, match=message), split_k(model, parts):
        pytest.fail("entered")
    assert all("forward" not in vars(module) for module in model.modules())
