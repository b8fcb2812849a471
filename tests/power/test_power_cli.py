"""``scorepin power`` as a user starts it, on a fake verifier."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from calibrate.power.findings import read_power_report
from calibrate.power.stage import stage
from tests.command import invoke, write_config

ARGUMENTS = ("power", "fake.yaml", "--run", "run", "--decisions", "8", "--honest", "16")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    power = {"candidates": 3, "num_orders": 20, "replay_rows": 2}
    write_config(tmp_path / "fake.yaml", power=power)
    return tmp_path


def test_a_run_that_is_not_calibrated_is_told_to_be(folder: Path) -> None:
    done = invoke(*ARGUMENTS)
    assert (done.code, done.stdout) == (2, "")
    assert "run/fake.tolerance.json: is not there; run scorepin calibrate first" in done.stderr
    assert not (folder / "run").exists()


def test_the_study_is_printed_and_stored_and_a_false_fault_ends_it_with_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("calibrate", "fake.yaml", "--run", "run").code == 0
    done = invoke(*ARGUMENTS)
    assert (done.code, done.stderr) == (0, "")
    report = read_power_report(folder / "run" / "power.json")
    assert (report.setting.num_decisions, report.setting.num_rows) == (8, 24)
    assert report.honest.num_processes == 2
    assert done.stdout.startswith("fake: 8 decisions of 24 branches, committed in batches of 12,")
    assert done.stdout.endswith("study  run/power.json\n")
    _plant_a_false_fault(monkeypatch)
    failed = invoke(*ARGUMENTS, "--json")
    assert failed.code == 1
    found, stored = json.loads(failed.stdout), (folder / "run" / "power.json").read_bytes()
    assert found.pop("unknown_fields") == {}
    assert found == json.loads(stored)
    assert read_power_report(folder / "run" / "power.json").has_false_fault
    assert not found["targets"][0]["met"]


def _plant_a_false_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlucky_stage(*arguments: object) -> object:
        staged = stage(*arguments)  # type: ignore[arg-type]
        (first, *rest), *others = staged.honest
        bad = replace(first, scores=dict.fromkeys(first.scores, 99.0))
        return replace(staged, honest=((bad, *rest), *others))

    monkeypatch.setattr("calibrate.power.study.stage", unlucky_stage)
