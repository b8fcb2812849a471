"""What the tests of verifiers start from: specs, conditions, texts, and a reference of our own."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from harness.conditions.condition import Condition
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import Head, Prompt, VerifierSpec
from harness.verifiers import EncodedRow, RowText
from harness.verifiers.random_weights import Architecture, Task

QWEN2, LLAMA, BERT = Architecture
LM, SEQUENCE, TOKEN = Task

Build = Callable[..., Path]
"""The `build` fixture: a random checkpoint by architecture, task and number of labels."""

TEMPLATE = "<bos>{context}<sol>{branch}<eos>"
BRANCHES = (
    "1+1=2\n#2",
    "9*9=81\n81-1=80\n#80",
    "7\n7\n7\n7+1=8\n#8",
    "é{context}😀\n{branch} 3%",
    "5\n",
)
TEXTS = tuple(
    RowText(
        context="Ivy has 10 apples. How many now?"[: 12 + 5 * at], branch=text, name=f"row {at}"
    )
    for at, text in enumerate(BRANCHES)
)

_AUTO: dict[str, Any] = {
    LM: transformers.AutoModelForCausalLM,
    SEQUENCE: transformers.AutoModelForSequenceClassification,
    TOKEN: transformers.AutoModelForTokenClassification,
}


def a_spec(model: Path | str, head: Head, **changes: Any) -> VerifierSpec:
    return VerifierSpec(
        model=str(model), head=head, **{"prompt": Prompt(template=TEMPLATE)} | changes
    )


def a_condition(precision: PrecisionName = PrecisionName.FLOAT32, **order: Any) -> Condition:
    spec = ReductionOrderSpec(**{"name": "vendor"} | order)
    return Condition(precision=precision, reduction_order=spec)


def longest(rows: Sequence[EncodedRow]) -> int:
    return max(len(row.token_ids) for row in rows)


def solo(verifier: Any, rows: Sequence[EncodedRow]) -> list[float]:
    return [verifier.score([row], len(row.token_ids), None)[0] for row in rows]


def batched(verifier: Any, rows: Sequence[EncodedRow], side: PaddingSide, extra: int = 0) -> Any:
    return verifier.score(rows, longest(rows) + extra, side)


def worst(left: Sequence[float], right: Sequence[float]) -> float:
    """Largest difference relative to the scores' size; NaN where one is NaN."""
    gaps = [abs(a - b) / max(abs(a), abs(b), 1.0) for a, b in zip(left, right, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def reference_logits(folder: Path, task: Task, rows: Sequence[EncodedRow]) -> list[torch.Tensor]:
    """The library's own float64 logits of each row alone: no mask, no positions, no padding."""
    model = _AUTO[task].from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        return [model(input_ids=torch.tensor([row.token_ids])).logits[0] for row in rows]
