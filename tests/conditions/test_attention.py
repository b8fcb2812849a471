"""Attention: the kernel that was asked for is the one that is seen to run, and its bits differ."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from harness.conditions.attention import (
    Attention,
    attention_kernels,
    attention_switches,
    attn_implementation,
)
from harness.conditions.switches import applied
from harness.records.verifier import Device

REWARD = Path(__file__).parents[2] / "harness" / "verifiers" / "embedded" / "reward"

CASES = [
    (Attention.AUTO, "flash"),
    (Attention.SDPA, "flash"),
    (Attention.FLASH, "flash"),
    (Attention.MATH, "math"),
    (Attention.EAGER, "eager"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep the tests quick on a busy machine."""
    with applied({"num_threads": 1}):
        yield


@cache
def model(attention: str) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        REWARD, dtype=torch.float32, attn_implementation=attention
    ).eval()


@cache
def batch() -> dict[str, torch.Tensor]:
    """Return eight rows of 60 tokens, all but the first padded on the right."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 400, (8, 60), generator=generator)
    lengths = torch.tensor([60, 55, 51, 44, 38, 30, 21, 9])
    mask = (torch.arange(60)[None, :] < lengths[:, None]).long()
    return {"input_ids": input_ids * mask, "attention_mask": mask}


def logits(attention: Attention) -> torch.Tensor:
    with applied(attention_switches(attention, Device.CPU)):
        found: torch.Tensor = model(attn_implementation(attention))(**batch()).logits
        return found


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize(("attention", "kernel"), CASES)
def test_the_kernel_that_runs_is_the_one_asked_for(
    attention: Attention, kernel: str, mode: type[AbstractContextManager[None]]
) -> None:
    with mode(), attention_kernels() as seen:
        logits(attention)
    assert seen == {kernel}


@pytest.mark.parametrize(("attention", "kernel"), CASES)
def test_watching_changes_no_bit(attention: Attention, kernel: str) -> None:
    with torch.inference_mode():
        alone = logits(attention)
        with attention_kernels():
            watched = logits(attention)
    assert torch.equal(alone, watched)


def test_kernels_differ_in_their_bits_and_auto_is_flash() -> None:
    with torch.inference_mode():
        found = {attention: logits(attention) for attention, _ in CASES}
    assert torch.equal(found[Attention.AUTO], found[Attention.FLASH])
    assert torch.equal(found[Attention.AUTO], found[Attention.SDPA])
    assert not torch.equal(found[Attention.FLASH], found[Attention.MATH])
    assert not torch.equal(found[Attention.FLASH], found[Attention.EAGER])
    assert not torch.equal(found[Attention.MATH], found[Attention.EAGER])
    torch.testing.assert_close(found[Attention.FLASH], found[Attention.MATH], rtol=0, atol=1e-3)


def attend_with_dropout() -> None:
    """Call with what the CPU's flash kernel cannot do."""
    rows = torch.ones(1, 2, 8, 16)
    torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.5)


def test_one_kernel_alone_fails_where_torch_would_fall_back() -> None:
    with applied(attention_switches(Attention.AUTO, Device.CPU)), attention_kernels() as seen:
        attend_with_dropout()
    assert seen == {"math"}
    with (
        applied(attention_switches(Attention.FLASH, Device.CPU)),
        pytest.raises(RuntimeError, match=r"(?i)no (available|viable)"),
    ):
        attend_with_dropout()


def test_a_softmax_over_logits_is_no_attention() -> None:
    with attention_kernels() as seen:
        torch.softmax(torch.ones(2, 8), dim=-1)
    assert seen == set()
