"""The transformers backend on a CUDA device."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.conditions.batching import Batch
from harness.conditions.condition import Condition
from harness.decisions import read_decisions, row_texts
from harness.messages import Ready
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device, Reward
from harness.runner import ConditionProcess
from tests.verifiers.cases import a_condition, a_spec, worst

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]

TEXTS = row_texts(read_decisions("embedded:decisions", 40))[:128]
WIDTH = 96
PRECISIONS = (
    PrecisionName.FLOAT32,
    PrecisionName.TF32,
    PrecisionName.BFLOAT16,
    PrecisionName.FLOAT16,
)
SIZES = (1, 2, 3, 8, 16, 17, 32, 64, 128)

Scores = list[float]


def parts(size: int, num_rows: int | None = None) -> list[Batch]:
    """Return all rows in batches of `size`, all of one width."""
    order = range(len(TEXTS))
    cut = (tuple(order[at : at + size]) for at in range(0, len(TEXTS), size))
    return [Batch(rows=p, width=WIDTH, side=PaddingSide.RIGHT, num_rows=num_rows) for p in cut]


def scores(
    model: Path, condition: Condition, ways: Sequence[list[Batch]]
) -> tuple[Ready, list[Scores]]:
    """Return every row's score in each way, all in one fresh process."""
    spec = a_spec(model, Reward(), device=Device.CUDA)
    with ConditionProcess(spec, condition, TEXTS) as process:
        ready = process.ready()
        found = [[one for part in process.score(way) for one in part] for way in ways]
    return ready, found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_repeats_its_bits_in_a_fresh_process(
    precision: PrecisionName, reward_model: Path
) -> None:
    condition = a_condition(precision, name="deterministic")
    ready, (first,) = scores(reward_model, condition, [parts(32)])
    again, (second,) = scores(reward_model, condition, [parts(32)])
    assert first == second
    assert ready.condition == again.condition
    assert ready.build.build_id == again.build.build_id
    assert ready.build.device == "cuda"


def test_tf32_is_another_precision_than_float32(reward_model: Path) -> None:
    """Negative control of the precision switches: with TF32 on, the scores differ."""
    _, (plain,) = scores(reward_model, a_condition(), [parts(32)])
    _, (tf32,) = scores(reward_model, a_condition(PrecisionName.TF32), [parts(32)])
    assert 0 < worst(plain, tf32) < 0.05


def test_the_vendors_order_moves_with_the_batch_and_the_invariant_one_does_not(
    reward_model: Path,
) -> None:
    ways = [parts(size) for size in SIZES]
    vendor, invariant = (
        scores(reward_model, a_condition(PrecisionName.BFLOAT16, name=name), ways)[1]
        for name in ("vendor", "batch_invariant")
    )
    assert any(way != vendor[0] for way in vendor), "nothing moved: no negative control here"
    assert [way == invariant[0] for way in invariant] == [True] * len(SIZES)


def test_lanes_do_not_move_with_how_full_they_are(reward_model: Path) -> None:
    ways = [parts(size, num_rows=64) for size in (1, 7, 32, 64)]
    _, found = scores(reward_model, a_condition(PrecisionName.BFLOAT16), ways)
    assert [way == found[0] for way in found] == [True] * len(ways)
