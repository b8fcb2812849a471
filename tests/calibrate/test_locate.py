"""Locating: which two batches are compared, what is said, and the real thing on a planted fault."""

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calibrate.config import CalibrationConfig
from calibrate.growth import growth_plot
from calibrate.locate import Pair, farthest, locate
from calibrate.located import BatchShown, Located, jump, shown_growth, told
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import ConfigError, InputFileError, UnsupportedConditionError
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.verifiers.divergence import Cause, Divergence, ModuleGrowth, Operator, Parting
from tests.calibrate.example_runs import a_config, an_arm, write_decisions
from tests.calibrate.faulty_models import small_config, write_faulty, write_rows, write_sound

SCORES = {
    "solo": {3: 1.0, 4: 2.0},
    "rows-8": {3: 1.25, 4: 2.0},
    "left-8": {3: 1.0, 4: 2.5},
}


@pytest.mark.parametrize(
    ("scores", "names", "expected"),
    [
        (SCORES, (None, None), Pair(4, "solo", "left-8")),
        (SCORES, ("rows-8", None), Pair(4, "rows-8", "left-8")),
        (SCORES, ("solo", "rows-8"), Pair(3, "solo", "rows-8")),
        (SCORES, (None, "solo"), Pair(4, "left-8", "solo")),
        ({"a": {0: 1.0}, "b": {0: 1.0}}, (None, None), None),
        ({"a": {0: math.nan}, "b": {0: math.nan}}, (None, None), None),
        ({"a": {0: 1.0}, "b": {0: 9.0}, "c": {0: math.nan}}, (None, None), Pair(0, "a", "c")),
    ],
)
def test_the_pair_that_moves_most_is_chosen(scores: Any, names: Any, expected: Any) -> None:
    assert farthest(scores, *names) == expected


def a_module(name: str, relative: float = 0.0) -> ModuleGrowth:
    return ModuleGrowth(
        module=name,
        kind="Linear",
        num_values=8,
        num_different=int(relative > 0),
        max_difference=relative,
        max_ulps=relative,
        max_relative=relative,
    )


PRODUCT = Operator(name="aten::linear", shapes=((1, 64), (64, 64)), dtypes=("float32",) * 2)
PARTING = Parting(
    module="model.layers.0.mlp",
    kind="MLP",
    origin="model.layers.0.mlp",
    cause=Cause.ORDER,
    differing_inputs=(),
    left=PRODUCT,
    right=replace(PRODUCT, shapes=((12, 64), (64, 64))),
)
MODULES = (
    a_module("embed"),
    a_module("model.layers.0.mlp", 1e-7),
    a_module("model.layers.0", 2e-7),
    a_module("model.layers.1.mlp", 3e-7),
    a_module("model.layers.1", 2e-7),
    a_module("score", 1e-3),
)


def a_located(**changes: Any) -> Located:
    batch = BatchShown(composition="solo", num_rows=1, width=9, side=None, slot=0)
    divergence = Divergence(
        parting=PARTING, modules=MODULES, num_not_compared=0, left_score=1.0, right_score=1.5
    )
    located = Located(
        decision_id="d1",
        branch_id="a",
        num_tokens=9,
        condition="float32/vendor",
        num_searched=5,
        left=batch,
        right=replace(batch, composition="rows-8", num_rows=8, side=PaddingSide.LEFT, slot=3),
        divergence=divergence,
    )
    return replace(located, **changes)


def test_the_words_name_module_operator_shapes_cause_and_jump() -> None:
    assert told(a_located()) == (
        "first module that differs: model.layers.0.mlp (MLP)",
        "first operator that differs: aten::linear",
        "  left:  [1, 64] float32, [64, 64] float32",
        "  right: [12, 64] float32, [64, 64] float32",
        "cause: order: equal bits go in: the operator adds in another order at this shape",
        (
            "the difference jumps at score (Linear), from 3e-07 to 0.001 of the values: more than "
            "rounding grows in one module"
        ),
    )
    assert str(a_located().right) == "rows-8: slot 3 of 8 rows, 9 wide, padded left"
    assert a_located().score_difference == 0.5


def test_what_one_order_shows_is_said() -> None:
    still = replace(a_located().divergence, parting=None)
    (*_, alone) = told(a_located(in_one_order=still))
    assert alone.endswith("nothing differs: all of it is the order of sums")
    shared = replace(PARTING, cause=Cause.SHARED, module="head", differing_inputs=("scale",))
    lines = told(a_located(in_one_order=replace(still, parting=shared)))
    assert "made from equal bits inside: model.layers.0.mlp" in lines
    assert lines[-1].startswith("cause: shared: a value made of the whole batch")
    (*_, impossible) = told(a_located(no_order="aten::bmm"))
    assert impossible == "with every sum in one order: not possible: aten::bmm"


def test_nothing_that_differs_is_said_with_what_was_compared() -> None:
    still = Divergence(
        parting=None, modules=MODULES[:1], num_not_compared=2, left_score=1.0, right_score=1.0
    )
    assert told(a_located(divergence=still)) == (
        (
            "nothing differs: 1 modules, 8 values, compared bit by bit; "
            "2 modules could not be compared"
        ),
    )


def test_growth_lists_the_first_difference_and_whole_layers() -> None:
    names = [module.module for module in shown_growth(MODULES)]
    assert names == ["embed", "model.layers.0.mlp", "model.layers.0", "model.layers.1", "score"]
    assert jump(MODULES) == (3e-7, MODULES[-1])
    assert jump(MODULES[:-1]) is None
    assert jump([a_module("embed"), a_module("first", 1.0)]) is None


@pytest.mark.parametrize("modules", [MODULES, MODULES[:1]])
def test_the_plot_is_one_self_contained_picture(modules: tuple[ModuleGrowth, ...]) -> None:
    located = a_located(divergence=replace(a_located().divergence, modules=modules))
    svg = growth_plot(located)
    assert svg.startswith("<svg")
    assert "embed" in svg
    assert svg == growth_plot(located)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound(tmp_path_factory.mktemp("sound") / "model")


def faulty_config(tmp_path: Path, model: Path, **order: Any) -> CalibrationConfig:
    asked: dict[str, Any] = {"name": "vendor", "num_threads": 1} | order
    spec = ReductionOrderSpec(**asked)
    arm = an_arm(precision=PrecisionName.FLOAT32, reduction_order=spec)
    return small_config(write_rows(tmp_path / "rows.jsonl", 8), model, arms=(arm,))


def test_a_planted_wrong_position_is_located(tmp_path: Path, sound: Path) -> None:
    model = write_faulty(sound, tmp_path / "faulty", "ColumnPositions")
    located = locate(faulty_config(tmp_path, model), "d3")
    assert located.divergence.parting is not None
    assert located.divergence.parting.cause is Cause.POSITION_IDS
    assert "left" in {located.left.composition[:4], located.right.composition[:4]}
    assert any("other position ids: logic, not rounding" in line for line in told(located))
    assert located.score_difference > 1e-3
    assert located.in_one_order is None  # it is logic already


def test_a_fault_behind_rounding_is_located_in_one_order(tmp_path: Path, sound: Path) -> None:
    model = write_faulty(sound, tmp_path / "faulty", "SharedScale")
    located = locate(faulty_config(tmp_path, model), "d1", left="solo", right="left-8")
    assert located.divergence.parting is not None
    assert located.divergence.parting.cause is Cause.ORDER  # which comes first, and hides it
    assert located.in_one_order is not None
    assert located.in_one_order.parting is not None
    assert located.in_one_order.parting.cause is Cause.SHARED


def test_an_invariant_pair_differs_nowhere(tmp_path: Path, sound: Path) -> None:
    located = locate(faulty_config(tmp_path, sound, name="batch_invariant"), "d3")
    assert located.divergence.parting is None
    assert (located.left.num_rows, located.right.num_rows) == (1, 8)
    assert located.score_difference == 0


@pytest.mark.parametrize(
    ("decision", "options", "error", "message"),
    [
        ("d99", {}, InputFileError, "--decision d99: not among the decisions"),
        ("d3", {"arm": 1}, ConfigError, "the config's arms are 0 to 0"),
        ("d3", {"left": "rows-7"}, ConfigError, "no composition 'rows-7'"),
        ("d3", {}, UnsupportedConditionError, "cannot be watched module by module"),
    ],
)
def test_what_is_not_there_is_refused(
    tmp_path: Path, decision: str, options: Any, error: type[Exception], message: str
) -> None:
    config = a_config(write_decisions(tmp_path / "rows.jsonl", 4))
    with pytest.raises(error, match=message):
        locate(config, decision, **options)
