"""The rules for operators: what is covered has one order, what is not is refused by name."""

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.conditions.batch_invariant import FIXED_ORDER, VLLM_VARIABLE, batch_invariant
from harness.conditions.row_attention import row_attention
from harness.conditions.switches import applied
from harness.errors import UnsupportedConditionError
from harness.records.verifier import Device

SDPA = torch.ops.aten.scaled_dot_product_attention.default


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with applied({"num_threads": 1}), torch.inference_mode():
        yield


class Calls(nn.Module):
    """A model whose forward is any function of its layer and its input."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor], size: int = 24) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.norm, self.call = nn.Linear(size, 17), nn.LayerNorm(size), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


COVERED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "linear": lambda model, x: model.layer(x),
    "product with a weight": lambda model, x: x @ model.layer.weight.T,
    "norm": lambda model, x: model.norm(x),
    "mean": lambda _, x: x.pow(2).mean(-1, keepdim=True),
    "softmax": lambda _, x: x.softmax(-1),
    "logsumexp": lambda _, x: x.logsumexp(-1),
    "silu": lambda _, x: functional.silu(x),
    "in place": lambda _, x: (x * 1).exp_(),
    "cosine of a strided view": lambda _, x: x.flip(-1).cos(),
    "outer product": lambda _, x: x[..., None] @ x[..., None, :],
}


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_in_any_batch(name: str, dtype: torch.dtype) -> None:
    model, x = Calls(COVERED[name]).to(dtype), noise(5, 7, 24).to(dtype)
    plain = model(x)
    with batch_invariant(model):
        whole = model(x)
        parts = [model(x[at : at + 1, place : place + 1]) for at in range(5) for place in range(7)]
    assert torch.equal(torch.cat(parts).view(whole.shape), whole)
    assert torch.allclose(whole.double(), plain.double(), rtol=1e-2, atol=1e-2)
    assert torch.equal(model(x), plain)  # restored


def test_the_libraries_own_sums_do_move() -> None:
    """Negative control: where rows of one call are added otherwise than a row alone."""
    model, x = Calls(COVERED["linear"], size=1024).float(), noise(12, 1024)
    assert not torch.equal(torch.cat([model(row[None]) for row in x]), model(x))
    with batch_invariant(model):
        assert torch.equal(torch.cat([model(row[None]) for row in x]), model(x))


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "two activations": (lambda _, x: x @ x.transpose(-1, -2), r"aten::bmm of \[2, 7, 24\]"),
    "a sum over the rows": (lambda _, x: x.mean(0), "aten::mean.* another dimension than the last"),
    "a sum over the tokens": (lambda _, x: x.transpose(1, 2).sum(-1), "no weight has: the batch's"),
    "a running sum": (lambda _, x: x.cumsum(-1), "aten::cumsum"),
    "a weight that is data": (
        lambda _, x: functional.linear(x, x[0]),
        "right operand is no weight",
    ),
    "another norm": (
        lambda _, x: functional.group_norm(x, 7),
        "aten::native_group_norm|group_norm",
    ),
    "a cache": (
        lambda _, x: functional.scaled_dot_product_attention(
            x[:, None, :3], x[:, None], x[:, None]
        ),
        "a cache of keys",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_refused_by_name(name: str) -> None:
    call, message = REFUSED[name]
    model = Calls(call)
    with batch_invariant(model), pytest.raises(UnsupportedConditionError, match=message):
        model(noise(2, 7, 24))
    model(noise(2, 7, 24))  # and all is as it was


def test_a_second_use_and_a_foreign_forward_are_refused_with_nothing_changed() -> None:
    model = Calls(COVERED["linear"])
    with batch_invariant(model):
        with (
            pytest.raises(UnsupportedConditionError, match="nested use"),
            batch_invariant(model),
        ):
            pass
        assert "forward" in model.__dict__
    assert "forward" not in model.__dict__
    model.layer.__dict__["forward"] = model.layer.forward
    with pytest.raises(UnsupportedConditionError, match="layer has a forward of its own"):
        batch_invariant(model).__enter__()


def test_it_is_restored_when_an_exception_passes() -> None:
    model = Calls(COVERED["linear"])
    with pytest.raises(RuntimeError), batch_invariant(model):
        raise RuntimeError
    assert all("forward" not in module.__dict__ for module in model.modules())


def heads(*lengths: int) -> tuple[Tensor, Tensor]:
    """Return queries of rows padded left to the longest, and the causal mask that hides it."""
    width = max(lengths)
    own = torch.stack([torch.arange(width) >= width - length for length in lengths])
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    return noise(len(lengths), 2, width, 8), causal & own[:, None, None]


@pytest.mark.parametrize("as_bias", [False, True])
def test_attention_of_a_padded_row_is_its_own(as_bias: bool) -> None:  # noqa: FBT001
    x, mask = heads(5, 9, 13)
    given = torch.where(mask, 0.0, torch.finfo(x.dtype).min) if as_bias else mask
    made = row_attention(SDPA, x, x, x, given)
    for row, length in enumerate((5, 9, 13)):
        own = x[row : row + 1, :, -length:].contiguous()
        assert torch.equal(made[row, :, -length:], SDPA(own, own, own, None, 0.0, True)[0])
    assert torch.allclose(made[2], SDPA(x, x, x, given)[2], atol=1e-5)


def test_attention_keeps_what_a_wrong_mask_lets_through() -> None:
    x, mask = heads(5, 13)
    open_mask = torch.ones_like(mask)
    assert torch.allclose(row_attention(SDPA, x, x, x, open_mask), SDPA(x, x, x), atol=1e-5)
    hidden = row_attention(SDPA, x, x, x, mask)
    assert not torch.allclose(row_attention(SDPA, x, x, x, open_mask)[0], hidden[0], atol=1e-2)


def test_attention_keeps_a_bias_that_is_more_than_a_mask() -> None:
    x, mask = heads(5, 13)
    slopes = torch.where(mask, noise(2, 1, 13, 13), -torch.inf)
    made, plain = row_attention(SDPA, x, x, x, slopes), SDPA(x, x, x, slopes)
    assert torch.allclose(made[0, :, -5:], plain[0, :, -5:], atol=1e-5)
    assert torch.allclose(made[1], plain[1], atol=1e-5)


# vLLM, by a stand-in: no CUDA device is needed to see which is chosen and what is undone.


def write_vllm(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> ModuleType:
    """Put a package `vllm` on the path whose operators are `code`; return them."""
    layers = folder / "vllm" / "model_executor" / "layers"
    layers.mkdir(parents=True)
    for package in (layers, layers.parent, layers.parent.parent):
        (package / "__init__.py").write_text("__version__ = '9.9'\n")
    (layers / "batch_invariant.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(folder)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    name = "vllm.model_executor.layers.batch_invariant"
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


NEW_VLLM = """
    import torch
    _batch_invariant_MODE, _batch_invariant_LIB = False, None

    class Library:
        destroyed = False
        def _destroy(self):
            self.destroyed = True

    def enable_batch_invariant_mode():
        global _batch_invariant_MODE, _batch_invariant_LIB
        _batch_invariant_MODE, _batch_invariant_LIB = True, Library()
        torch.bmm = None
"""
OLD_VLLM = (
    NEW_VLLM
    + """
    undone = []
    def disable_batch_invariant_mode():
        undone.append(True)
"""
)


def test_on_cuda_vllm_is_used_and_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operators, bmm = write_vllm(tmp_path, monkeypatch, NEW_VLLM), torch.bmm
    model = Calls(COVERED["linear"])
    with batch_invariant(model, Device.CUDA) as name:
        library = operators._batch_invariant_LIB
        assert (name, operators._batch_invariant_MODE) == ("vllm 9.9", True)
        assert os.environ[VLLM_VARIABLE] == "1"
        assert model(noise(2, 24)).shape == (2, 17)  # whatever is in aten::linear's place
    assert (torch.bmm, library.destroyed) == (bmm, True)
    assert not operators._batch_invariant_MODE
    assert VLLM_VARIABLE not in os.environ
    with batch_invariant(model, Device.CPU) as name:
        assert name == FIXED_ORDER


def test_an_older_vllm_undoes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = write_vllm(tmp_path, monkeypatch, OLD_VLLM)
    monkeypatch.setenv(VLLM_VARIABLE, "0")
    with batch_invariant(Calls(COVERED["linear"]), Device.CUDA):
        pass
    assert operators.undone == [True]
    assert os.environ[VLLM_VARIABLE] == "0"


def test_a_vllm_without_its_operators_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vllm(tmp_path, monkeypatch, "")
    with pytest.raises(UnsupportedConditionError, match=r"vllm 9\.9 has .* at none of the known"):
        batch_invariant(Calls(COVERED["linear"]), Device.CUDA).__enter__()


def test_a_vllm_whose_mode_stays_off_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "_batch_invariant_MODE = False\ndef enable_batch_invariant_mode(): pass\n"
    write_vllm(tmp_path, monkeypatch, code)
    with pytest.raises(UnsupportedConditionError, match="does not come on"):
        batch_invariant(Calls(COVERED["linear"]), Device.CUDA).__enter__()
    assert VLLM_VARIABLE not in os.environ


def test_on_cuda_without_vllm_the_order_is_fixed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with batch_invariant(Calls(COVERED["linear"]), Device.CUDA) as name:
        assert name == FIXED_ORDER
