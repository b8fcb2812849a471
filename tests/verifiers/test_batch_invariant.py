"""In a batch-invariant order no batch moves a score's bits; in the vendor's order batches do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.conditions.attention import Attention
from harness.conditions.reduction_order import ReductionOrderSpec, reduction_switches
from harness.errors import UnsupportedConditionError
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device, LogLikelihood, LogOdds, Reward
from harness.verifiers import EncodedRow, Verifier, open_verifier
from tests.calibrate.faulty_models import write_faulty, write_sound
from tests.verifiers.cases import (
    BERT,
    LLAMA,
    LM,
    QWEN2,
    SEQUENCE,
    TEXTS,
    Build,
    a_condition,
    a_spec,
    longest,
    solo,
    worst,
)

LEFT, RIGHT = PaddingSide
FLOAT32, BFLOAT16 = PrecisionName.FLOAT32, PrecisionName.BFLOAT16

MODELS: dict[str, tuple[Any, Any, Any]] = {
    "embedded:reward": (None, None, Reward()),
    "embedded:lm": (None, None, LogLikelihood()),
    "qwen2": (QWEN2, LM, LogOdds(yes=("1",), no=("2",))),
    "llama": (LLAMA, SEQUENCE, Reward()),
    "bert": (BERT, SEQUENCE, Reward()),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what a runner would have set before the process began."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@contextmanager
def opened(build: Build, model: str, precision: PrecisionName, **order: Any) -> Iterator[Verifier]:
    architecture, task, head = MODELS[model]
    source = build(architecture, task) if architecture else model
    verifier = open_verifier(
        a_spec(source, head), a_condition(precision, **{"num_threads": 1} | order)
    )
    try:
        yield verifier
    finally:
        verifier.close()


def scored(verifier: Verifier, rows: Sequence[EncodedRow], name: str) -> dict[str, list[float]]:
    """Return every row's score in batches of several sizes, widths, sides and neighbours."""
    found = {"alone": solo(verifier, rows)}
    for side in (RIGHT,) if name == "bert" else (RIGHT, LEFT):
        found[f"all, {side}"] = verifier.score(rows, longest(rows) + 13, side)
        backwards = verifier.score(rows[::-1], longest(rows) + 3, side)
        found[f"backwards, {side}"] = backwards[::-1]
        pairs = verifier.score(rows[:2], longest(rows), side)
        found[f"two, {side}"] = [*pairs, *found["alone"][2:]]
    return found


def moved(found: dict[str, list[float]]) -> list[str]:
    """Return the rows that moved, each with its batch."""
    return [
        f"row {row} in {name}: {score!r} is {found['alone'][row]!r} alone"
        for name, scores in found.items()
        for row, score in enumerate(scores)
        if score != found["alone"][row]
    ]


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("name", MODELS)
def test_no_batch_moves_a_score(build: Build, name: str, precision: PrecisionName) -> None:
    with opened(build, name, precision, name="batch_invariant") as verifier:
        rows = verifier.encode(TEXTS)
        found = scored(verifier, rows, name)
        assert moved(found) == []
        order = verifier.resolved().reduction_order
        assert (order.name, order.resolved["batch_invariant"]) == (
            "batch_invariant+threads:1",
            "fixed_order",
        )
    with opened(build, name, precision) as verifier:
        vendor = scored(verifier, rows, name)
        assert worst(vendor["alone"], found["alone"]) < {FLOAT32: 1e-5, BFLOAT16: 0.05}[precision]
        assert precision is BFLOAT16 or moved(vendor)  # negative control
        assert "batch_invariant" not in verifier.resolved().reduction_order.resolved


def test_the_composite_attention_is_covered_too(build: Build) -> None:
    order = {"name": "batch_invariant", "attention": Attention.MATH}
    with opened(build, "llama", FLOAT32, **order) as verifier:
        assert verifier.resolved().reduction_order.resolved["attention_kernel"] == "math"
        assert moved(scored(verifier, verifier.encode(TEXTS), "llama")) == []


def test_the_switches_are_those_by_which_equal_calls_give_equal_bits() -> None:
    spec = ReductionOrderSpec(name="batch_invariant")
    cpu = reduction_switches(spec, Device.CPU)
    assert (cpu["num_threads"], cpu["OMP_NUM_THREADS"], cpu["MKL_NUM_THREADS"]) == (1, "1", "1")
    assert (cpu["deterministic_algorithms"], cpu["mkldnn.deterministic"]) == (True, True)
    cuda = reduction_switches(spec, Device.CUDA)
    assert (cuda["deterministic_algorithms"], cuda["CUBLAS_WORKSPACE_CONFIG"]) == (True, ":4096:8")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"attention": Attention.EAGER}, "does not cover attention eager; take auto, flash"),
        ({"num_threads": 2}, "needs one thread on a CPU.* set num_threads: 1"),
    ],
)
def test_what_cannot_be_kept_in_one_order_is_refused(
    build: Build, order: dict[str, Any], message: str
) -> None:
    with (
        pytest.raises(UnsupportedConditionError, match=message),
        opened(build, "llama", FLOAT32, name="batch_invariant", **order),
    ):
        pass


def test_a_mask_that_is_wrong_stays_wrong(tmp_path: Path) -> None:
    """The order is fixed, not the model."""
    sound = write_sound(tmp_path / "sound")
    condition = a_condition(FLOAT32, name="batch_invariant")
    results = {}
    for name in ("Sound", "SkippedMask", "ColumnPositions"):
        model = write_faulty(sound, tmp_path / name, name)
        spec = a_spec(model, Reward(), trust_remote_code=True)
        verifier = open_verifier(spec, condition)
        rows = verifier.encode(TEXTS)
        results[name] = worst(solo(verifier, rows), verifier.score(rows, longest(rows), LEFT))
        verifier.close()
    assert results["Sound"] == 0
    assert min(results["SkippedMask"], results["ColumnPositions"]) > 1e-3
