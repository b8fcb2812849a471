"""What a first forward shows: the kernels that ran, those that refuse, whose positions count."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from harness.conditions.attention import Attention
from harness.errors import ModelLoadError, UnsupportedConditionError
from harness.records.invocation import PrecisionName
from harness.records.verifier import Reward
from harness.verifiers import open_verifier
from harness.verifiers.first_forward import first_forward
from tests.verifiers.cases import QWEN2, SEQUENCE, Build, a_condition, a_spec


@pytest.fixture
def model(build: Build) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(build(QWEN2, SEQUENCE)).eval()


def altered(model: Any, base_model: Any) -> Any:
    return SimpleNamespace(base_model=base_model, config=model.config, device=model.device)


def test_kernels_and_dtype_are_seen(model: Any) -> None:
    found = first_forward(model, padding=0, first_position=0)
    assert (found.attention_kernel, found.attention_kernel_padded) == ("flash", "flash")
    assert found.activations_dtype == "float32"
    wider = first_forward(model.double(), padding=0, first_position=0)
    assert wider.activations_dtype == "float64"


@pytest.mark.parametrize(
    ("attention", "kernel", "implementation"),
    [
        (Attention.EAGER, "eager", "eager"),
        (Attention.MATH, "math", "sdpa"),
        (Attention.FLASH, "flash", "sdpa"),
    ],
)
def test_the_kernel_asked_for_is_the_kernel_seen(
    build: Build, attention: Attention, kernel: str, implementation: str
) -> None:
    condition = a_condition(PrecisionName.BFLOAT16, attention=attention)
    verifier = open_verifier(a_spec(build(QWEN2, SEQUENCE), Reward()), condition)
    resolved = verifier.resolved().reduction_order.resolved
    verifier.close()
    assert resolved["attention_kernel"] == resolved["attention_kernel_padded"] == kernel
    assert resolved["attn_implementation"] == implementation


def test_a_kernel_that_refuses_a_mask_is_told_apart(model: Any) -> None:
    def no_mask(**inputs: torch.Tensor) -> Any:
        if not inputs["attention_mask"].all():
            raise RuntimeError("No available kernel.\nAborting execution.")
        return model.base_model(**inputs)

    found = first_forward(altered(model, no_mask), padding=0, first_position=0)
    assert (found.attention_kernel, found.attention_kernel_padded) == ("flash", "none")


def test_a_model_that_no_kernel_serves_is_refused(model: Any) -> None:
    def never(**_: torch.Tensor) -> Any:
        raise RuntimeError("No available kernel.\nAborting execution.")

    with pytest.raises(UnsupportedConditionError, match=r"serves this model: No available kernel"):
        first_forward(altered(model, never), padding=0, first_position=0)


def test_a_model_that_counts_positions_otherwise_is_refused(model: Any) -> None:
    def doubled(**inputs: torch.Tensor) -> Any:
        count = torch.arange(inputs["input_ids"].shape[1])[None]
        return model.base_model(**{"position_ids": 2 * count} | inputs)

    with pytest.raises(ModelLoadError, match="counts positions in a way that is not known here"):
        first_forward(altered(model, doubled), padding=0, first_position=0)
