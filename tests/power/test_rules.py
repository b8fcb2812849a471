"""Each rule against vectors whose answer is known, and the rivals' constants against torch."""

from typing import Any

import pytest
import torch
from torch.testing._comparison import default_tolerances

from calibrate.power.rules import ASSERT_CLOSE, FIXED_TOLERANCE, OURS, RIVALS, STRICT, beyond, rules
from harness.judge.tolerances import Tolerances
from harness.records import CommitRecord, ReplayRecord
from tests.examples import (
    ENVELOPE,
    FLOOR,
    SCORES,
    a_commit,
    a_membership,
    a_precision,
    a_replay,
    a_step,
    a_tolerance_file,
    an_invocation,
    moved,
)

TABLE = {
    rule.name: rule.is_fault
    for rule in rules(Tolerances(files=(a_tolerance_file(),)), ENVELOPE, None)
}
SCORE_RULES = [rule.name for rule in RIVALS] + ["envelope alone"]


def called(replay: ReplayRecord, commit: CommitRecord | None = None) -> set[str]:
    """Return the rules that call it a fault."""
    return {name for name, is_fault in TABLE.items() if is_fault(commit or a_commit(), replay)}


def vector(**scores: float) -> ReplayRecord:
    return a_replay(scores={**SCORES, **scores})


CASES: dict[str, tuple[ReplayRecord, set[str]]] = {
    "the same bits": (a_replay(), set()),
    "minus zero is another bit": (vector(b=0.25 + 2**-50), {"exact"}),
    "within the floor": (moved(FLOOR), {"exact"}),
    "beyond the floor, within 1.6 %": (moved(0.002), {"exact", STRICT}),
    "beyond 1.6 % of the score": (moved(0.02), {"exact", STRICT, "assert_close"}),
    "just beyond 0.04": (moved(0.041), {"exact", STRICT, "assert_close", "fixed 0.04"}),
    "beyond the envelope, same order": (
        moved(0.07),
        {"exact", STRICT, OURS, "assert_close", "fixed 0.04", "envelope alone"},
    ),
    "the losers change places": (vector(b=-2.5, c=-2.0), set(TABLE) - {"argmax"}),
    "another winner": (vector(b=1.75), set(TABLE)),
    "a NaN": (vector(b=float("nan")), set(TABLE)),
    "a branch is lost": (a_replay(scores={"a": 1.5, "b": 0.25}), set(TABLE)),
}


@pytest.mark.parametrize("case", CASES)
def test_which_rules_call_it_a_fault(case: str) -> None:
    replay, expected = CASES[case]
    assert called(replay) == expected


def test_a_reconstruction_is_a_fault_to_those_alone_that_see_only_scores() -> None:
    other = a_membership(steps=(a_step(padded_width=24),))
    far = a_replay(scores={**SCORES, "b": 1.75}, invocation=an_invocation(batch_membership=other))
    assert called(far) == set(SCORE_RULES)


def test_a_tolerance_is_passed_when_it_is_met_exactly() -> None:
    assert not beyond(0.5)(a_commit(), moved(0.5))
    assert beyond(0.5)(a_commit(), moved(0.5 + 2**-40))
    assert FIXED_TOLERANCE == 0.04


@pytest.mark.parametrize("name", ASSERT_CLOSE)
def test_the_defaults_are_torchs(name: str) -> None:
    close = ASSERT_CLOSE[name]
    assert (close.rtol, close.atol) == default_tolerances(getattr(torch, name))


@pytest.mark.parametrize("name", ASSERT_CLOSE)
@pytest.mark.parametrize("score", [1.0, -3.0, 0.0])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.2, 3.0])
def test_assert_close_agrees_with_torch(name: str, score: float, share: float) -> None:
    close = ASSERT_CLOSE[name]
    allowed = close.atol + close.rtol * abs(score)
    dtype = getattr(torch, name)
    expected, actual = (torch.tensor(x, dtype=dtype) for x in (score, score + share * allowed))
    if name.endswith("16") and 0.8 < abs(float(actual - expected)) / allowed < 1.1:
        actual = torch.tensor(score + 2 * allowed, dtype=dtype)  # a 16-bit grid lands on the edge
    commit = with_head(name, {"a": float(expected)})
    replay = a_replay(scores={"a": float(actual)}, invocation=commit.invocation)
    assert TABLE["assert_close"](commit, replay) == refused_by_torch(actual, expected)


def test_the_dtype_is_the_heads() -> None:
    """A score that moved by 1 % passes in bfloat16 and fails in float32."""
    for dtype, expected in (("bfloat16", False), ("float32", True)):
        commit = with_head(dtype, {"a": 1.0})
        replay = a_replay(scores={"a": 1.01}, invocation=commit.invocation)
        assert TABLE["assert_close"](commit, replay) is expected


def with_head(dtype: str, scores: dict[str, float]) -> CommitRecord:
    mode = a_precision(resolved={"weights_dtype": "bfloat16", "head_dtype": dtype})
    slots = (a_step().slots[0],)
    membership = a_membership(steps=(a_step(slots=slots),))
    invocation = an_invocation(precision_mode=mode, batch_membership=membership)
    return a_commit(scores=scores, invocation=invocation, winner="a")


def refused_by_torch(actual: Any, expected: Any) -> bool:
    try:
        torch.testing.assert_close(actual, expected)
    except AssertionError:
        return True
    return False
