"""Faults planted in small checkpoints, each refused by name; and what must not be refused.

Every run is real: transformers, processes, store, guards. Its decisions stand on either side of
batches, alone and together.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from calibrate.config import CalibrationConfig
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import GuardRefusalError, ModelLoadError, UnsupportedConditionError
from harness.records import AxisStatus, PrecisionName, Tolerance
from harness.records.batching import PaddingSide
from harness.tolerance_file import read_tolerance_file
from tests.calibrate.example_runs import LATER, Recorder, an_arm, files_in, run
from tests.calibrate.faulty_models import (
    NUM_GUARDED,
    small_config,
    write_faulty,
    write_headless,
    write_routed,
    write_rows,
    write_sound,
)
from tests.calibrate.forked_workers import fork_workers
from tests.calibrate.killed_runs import tolerance_bytes


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faulty")


@pytest.fixture(scope="module", autouse=True)
def forked(home: Path) -> Iterator[None]:
    """Fork condition processes, and keep the code that they load out of the user's cache."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_MODULES_CACHE", str(home / "modules"))
        fork_workers(patched)
        yield


@pytest.fixture(scope="module")
def sound(home: Path) -> Path:
    return write_sound(home / "Sound")


@pytest.fixture(scope="module")
def decisions(home: Path) -> str:
    return write_rows(home / "decisions.jsonl")


def evidence(tolerance: Tolerance) -> dict[str, str]:
    return {guard.guard: guard.evidence for guard in tolerance.guards}


def refusal(config: CalibrationConfig, folder: Path) -> dict[str, str]:
    """Return guard -> what it says, of the guards that refuse a build."""
    with pytest.raises(GuardRefusalError) as caught:
        run(config, folder)
    found = re.findall(r"^- (\w+): (.*)\n  usual causes: ", str(caught.value), re.MULTILINE)
    assert f"{len(found)} guard(s) failed" in str(caught.value)
    assert not files_in(folder).tolerance.exists()
    return dict(found)


FAULTS = {
    "ColumnPositions": ("rounding", r"10 of 10 decisions, decision 'd\d' by \S+ in bfloat16 and "),
    "PooledByPad": ("rounding", r"4 of 10 decisions, .*4 still move in float64, by up to "),
    "SkippedMask": ("rounding", r"10 of 10 decisions, .*; no appeal: more than the 5 decisions of"),
    "StaleBuffer": ("rounding", r"logic and not rounding: \d+ of 10 decisions, decision 'd"),
    "NormalisedOverBatch": ("rounding", r"\d+ of them by up to .* only their neighbours' content"),
    "SharedScale": ("rounding", r"\d of them by up to .*a scale or a normalisation shared by"),
    "Capacity": ("rounding", r"\d of them by up to .*at a fixed shape.*routing with a capacity"),
    "CastAway": ("distinct_arms", r"'measured' and 'reference' resolved to the same dtypes"),
    "ConstantHead": ("live_head", r"the head is constant: \S+ for all 44 rows in bfloat16"),
    "FreshHead": ("live_head", r"fresh load 1 differs under the identical condition by"),
    "FreshWeights": ("live_head", r"weights differ between loads: \['sha256:"),
    "FullyMasked": ("finite", r"36 of 44 scores are not finite in bfloat16, left-8: row 'd0/b0' "),
}
"""Fault -> the guard that names it, and its evidence; a float64 process is run for few of them."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_by_name(
    fault: str, sound: Path, decisions: str, tmp_path: Path
) -> None:
    guard, found = FAULTS[fault]
    model = write_faulty(sound, tmp_path / fault, fault)
    config = small_config(decisions, model, exact_decisions=0, appeal_decisions=5)
    refused = refusal(config, tmp_path / "run")
    assert re.search(found, refused[guard]), refused


SEEN_IN_FLOAT64 = {
    "ClampedInBfloat16": {
        "own_error": r"10 of 10 decisions are further from float64 in bfloat16 than rounding",
    },
    "SecretAutocast": {
        "rounding": r"\d+ do not, but float32 is nowhere nearer to float64 than .* coarser",
        "own_error": r"\d+ of 10 decisions are further from float64 in float32 than rounding",
    },
}


@pytest.mark.parametrize("fault", SEEN_IN_FLOAT64)
def test_a_fault_that_another_precision_would_hide_is_seen_in_float64(
    fault: str, sound: Path, decisions: str, tmp_path: Path
) -> None:
    model = write_faulty(sound, tmp_path / fault, fault)
    refused = refusal(small_config(decisions, model), tmp_path / "run")
    assert refused.keys() == SEEN_IN_FLOAT64[fault].keys()
    for guard, found in SEEN_IN_FLOAT64[fault].items():
        assert re.search(found, refused[guard]), refused


@pytest.mark.parametrize("model", ["Sound", "OwnScale"])
def test_the_same_weights_without_a_fault_pass(
    model: str, sound: Path, decisions: str, tmp_path: Path
) -> None:
    """Its shape-dependent rounding on the lattice too, and steps of a quantiser a token."""
    config = small_config(decisions, write_faulty(sound, tmp_path / model, model))
    (tolerance,) = run(config, tmp_path / "run").file.tolerances
    moved = {axis.axis for axis in tolerance.axes if axis.status is AxisStatus.MOVED}
    assert {"combined", "padding_side"} <= moved
    assert tolerance.envelope.value > 0
    found = evidence(tolerance)
    assert "which reads as rounding" in found["rounding"]
    assert "appeal" not in found["rounding"]
    assert tolerance.own_error is not None
    assert tolerance.own_error.num_decisions == NUM_GUARDED
    assert 2**-9 < tolerance.own_error.median < 2**-3  # of scores around 1, in bfloat16
    assert "a shift in one composition is caught from" in found["canary"]


def test_pooling_by_a_pad_inside_the_prompt_is_seen_without_left_padding(
    sound: Path, decisions: str, tmp_path: Path
) -> None:
    """Padded on the right it moves nothing: the row is wrong in every batch alike."""
    config = small_config(decisions, write_faulty(sound, tmp_path / "model", "PooledByPad"))
    one_side = replace(config, sweep=replace(config.sweep, sides=(PaddingSide.RIGHT,)))
    refused = refusal(one_side, tmp_path / "run")
    assert list(refused) == ["live_head"]
    assert "the branch does not matter in 4 of 10 decisions" in refused["live_head"]
    assert "('d0', 'd3', 'd6' and 1 more)" in refused["live_head"]


def test_a_head_that_is_not_stored_is_refused_when_it_is_loaded(
    sound: Path, decisions: str, tmp_path: Path
) -> None:
    config = small_config(decisions, write_headless(sound, tmp_path / "model"))
    with pytest.raises(ModelLoadError, match=r"weights missing: score\.weight"):
        run(config, tmp_path / "run")


def last_tokens(decisions: str) -> list[str]:
    """Return the rows of the first decisions, as the prompt writes them."""
    lines = [json.loads(line) for line in Path(decisions).read_text().splitlines()[:NUM_GUARDED]]
    return [
        f"<bos>{line['context']}<sol>{branch['text']}<eos>"
        for line in lines[:4]
        for branch in line["branches"]
    ]


class Heard(NamedTuple):
    """A calibration of a mixture of experts with ties, and what came of it."""

    config: CalibrationConfig
    tolerances: bytes
    told: Recorder


@pytest.fixture(scope="module")
def heard(decisions: str, home: Path) -> Heard:
    config = small_config(decisions, write_routed(home / "routed", last_tokens(decisions)))
    told = Recorder()
    run(config, home / "heard", progress=told)
    return Heard(config, tolerance_bytes(home / "heard"), told)


def test_routing_that_float32_flips_is_heard_in_float64_and_passes(
    heard: Heard, home: Path, tmp_path: Path
) -> None:
    (tolerance,) = read_tolerance_file(files_in(home / "heard").tolerance).tolerances
    found = evidence(tolerance)["rounding"]
    beyond = re.search(r"appeal: (\d) decisions are beyond that in float32 \('d", found)
    assert beyond, found
    whole, part = (heard.told.advanced_costs[f"arm-0/{name}"] for name in ("reference", "appeal"))
    assert 0 < part < whole
    unheard = replace(heard.config, appeal_decisions=0)
    refused = refusal(unheard, tmp_path / "unheard")
    assert f"{beyond[1]} of 10 decisions, decision 'd" in refused["rounding"]
    assert "no appeal: appeal_decisions is 0" in refused["rounding"]


def test_an_appeal_is_resumed_and_gives_the_same_bytes(heard: Heard, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("calibrate.appeals.run_processes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(heard.config, tmp_path)
    told, again = Recorder(), Recorder()
    run(heard.config, tmp_path, now=LATER, progress=told)
    assert list(told.advanced_costs) == ["arm-0/appeal"]
    assert tolerance_bytes(tmp_path) == heard.tolerances
    run(heard.config, tmp_path, now=LATER, progress=again)
    assert again.advanced_costs == {}


def test_routing_whose_experts_do_not_tie_needs_no_appeal(decisions: str, tmp_path: Path) -> None:
    config = small_config(decisions, write_routed(tmp_path / "model"))
    told = Recorder()
    (tolerance,) = run(config, tmp_path / "run", progress=told).file.tolerances
    assert "appeal" not in evidence(tolerance)["rounding"]
    assert "arm-0/appeal" not in told.planned_costs


def test_float32_is_judged_by_float64_and_has_no_appeal(
    sound: Path, decisions: str, tmp_path: Path
) -> None:
    order = ReductionOrderSpec(name="vendor", num_threads=1)
    arm = an_arm(precision=PrecisionName.FLOAT32, reduction_order=order)
    config = small_config(decisions, sound, arms=(arm,))
    (tolerance,) = run(config, tmp_path / "sound").file.tolerances
    assert tolerance.own_error is not None
    assert 0 < tolerance.own_error.largest < 1e-5
    assert "nothing lies between float32 and float64" in evidence(tolerance)["own_error"]
    faulty = write_faulty(sound, tmp_path / "model", "SkippedMask")
    refused = refusal(small_config(decisions, faulty, arms=(arm,)), tmp_path / "run")
    assert "no appeal: the reference is float64 already" in refused["rounding"]


def test_a_model_that_float64_does_not_run_is_judged_without(
    sound: Path, decisions: str, tmp_path: Path
) -> None:
    config = small_config(decisions, write_faulty(sound, tmp_path / "half", "HalvesOnly"))
    (tolerance,) = run(config, tmp_path / "run").file.tolerances
    assert tolerance.own_error is None
    assert "not measured: float64 does not run" in evidence(tolerance)["own_error"]
    arm = replace(config.arms[0], precision=PrecisionName.FLOAT32)
    with pytest.raises(UnsupportedConditionError, match="no float64 kernel"):
        run(replace(config, arms=(arm,)), tmp_path / "float32")


def test_exact_decisions_may_be_none(sound: Path, decisions: str, tmp_path: Path) -> None:
    config = replace(small_config(decisions, sound), exact_decisions=0)
    told = Recorder()
    (tolerance,) = run(config, tmp_path / "run", progress=told).file.tolerances
    assert set(told.planned_costs) == {
        "arm-0/measure-0",
        "arm-0/measure-1",
        "arm-0/reference",
    }
    assert tolerance.own_error is None
    assert "own_error" not in evidence(tolerance)
