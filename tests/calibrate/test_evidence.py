"""Whole calibrations, from a config to its files, on verifiers whose faults are known."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from calibrate.config import CalibrationConfig, Claim
from calibrate.evidence import ArmEvidence, Snapshot, snapshot, tolerance_file
from calibrate.observations import ObservationStore, RunIdentity
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import (
    ConfigError,
    GuardRefusalError,
    InsufficientEvidenceError,
    StoreError,
)
from harness.records import AxisStatus, Equivalence, PrecisionName, Tolerance
from harness.records.batching import FixedWidth, Padded, PaddingSide, Solo
from harness.records.verifier import Overflow
from harness.tolerance_file import read_tolerance_file
from harness.verifiers.random_weights import Architecture, Task, write_checkpoint
from scripts.regenerate_formats.schema import SCHEMA
from tests.calibrate.example_runs import (
    LATER,
    NOW,
    a_config,
    an_arm,
    files_in,
    run,
    write_decisions,
)
from tests.calibrate.killed_runs import kill_group, num_stored, tolerance_bytes

ALIKE = 104  # decisions enough for every axis to be compared on 59 of them


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_decisions(tmp_path_factory.mktemp("data") / "decisions.jsonl", ALIKE)


def blessed(config: CalibrationConfig, folder: Path) -> tuple[Tolerance, ...]:
    """Return the tolerances of a run, read back from its file, which must fit its schema."""
    calibrated, files = run(config, folder), files_in(folder)
    file = read_tolerance_file(files.tolerance)
    assert file.tolerances == calibrated.file.tolerances
    assert "blessed" in files.report.read_text()
    published = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_bytes()))
    written = json.loads(files.tolerance.read_bytes())
    published.validate(written)
    del written["tolerances"][0]["envelope"]["rank"]
    assert not published.is_valid(written)
    return file.tolerances


def statuses(tolerance: Tolerance) -> dict[str, AxisStatus]:
    return {axis.axis: axis.status for axis in tolerance.axes}


def test_a_verifier_that_never_moves_is_blessed_for_any_membership(
    decisions: str, tmp_path: Path
) -> None:
    (tolerance,) = blessed(a_config(decisions, "fake:exact"), tmp_path)
    assert (tolerance.floor.value, tolerance.envelope.value) == (0.0, 0.0)
    assert tolerance.equivalence is Equivalence.ANY
    assert AxisStatus.MOVED not in statuses(tolerance).values()


def test_a_verifier_that_rounds_is_blessed_for_the_same_shape(
    decisions: str, tmp_path: Path
) -> None:
    (tolerance,) = blessed(a_config(decisions, "fake:rounding"), tmp_path)
    step = 32 * 2.0**-8  # the fake's amplification times bfloat16's unit roundoff
    assert tolerance.floor.value == 0.0
    assert "20 and 20 moved" in tolerance.guards[0].evidence
    assert re.search(r"mean movement shrinks by 2\^-1[56]\.\d \(", tolerance.guards[0].evidence)
    assert step < tolerance.envelope.value <= 2 * step
    assert tolerance.equivalence is Equivalence.SHAPE
    assert not tolerance.companion_coupled
    found = statuses(tolerance)
    moved = {axis for axis, status in found.items() if status is AxisStatus.MOVED}
    assert moved == {"num_rows", "padded_width", "padding_side", "combined"}
    assert found["companions"] is AxisStatus.INVARIANT
    assert tolerance.batches.max_rows == 8
    assert tolerance.batches.sides == (PaddingSide.RIGHT,)  # the other is measured, not claimed


def test_a_coupled_verifier_is_blessed_marked_and_exact(decisions: str, tmp_path: Path) -> None:
    (tolerance,) = blessed(a_config(decisions, "fake:coupled"), tmp_path)
    assert tolerance.companion_coupled
    assert tolerance.equivalence is Equivalence.EXACT
    assert statuses(tolerance)["companions"] is AxisStatus.MOVED
    assert statuses(tolerance)["repeat_fresh_process"] is AxisStatus.INVARIANT
    assert "companion-coupled" in files_in(tmp_path).report.read_text()


REFUSED = {
    "fake:logic": r"- rounding: movement does not shrink with precision",
    "fake:constant": r"- live_head: the head is constant: 1\.0 for all 208 rows",
    "fake:nan": r"- finite: 148 of 208 scores are not finite in bfloat16, rows-4: row 'd0/b0'",
}


@pytest.mark.parametrize("model", REFUSED)
def test_a_bug_is_refused_by_its_guard_with_a_report_and_no_tolerance_file(
    decisions: str, tmp_path: Path, model: str
) -> None:
    config = a_config(decisions, model)
    with pytest.raises(GuardRefusalError, match=REFUSED[model]) as first:
        run(config, tmp_path)
    files = files_in(tmp_path)
    assert not files.tolerance.exists()
    report = files.report.read_text()
    assert "refused" in report
    assert "Why no tolerance file was written" in report
    with pytest.raises(GuardRefusalError) as second:
        run(config, tmp_path, now=LATER)
    assert str(second.value) == str(first.value)
    assert files.report.read_text() == report


def test_every_arm_that_is_refused_is_named(decisions: str, tmp_path: Path) -> None:
    arms = an_arm(), an_arm(precision=PrecisionName.FLOAT16, batching=Solo())
    config = a_config(decisions, "fake:constant", arms=arms)
    with pytest.raises(GuardRefusalError) as caught:
        run(config, tmp_path)
    text = str(caught.value)
    assert "bfloat16/vendor, padded, up to 8 rows: no tolerance is issued" in text
    assert "float16/vendor, solo, up to 1 rows: no tolerance is issued" in text


def test_every_batching_mode_and_precision_gets_its_tolerance(
    decisions: str, tmp_path: Path
) -> None:
    arms = (
        an_arm(precision=PrecisionName.FLOAT16, batching=Padded(max_rows=6, side=PaddingSide.LEFT)),
        an_arm(precision=PrecisionName.FLOAT32, batching=FixedWidth(max_rows=5, width=64)),
        an_arm(batching=Solo()),
    )
    config = a_config(decisions, arms=arms, valid_days=30)
    found = blessed(config, tmp_path)
    batches = [(one.batches.mode, one.batches.max_rows, one.batches.max_width) for one in found]
    assert batches == [("padded", 6, 40), ("fixed_width", 5, 64), ("solo", 1, 34)]
    envelopes = [tolerance.envelope.value for tolerance in found]
    assert envelopes[0] > envelopes[1] > envelopes[2] == 0.0
    assert [tolerance.precision_mode.name for tolerance in found] == [
        "float16",
        "float32",
        "bfloat16",
    ]
    assert statuses(found[2])["num_rows"] is AxisStatus.NOT_EXERCISED
    assert found[2].batches.sides == ()
    file = read_tolerance_file(files_in(tmp_path).tolerance)
    assert (file.created_at, file.expires_at) == (NOW.isoformat(), "2026-02-01T03:04:05+00:00")


def test_the_tolerance_file_says_where_it_comes_from(decisions: str, tmp_path: Path) -> None:
    config = a_config(decisions)
    file = run(config, tmp_path).file
    assert file.config_digest == config.digest
    assert file.build.verifier == config.verifier
    assert (file.expires_at, file.num_truncated) == (None, 0)
    bound = file.tolerances[0].envelope
    assert (bound.num_decisions, bound.coverage, bound.confidence) == (ALIKE, 0.95, 0.95)
    assert bound.rank == 2
    guards = [guard.guard for guard in file.tolerances[0].guards]
    assert guards == [
        *("rounding", "live_head", "distinct_arms", "finite", "own_error", "canary"),
        "neighbours",
    ]
    assert (
        file.tolerances[0].guards[0].evidence.startswith("20 decisions, bfloat16 against float32")
    )


def test_truncated_rows_are_counted(decisions: str, tmp_path: Path) -> None:
    config = a_config(decisions)
    cut = replace(config.verifier, max_tokens=25, overflow=Overflow.KEEP_END)
    run(replace(config, verifier=cut), tmp_path)
    file = read_tolerance_file(files_in(tmp_path).tolerance)
    assert 0 < file.num_truncated < 2 * ALIKE
    assert f"{file.num_truncated} rows truncated" in files_in(tmp_path).report.read_text()


TOO_FEW: dict[str, tuple[Callable[[CalibrationConfig], CalibrationConfig], type, str]] = {
    "coverage": (
        lambda config: replace(config, claim=Claim(coverage=0.99, confidence=0.95)),
        InsufficientEvidenceError,
        r"104 of the 299 .*measure 195 more decisions",
    ),
    "num_decisions": (
        lambda config: replace(config, num_decisions=58),
        InsufficientEvidenceError,
        r"58 of the 59 .*measure 1 more decisions",
    ),
    "more than there are": (
        lambda config: replace(config, num_decisions=105),
        ConfigError,
        r"num_decisions is 105 and .*decisions\.jsonl holds 104; add 1, ask for fewer",
    ),
}


@pytest.mark.parametrize("case", TOO_FEW)
def test_too_few_decisions_are_told_before_anything_runs(
    decisions: str, tmp_path: Path, case: str
) -> None:
    change, kind, message = TOO_FEW[case]
    with pytest.raises(kind, match=message):
        run(change(a_config(decisions)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_just_enough_decisions_are_enough(decisions: str, tmp_path: Path) -> None:
    calibrated = run(a_config(decisions, num_decisions=59), tmp_path)
    assert calibrated.file.tolerances[0].envelope.rank == 1


def taken(config: CalibrationConfig, folder: Path) -> Snapshot:
    """Return a snapshot of a finished run."""
    identity = RunIdentity(
        scorepin_version=read_tolerance_file(files_in(folder).tolerance).scorepin_version,
        config_digest=config.digest,
        decisions_digest=read_tolerance_file(files_in(folder).tolerance).decisions_digest,
        created_at=NOW.isoformat(),
    )
    with ObservationStore(files_in(folder).store, identity) as store:
        return snapshot(config, store)


def changed(found: Snapshot, process: str, composition: str, row: int, score: float) -> Snapshot:
    """Return `found` with one score that is another."""
    scores = {name: dict(by_name) for name, by_name in found.scores.items()}
    scores[process][composition] = {**scores[process][composition], row: score}
    return replace(found, scores=scores)


def test_a_needle_among_the_scores_is_found(decisions: str, tmp_path: Path) -> None:
    config = a_config(decisions, "fake:exact")
    run(config, tmp_path)
    found = taken(config, tmp_path)
    measured = next(name for name in found.scores if "left-4" in found.scores[name])
    row = min(range(76, 80), key=lambda at: found.rows[at].num_tokens)  # padded in its batch
    original = found.scores[measured]["left-4"][row]
    needle = changed(found, measured, "left-4", row, float(np.nextafter(original, np.inf)))
    tolerance = tolerance_file(needle, [ArmEvidence(needle, 0)]).tolerances[0]
    moved = [axis for axis in tolerance.axes if axis.status is AxisStatus.MOVED]
    assert {axis.axis for axis in moved} == {"padding_side", "combined"}
    assert {axis.num_scores_moved for axis in moved} == {1}
    assert tolerance.equivalence is Equivalence.SHAPE

    fresh = next(name for name in found.scores if "fresh-rows-4" in found.scores[name])
    repeat = changed(found, fresh, "fresh-rows-4", row, original + 2.0**-10)
    tolerance = tolerance_file(repeat, [ArmEvidence(repeat, 0)]).tolerances[0]
    assert tolerance.equivalence is Equivalence.EXACT
    assert statuses(tolerance)["repeat_fresh_process"] is AxisStatus.MOVED

    nan = changed(found, "arm-0/reference", "solo", 3, float("nan"))
    with pytest.raises(GuardRefusalError, match=r"1 of 40 .*float32, solo: row 'd1/b1'"):
        tolerance_file(nan, [ArmEvidence(nan, 0)])


@pytest.mark.parametrize("kind", ["again-", "fresh-"])
def test_the_floor_is_how_far_repeats_move(decisions: str, tmp_path: Path, kind: str) -> None:
    config = a_config(decisions, "fake:exact")
    run(config, tmp_path)
    found, name = taken(config, tmp_path), f"{kind}rows-4"
    process = next(process for process in found.scores if name in found.scores[process])
    for row, by in ((10, 2.0**-9), (20, 2.0**-10), (30, 2.0**-11)):
        score = found.scores[process][name][row]
        found = changed(found, process, name, row, score + by)
    tolerance = tolerance_file(found, [ArmEvidence(found, 0)]).tolerances[0]
    assert tolerance.floor.rank == 2
    assert tolerance.floor.value == pytest.approx(2.0**-10)
    assert tolerance.envelope.value == tolerance.floor.value


def test_weights_that_load_differently_are_refused(decisions: str, tmp_path: Path) -> None:
    config = a_config(decisions, "fake:exact")
    run(config, tmp_path)
    found = taken(config, tmp_path)
    facts = found.facts["arm-0/measure-1"]
    other = replace(facts, condition=replace(facts.condition, loaded_digest="sha256:other"))
    reloaded = replace(found, facts={**found.facts, "arm-0/measure-1": other})
    with pytest.raises(GuardRefusalError, match="live_head: weights differ between loads"):
        tolerance_file(reloaded, [ArmEvidence(reloaded, 0)])


def test_a_run_that_is_not_finished_gives_no_evidence(decisions: str, tmp_path: Path) -> None:
    config = a_config(decisions)
    run(config, tmp_path)
    found = taken(config, tmp_path)
    scores = {name: dict(by_name) for name, by_name in found.scores.items()}
    scores["arm-0/measure-0"]["rows-4"] = dict(
        list(scores["arm-0/measure-0"]["rows-4"].items())[1:]
    )
    with pytest.raises(StoreError, match="rows-4: 207 of 208 rows are stored; resume"):
        ArmEvidence(replace(found, scores=scores), 0)


def a_model_config(decisions: str, model: str) -> CalibrationConfig:
    """Return a config of few and large batches."""
    order = ReductionOrderSpec(name="vendor", num_threads=1)
    config = a_config(decisions, model, arms=(an_arm(reduction_order=order),), guard_decisions=10)
    sweep = replace(config.sweep, rows=(), reference_rows=8, sides=())
    return replace(config, sweep=sweep, num_decisions=22, claim=Claim(coverage=0.9, confidence=0.9))


def test_the_embedded_verifier_killed_and_resumed_gives_the_same_bytes(
    decisions: str, tmp_path: Path
) -> None:
    config = a_model_config(decisions, "embedded:reward")
    kill_group(replace(config, processes=1), tmp_path / "killed", 20)
    assert num_stored(tmp_path / "killed") == {"arm-0/measure-0": 20}
    run(config, tmp_path / "killed", now=LATER)
    (tolerance,) = blessed(config, tmp_path / "whole")
    assert tolerance_bytes(tmp_path / "killed") == tolerance_bytes(tmp_path / "whole")
    assert tolerance.floor.value == 0.0 < tolerance.envelope.value < 0.5
    assert statuses(tolerance)["companions"] is AxisStatus.INVARIANT


def test_float32_is_judged_against_float64(decisions: str, tmp_path: Path) -> None:
    model = write_checkpoint(
        tmp_path / "model",
        architecture=Architecture.LLAMA,
        task=Task.SEQUENCE_CLASSIFICATION,
        seed=1,
    )
    config = a_model_config(decisions, str(model))
    arm = replace(config.arms[0], precision=PrecisionName.FLOAT32)
    (tolerance,) = blessed(replace(config, arms=(arm,)), tmp_path / "run")
    assert 0.0 < tolerance.envelope.value < 1e-4
    rounding = next(guard for guard in tolerance.guards if guard.guard == "rounding")
    assert "10 decisions, float32 against float64" in rounding.evidence
