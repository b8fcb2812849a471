"""A trace names the first module and operator whose bits differ, and what differs at its input."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.conditions.batching import Batch
from harness.errors import UnsupportedConditionError
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import LogLikelihood, Reward
from harness.verifiers import open_verifier
from harness.verifiers.alignment import RowPlace
from harness.verifiers.bits import equal_values, gap_between
from harness.verifiers.divergence import Cause, Divergence
from harness.verifiers.forwards import Reads
from harness.verifiers.trace import RowInBatch, trace
from tests.calibrate.faulty_models import write_faulty, write_sound
from tests.verifiers.cases import BERT, SEQUENCE, TEXTS, Build, a_condition, a_spec, longest

LEFT, RIGHT = PaddingSide
Faulty = Callable[[str], Path]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    home = tmp_path_factory.mktemp("faulty")
    sound = write_sound(home / "sound")

    def written(fault: str) -> Path:
        folder = home / fault
        return folder if folder.exists() else write_faulty(sound, folder, fault)

    return written


def traced(
    model: Path | str,
    side: PaddingSide = LEFT,
    head: Any = None,
    precision: PrecisionName = PrecisionName.FLOAT32,
    **order: Any,
) -> Divergence:
    """Compare row 1 alone with row 1 among all rows, padded on `side`."""
    spec = a_spec(model, head or Reward(), trust_remote_code=Path(model).is_dir())
    verifier: Any = open_verifier(spec, a_condition(precision, **{"num_threads": 1} | order))
    try:
        rows = verifier.encode(TEXTS)
        alone = Batch(rows=(1,), width=len(rows[1].token_ids), side=None)
        among = Batch(rows=(4, 0, 1, 2, 3), width=longest(rows), side=side)
        plain = [
            verifier.score([rows[at] for at in batch.rows], batch.width, batch.side)
            for batch in (alone, among)
        ]
        left, right = (
            RowInBatch(batch, [rows[at] for at in batch.rows], batch.rows.index(1))
            for batch in (alone, among)
        )
        found = trace(verifier, left, right)
    finally:
        verifier.close()
    scores = [found.left_score, found.right_score]
    expected = [plain[0][0], plain[1][2]]  # watching changed nothing
    assert scores == expected or any(map(math.isnan, scores))
    return found


INVARIANT: dict[str, Any] = {"name": "batch_invariant"}

LOGIC: list[tuple[str, dict[str, Any], Cause, str]] = [
    ("ColumnPositions", {}, Cause.POSITION_IDS, "model.places"),
    ("SkippedMask", {}, Cause.ATTENTION_MASK, "model.layers.0.self_attn.o_proj"),
    ("FullyMasked", {}, Cause.ATTENTION_MASK, "model.layers.1.self_attn.o_proj"),
    ("SharedScale", INVARIANT, Cause.SHARED, "model"),
    ("Capacity", INVARIANT, Cause.CHOICE, "model"),
]


@pytest.mark.parametrize(("fault", "order", "cause", "module"), LOGIC)
def test_logic_is_named(
    faulty: Faulty, fault: str, order: dict[str, Any], cause: Cause, module: str
) -> None:
    parting = traced(faulty(fault), **order).parting
    assert parting is not None
    assert (parting.cause, parting.module) == (cause, module)


def test_a_wrong_position_says_who_made_it(faulty: Faulty) -> None:
    parting = traced(faulty("ColumnPositions"), **INVARIANT).parting
    assert parting is not None
    assert (parting.kind, parting.origin, parting.differing_inputs) == (
        "Embedding",
        "model",
        ("input",),
    )
    assert parting.left is not None
    assert parting.left.name == "aten::embedding"


def test_a_sound_model_parts_by_the_order_of_an_operator(faulty: Faulty) -> None:
    found = traced(faulty("Sound"))
    parting = found.parting
    assert parting is not None
    assert (parting.cause, parting.origin) == (Cause.ORDER, "model.layers.0.self_attn")
    assert (parting.left.name, parting.right.name) == (("aten::scaled_dot_product_attention",) * 2)  # type: ignore[union-attr]
    rows = len(TEXTS)
    assert parting.left.shapes[0][0] == 1  # type: ignore[union-attr]
    assert parting.right.shapes[0][0] == rows  # type: ignore[union-attr]
    before = [m for m in found.modules if m.module == "model.layers.0.self_attn.q_proj"]
    assert (before[0].num_different, before[0].max_ulps) == (0, 0)
    assert found.modules[-1].module == "score"


def test_a_layer_that_gets_equal_bits_is_the_origin_itself(build: Build) -> None:
    parting = traced(build(BERT, SEQUENCE), side=RIGHT).parting
    assert parting is not None
    assert parting.cause is Cause.ORDER
    if not parting.differing_inputs:
        assert parting.module == parting.origin
    assert parting.left is not None
    assert parting.left.dtypes[0] == "float32"


@pytest.mark.parametrize("head", [Reward(), LogLikelihood()])
def test_in_one_order_nothing_differs(head: Any) -> None:
    model = "embedded:reward" if isinstance(head, Reward) else "embedded:lm"
    found = traced(model, head=head, **INVARIANT)
    assert found.parting is None
    assert found.left_score == found.right_score
    assert (found.num_not_compared, sum(m.num_different for m in found.modules)) == (0, 0)
    assert len(found.modules) > 80
    # Negative control: the same comparison in the vendor's order sees a difference.
    assert traced(model, head=head).parting is not None


def test_a_score_normalised_over_the_batch_is_named_by_its_operator(faulty: Faulty) -> None:
    with pytest.raises(UnsupportedConditionError, match=r"aten::mean.*another dimension"):
        traced(faulty("NormalisedOverBatch"), **INVARIANT)


# Alignment: a row's own values, wherever they stand.

READS = Reads(rows=[0, 1, 2], columns=[4, 6, 6])
PLACE = RowPlace(row=1, start=3, length=4, num_rows=3, width=7, reads=READS)


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((3, 7, 5), (1, slice(3, 7))),
        ((3, 7), (1, slice(3, 7))),
        ((1, 7, 5), (0, slice(3, 7))),
        ((3, 2, 7, 5), (1, slice(None), slice(3, 7))),
        ((3, 7, 2, 5), (1, slice(3, 7))),
        ((3, 1, 7, 7), (1, slice(None), slice(3, 7), slice(3, 7))),
        ((21, 5), (slice(10, 14),)),
        ((3, 5), (1,)),
        ((3, 2, 9), (1, [1])),  # two columns are read, 4 and 6; this row's is the second
    ],
)
def test_a_rows_own_values_are_found(shape: tuple[int, ...], index: tuple[Any, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).view(shape)
    own = PLACE.own(tensor)
    assert own is not None
    assert torch.equal(own, tensor[index])


@pytest.mark.parametrize("shape", [(), (5,), (4, 7, 5), (64, 64)])
def test_a_tensor_of_no_row_is_left_out(shape: tuple[int, ...]) -> None:
    assert PLACE.own(torch.zeros(shape)) is None


def test_what_a_row_has_for_others_is_found() -> None:
    seen = torch.zeros(3, 1, 7, 7, dtype=torch.bool)
    seen[1, :, 3:, 3:] = True
    outside = PLACE.outside(seen)
    assert outside is not None
    assert (outside.shape, bool(outside.any())) == ((1, 4, 3), False)
    seen[1, :, 5, 0] = True
    assert bool(PLACE.outside(seen).any())  # type: ignore[union-attr]


# Bits.


def test_gaps_are_counted_in_units_of_the_values_own_dtype() -> None:
    one = torch.tensor([1.0, 4.0], dtype=torch.bfloat16)
    gap = gap_between(one, torch.tensor([1.0, 4.0 + 2 * 2**-5], dtype=torch.bfloat16))
    assert gap == (2 * 2**-5, 2.0, 2 * 2**-5 / (4 + 2 * 2**-5))
    assert gap_between(one, one) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_infinitely_far(wrong: float) -> None:
    gap = gap_between(torch.tensor([1.0, 2.0]), torch.tensor([1.0, wrong]))
    assert gap.absolute == math.inf
    assert bool(equal_values(torch.tensor(wrong), torch.tensor(wrong)))
    assert not bool(equal_values(torch.tensor(0.0), torch.tensor(-0.0)))
