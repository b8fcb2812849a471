"""Forwards of a set shape: nothing that neighbours do reaches a kernel's shape, or a row's bits."""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    LogLikelihood,
    ProcessReward,
    Reward,
    StepReduction,
    StepSource,
)
from harness.verifiers import EncodedRow, open_verifier
from harness.verifiers.inputs import filled_up
from tests.verifiers.cases import (
    BERT,
    LLAMA,
    LM,
    QWEN2,
    SEQUENCE,
    TEXTS,
    TOKEN,
    Build,
    a_condition,
    a_spec,
    longest,
    solo,
    worst,
)

LEFT, RIGHT = PaddingSide
BF16, FLOAT32, FLOAT64 = PrecisionName.BFLOAT16, PrecisionName.FLOAT32, PrecisionName.FLOAT64
NUM_ROWS = 8


def steps(source: str, **more: Any) -> ProcessReward:
    return ProcessReward(
        source=StepSource(source),
        separator="\n",
        reduce=StepReduction.PRODUCT,
        include_last_token=True,
        **more,
    )


CASES: dict[str, tuple[Any, Head, tuple[PaddingSide, ...]]] = {
    "embedded reward": ("embedded:reward", Reward(), (RIGHT, LEFT)),
    "embedded likelihood": ("embedded:lm", LogLikelihood(), (RIGHT,)),
    "llama grade": ((LLAMA, LM), ExpectedGrade(grades={"1": 1.0, "2": 2.0}), (RIGHT, LEFT)),
    "llama yes or no": ((LLAMA, LM), steps("yes_no", yes=("1",), no=("2",)), (RIGHT,)),
    "llama steps": ((LLAMA, SEQUENCE), steps("sequence_classification"), (RIGHT, LEFT)),
    "qwen2 steps": ((QWEN2, TOKEN), steps("token_classification"), (RIGHT,)),
    "bert reward": ((BERT, SEQUENCE), Reward(), (RIGHT,)),
    "bert steps": ((BERT, TOKEN), steps("token_classification"), (RIGHT, LEFT)),
}


@contextmanager
def opened(name: str, build: Build, precision: PrecisionName) -> Iterator[Any]:
    model, head, _ = CASES[name]
    spec = a_spec(model if isinstance(model, str) else build(*model), head)
    verifier = open_verifier(spec, a_condition(precision))
    yield verifier
    verifier.close()


def width_of(rows: Sequence[EncodedRow]) -> int:
    """Return a multiple of 8 that is wider than every row."""
    return (longest(rows) // 8 + 1) * 8


def memberships(rows: Sequence[EncodedRow], most: int) -> Iterator[list[EncodedRow]]:
    """Yield seeded picks of `rows`: some few and some many, in any order, some of them twice."""
    draw = random.Random(5)  # noqa: S311 - seeded picks, no secret
    yield [min(rows, key=lambda row: len(row.token_ids))]
    yield [max(rows, key=lambda row: len(row.token_ids))] * most
    for _ in range(14):
        yield draw.choices(rows, k=draw.randint(1, most))


def bits(verifier: Any, rows: Sequence[EncodedRow], side: PaddingSide, **shape: Any) -> set[int]:
    """Return how many different scores each row had."""
    found: dict[str, set[float]] = {}
    for members in memberships(rows, NUM_ROWS):
        width = shape.get("width") or longest(members)
        scores = verifier.score(members, width, side, shape.get("num_rows"))
        assert len(scores) == len(members)
        for row, score in zip(members, scores, strict=True):
            found.setdefault(row.content_digest, set()).add(score)
    assert len(found) == len(rows)
    return {len(scores) for scores in found.values()}


@pytest.mark.parametrize("precision", [BF16, FLOAT32])
@pytest.mark.parametrize("name", CASES)
def test_no_bit_moves_with_the_neighbours(
    build: Build, name: str, precision: PrecisionName
) -> None:
    with opened(name, build, precision) as verifier:
        rows = verifier.encode(TEXTS)
        for side in CASES[name][2]:
            assert bits(verifier, rows, side, width=width_of(rows), num_rows=NUM_ROWS) == {1}


@pytest.mark.parametrize("name", CASES)
def test_without_a_set_shape_bits_move(build: Build, name: str) -> None:
    """Negative control of the test above: the same rows, the same memberships."""
    with opened(name, build, FLOAT32) as verifier:
        rows = verifier.encode(TEXTS)
        assert max(bits(verifier, rows, RIGHT)) > 1


@pytest.mark.parametrize("name", CASES)
def test_an_inert_row_and_padding_move_no_score(build: Build, name: str) -> None:
    """In float64 the forward of a set shape and the row alone agree: only roundings differ."""
    with opened(name, build, FLOAT64) as verifier:
        rows = verifier.encode(TEXTS)
        alone = solo(verifier, rows)
        for side in CASES[name][2]:
            for width in (width_of(rows), width_of(rows) + 40):
                scores = verifier.score(rows, width, side, NUM_ROWS)
                assert worst(scores, alone) < 1e-12, (side, width)


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the shapes of every operator that multiplies, sums or attends."""

    OPERATORS = ("mm", "matmul", "linear", "bmm", "softmax", "attention", "norm", "mean")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(part in name for part in self.OPERATORS):
            given = (*args, *(kwargs or {}).values())
            tensors = [tuple(a.shape) for a in given if isinstance(a, torch.Tensor)]
            self.seen.append((name, tuple(tensors)))
        return func(*args, **(kwargs or {}))


def shapes(verifier: Any, rows: Sequence[EncodedRow], width: int, num_rows: int | None) -> Any:
    with ExitStack() as stack:
        heads = pytest.MonkeyPatch.context()
        stack.enter_context(heads).setattr(type(verifier._head), "take", _nothing_taken)
        watch = stack.enter_context(Shapes())
        verifier.score(rows, width, RIGHT, num_rows)
    return tuple(watch.seen)


def _nothing_taken(head: Any, rows: Sequence[EncodedRow], logits: torch.Tensor) -> torch.Tensor:
    """Stand in for what a head does afterwards, row by row."""
    return torch.zeros(len(logits), max(len(head.chosen), 1), dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_every_operators_shape_is_the_shapes_alone(build: Build, name: str) -> None:
    with opened(name, build, FLOAT32) as verifier:
        rows = verifier.encode(TEXTS)
        width = width_of(rows)
        verifier.score(rows, width, RIGHT, NUM_ROWS)  # finds out what it must know once
        picks = list(memberships(rows, NUM_ROWS))
        found = {shapes(verifier, members, width, NUM_ROWS) for members in picks}
        assert len(found) == 1
        assert len(next(iter(found))) > 10
        plain = {shapes(verifier, members, width, None) for members in picks}
        assert len(plain) > 1, "negative control"


@pytest.mark.parametrize("side", PaddingSide)
def test_a_vocabulary_is_multiplied_once_a_row(build: Build, side: PaddingSide) -> None:
    """And not once a token, where a head reads each row at one place."""
    with opened("llama grade", build, FLOAT32) as verifier:
        rows = verifier.encode(TEXTS)
        seen: list[int] = []
        verifier._model.get_output_embeddings().register_forward_hook(
            lambda _layer, _args, logits: seen.append(logits.numel() // logits.shape[-1])
        )
        verifier.score(rows, width_of(rows), side, NUM_ROWS)
        assert seen == [NUM_ROWS]


def test_a_mask_never_drops_out_when_every_row_is_long() -> None:
    """A library computes without a mask when nothing is masked: one column is kept for padding."""
    row = EncodedRow(token_ids=(5,) * 9, branch_start=1, branch_end=9)
    assert len(filled_up([row], 10, 3, 0)) == 3
    for num_rows, width in ((3, 9), (1, 10)):
        with pytest.raises(ValueError, match="do not fit"):
            filled_up([row, row], width, num_rows, 0)


@pytest.mark.parametrize(
    ("name", "causal"), [("embedded reward", True), ("llama grade", True), ("bert reward", False)]
)
def test_only_a_model_that_never_looks_ahead_goes_without_a_mask(
    build: Build,
    name: str,
    causal: bool,  # noqa: FBT001
) -> None:
    with opened(name, build, FLOAT32) as verifier:
        assert verifier._is_causal is causal
        row = verifier.encode(TEXTS)[:1]
        true = verifier.score(row, 64, RIGHT, 2)
        verifier._is_causal = not causal
        other = verifier.score(row, 64, RIGHT, 2)
        gap = worst(true, other)
        assert gap < 1e-5 if causal else gap > 1e-3
