"""Decisions to be scored for real, by a fake or the embedded verifier in its own process."""

from typing import Any

from harness.conditions.condition import Condition
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.records.decision import Branch, Decision
from harness.records.invocation import PrecisionName
from harness.records.verifier import Prompt, Reward, VerifierSpec

TEMPLATE = "<bos>{context}<sol>{branch}<eos>"


def a_condition(precision: PrecisionName = PrecisionName.BFLOAT16, **order: Any) -> Condition:
    options: dict[str, Any] = {"name": "vendor", "num_threads": 1} | order
    spec = ReductionOrderSpec(**options)
    return Condition(precision=precision, reduction_order=spec)


def a_spec(model: str = "fake:rounding", **changes: Any) -> VerifierSpec:
    options = {"head": Reward(), "prompt": Prompt(template=TEMPLATE)} | changes
    return VerifierSpec(model=model, **options)


def a_decision(name: str, *texts: str) -> Decision:
    branches = tuple(Branch(branch_id=f"b{at}", text=text) for at, text in enumerate(texts))
    return Decision(decision_id=name, context=f"context of {name}", branches=branches)


DECISIONS = (
    a_decision("d2", "one", "three", "seventeen"),
    a_decision("d10", "same", "same", "other"),
    a_decision("d1", "x"),
)
"""In file order, which is not the order of names; d10 has one text twice."""
