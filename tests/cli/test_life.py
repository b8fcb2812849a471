"""The whole life of a tolerance through the command: calibrate, score, replay, classify."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from calibrate.demo import misreport
from harness.commit_log import append_replays, read_commits, read_replays
from harness.records import PaddingSide
from harness.tolerance_file import read_tolerance_file
from tests.command import a_config, a_verifier, scorepin, write_config

TOLERANCES = ("--tolerances", "runs/fake")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrate the fake, commit 5 decisions, replay them honestly and in another precision."""
    folder = tmp_path_factory.mktemp("finished")
    write_config(folder / "fake.yaml")
    for command in (
        ("calibrate", "fake.yaml"),
        ("score", "fake.yaml", "--limit", "5", "--commits", "commits.jsonl"),
        ("replay", "commits.jsonl", "--replica", "r0"),
        ("replay", "commits.jsonl", "--precision", "float32", "--out", "float32.jsonl"),
    ):
        done = scorepin(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "", "without a terminal there is no progress to see"
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "life")
    return tmp_path / "life"


def verdicts(folder: Path, replays: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    done = scorepin(
        "classify", "commits.jsonl", replays, *TOLERANCES, "--json", *options, cwd=folder
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def kinds(judged: list[dict[str, Any]]) -> set[str]:
    return {verdict["kind"] for verdict in judged}


def test_calibrate_tells_what_it_wrote(folder: Path) -> None:
    done = scorepin("calibrate", "fake.yaml", "--run", "again", cwd=folder)
    shown = scorepin("show", "again/fake.tolerance.json", cwd=folder)
    assert done.stdout == shown.stdout + (
        "\ntolerance file  again/fake.tolerance.json\nreport          again/report.html\n"
    )
    first, second = (folder / run / "fake.tolerance.json" for run in ("runs/fake", "again"))
    assert first.read_bytes() == second.read_bytes(), "the same run gives the same bytes"
    assert (folder / "again" / "report.html").stat().st_size > 1000


def test_a_finished_calibration_can_be_asked_for_again(folder: Path) -> None:
    path = folder / "runs" / "fake" / "fake.tolerance.json"
    before = path.read_bytes()
    done = scorepin("calibrate", "fake.yaml", cwd=folder, SOURCE_DATE_EPOCH="1800000000")
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes() == before


def test_calibrate_for_a_machine(folder: Path) -> None:
    done = scorepin("calibrate", "fake.yaml", "--json", "--run", "again", cwd=folder)
    told = json.loads(done.stdout)
    assert told.pop("num_observations") > 1000
    assert told == {"report": "again/report.html", "tolerance": "again/fake.tolerance.json"}


def test_score_appends_each_commit_once(folder: Path) -> None:
    score = ("score", "fake.yaml", "--commits", "commits.jsonl")
    before = (folder / "commits.jsonl").read_bytes()
    done = scorepin(*score, "--limit", "5", cwd=folder)
    assert done.stdout == "0 commit records (5 were there already) in commits.jsonl\n"
    assert (folder / "commits.jsonl").read_bytes() == before
    other = scorepin(*score, "--limit", "6", "--json", cwd=folder)
    assert json.loads(other.stdout)["num_scored"] == 6
    assert (folder / "commits.jsonl").read_bytes().startswith(before)


def test_score_writes_beside_the_run_unless_told_otherwise(folder: Path) -> None:
    done = scorepin("score", "fake.yaml", "--limit", "1", cwd=folder)
    assert done.stdout == "1 commit records in runs/fake/commits.jsonl\n"
    assert len(read_commits(folder / "runs" / "fake" / "commits.jsonl").records) == 1


def test_a_speculative_run_is_plan_noise(folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "spec", ignore_errors=True)
    (folder / "commits.jsonl").unlink()
    score = ("score", "fake.yaml", "--limit", "2", "--speculative", "--commits", "commits.jsonl")
    assert scorepin(*score, cwd=folder).returncode == 0
    scorepin("replay", "commits.jsonl", "--out", "spec.jsonl", cwd=folder)
    code, judged = verdicts(folder, "spec.jsonl")
    assert (code, kinds(judged), len(judged)) == (0, {"plan_noise"}, 2)


def test_an_honest_replay_is_exact(folder: Path) -> None:
    code, judged = verdicts(folder, "commits.replays.jsonl")
    assert (code, kinds(judged)) == (0, {"exact"})
    assert [verdict["replica"] for verdict in judged] == ["r0"] * 5


def test_replays_are_appended(folder: Path) -> None:
    done = scorepin("replay", "commits.jsonl", "--limit", "2", "--json", cwd=folder)
    told = {"num_rejected": 0, "num_replayed": 2, "replays": "commits.replays.jsonl"}
    assert json.loads(done.stdout) == told
    assert len(read_replays(folder / "commits.replays.jsonl").records) == 7


def test_another_precision_is_a_reconstruction(folder: Path) -> None:
    code, judged = verdicts(folder, "float32.jsonl", "--policy", "strict")
    assert (code, kinds(judged)) == (0, {"reconstruction"})
    assert judged[0]["differing"][0]["name"] == "precision_mode.name"


def test_other_batches_are_a_reconstruction(folder: Path) -> None:
    replay = ("replay", "commits.jsonl", "--max-rows", "3", "--out", "three.jsonl")
    assert scorepin(*replay, cwd=folder).returncode == 0
    code, judged = verdicts(folder, "three.jsonl", "--policy", "strict")
    assert (code, kinds(judged), len(judged)) == (0, {"reconstruction"}, 5)
    differing = {one["name"] for verdict in judged for one in verdict["differing"]}
    assert differing == {"batch_membership.num_steps"}


def test_other_batches_are_padded_on_the_recorded_side(folder: Path) -> None:
    batching = {"mode": "padded", "side": "left", "max_rows": 12}
    arms = [{**a_config()["arms"][0], "batching": batching}]
    write_config(folder / "left.yaml", arms=arms)
    scorepin("score", "left.yaml", "--limit", "2", "--commits", "left.jsonl", cwd=folder)
    scorepin("replay", "left.jsonl", "--max-rows", "3", cwd=folder)
    replays = read_replays(folder / "left.replays.jsonl").records
    steps = [step for replay in replays for step in replay.invocation.batch_membership.steps]
    assert {step.padding_side for step in steps} == {PaddingSide.LEFT}
    assert max(len(step.slots) for step in steps) == 3


def test_a_misreported_precision_is_found(folder: Path) -> None:
    """The planted fault: computed in float32, recorded as what was asked for."""
    commits = read_commits(folder / "commits.jsonl").records
    replays = read_replays(folder / "float32.jsonl").records
    append_replays(folder / "planted.jsonl", misreport(replays, commits))
    code, judged = verdicts(folder, "planted.jsonl", "--policy", "strict")
    assert code == 1
    assert kinds(judged) <= {"drift", "divergence"}
    assert all(verdict["fault"] for verdict in judged)


def test_the_tolerance_of_another_build_judges_nothing(folder: Path) -> None:
    prompt = {"template": "{context} {branch}"}
    write_config(folder / "other.yaml", verifier={**a_config()["verifier"], "prompt": prompt})
    assert scorepin("calibrate", "other.yaml", "--run", "other", cwd=folder).returncode == 0
    shutil.move(folder / "other" / "fake.tolerance.json", folder / "runs/fake/fake.tolerance.json")
    code, judged = verdicts(folder, "float32.jsonl")
    assert (code, kinds(judged)) == (0, {"reconstruction"}), "parameters are compared first"
    code, judged = verdicts(folder, "commits.replays.jsonl")
    assert (code, kinds(judged)) == (0, {"unjudged"})
    assert "prompt_digest" in judged[0]["reason"]


def test_a_refused_build_gets_a_report_and_no_tolerance(folder: Path) -> None:
    write_config(folder / "bug.yaml", verifier={**a_config()["verifier"], "model": "fake:logic"})
    done = scorepin("calibrate", "bug.yaml", "--run", "bug", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    assert "rounding: movement does not shrink with precision" in done.stderr
    assert "what to do:" in done.stderr
    assert done.stderr.endswith("\nreport: bug/report.html\n")
    names = sorted(path.name for path in (folder / "bug").iterdir())
    assert names == ["config.json", "observations.sqlite", "report.html"]
    assert "does not shrink" in (folder / "bug" / "report.html").read_text()


def test_the_demo_on_a_fake(folder: Path) -> None:
    done = scorepin("demo", "--config", "fake.yaml", "--run", "demo", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    text = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    assert """
5 commits, replayed in three ways
replay                         verdicts           faults   strict faults
────────────────────────────────────────────────────────────────────────
the same computation again     5 exact                 0               0
in batches of 3                5 reconstruction        0               0
planted: secretly in float32   5 drift                 0               5

the same computation again: exact
  every score has the same bits
""" in text  # fmt: skip
    assert text.endswith(
        "tolerance file  demo/fake.tolerance.json\n"
        "report          demo/report.html\n"
        "commit log      demo/commits.jsonl\n"
    )
    again = ("classify", "commits.jsonl", "replays-planted.jsonl", "--tolerances", ".")
    judged = scorepin(*again, "--policy", "strict", cwd=folder / "demo")
    assert judged.returncode == 1


def test_the_embedded_verifier_from_end_to_end(tmp_path: Path) -> None:
    sweep = {"rows": [3, 12], "reference_rows": 12, "sides": ["right"]}
    verifier = a_verifier("embedded:reward")
    write_config(tmp_path / "fake.yaml", verifier=verifier, guard_decisions=8, sweep=sweep)
    calibrated = scorepin("calibrate", "fake.yaml", cwd=tmp_path)
    assert calibrated.returncode == 0, calibrated.stderr
    file = read_tolerance_file(tmp_path / "runs" / "fake" / "fake.tolerance.json")
    assert file.build.engine.startswith("transformers")
    assert file.tolerances[0].envelope.value > file.tolerances[0].floor.value == 0.0
    for command in (
        ("score", "fake.yaml", "--limit", "3", "--commits", "commits.jsonl"),
        ("replay", "commits.jsonl"),
    ):
        assert scorepin(*command, cwd=tmp_path).returncode == 0
    code, judged = verdicts(tmp_path, "commits.replays.jsonl", "--policy", "strict")
    assert (code, kinds(judged), len(judged)) == (0, {"exact"}, 3)
