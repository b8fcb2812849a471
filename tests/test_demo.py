import os
import signal
import time
from pathlib import Path
from threading import Lock

import pytest

from calibrate.config import CalibrationConfig, load_config
from calibrate.demo import NUM_WAYS, demo_config, misreport, play, store_scenes
from harness.commit_log import read_commits, read_items, read_replays
from harness.decisions import read_decisions
from harness.records import Decision, VerdictKind
from harness.replay import ReplayAs, replay_commits
from harness.scoring import score_decisions
from harness.tolerance_file import read_tolerance_file
from tests.command import invoke, write_config
from tests.examples import a_tolerance_file

NUM_DECISIONS = 8


@pytest.fixture
def config(tmp_path: Path) -> CalibrationConfig:
    return load_config(write_config(tmp_path / "fake.yaml"))


@pytest.fixture
def decisions() -> tuple[Decision, ...]:
    return read_decisions("embedded:decisions", NUM_DECISIONS)


def num_rows(decisions: tuple[Decision, ...]) -> int:
    return sum(len(decision.branches) for decision in decisions)


def test_the_demos_config_is_there() -> None:
    assert load_config(demo_config()).name == "demo"


def test_every_scene_is_told_stored_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decisions: tuple[Decision, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(write_config(tmp_path / "fake.yaml"))
    assert invoke("calibrate", "fake.yaml", "--run", "run").code == 0
    advanced: list[int] = []
    file = read_tolerance_file(tmp_path / "run" / "fake.tolerance.json")
    played = play(config, file, decisions, advanced.append)
    kinds = [{verdict.kind for verdict in scene.verdicts} for scene in played.scenes]
    assert kinds == [{VerdictKind.EXACT}, {VerdictKind.RECONSTRUCTION}, {VerdictKind.DRIFT}]
    assert [any(verdict.fault for verdict in s.strict) for s in played.scenes] == [0, 0, 1]
    assert sum(advanced) == (1 + NUM_WAYS) * num_rows(decisions)
    store_scenes(tmp_path / "stored", played)
    log = tmp_path / "stored" / "commits.jsonl"
    assert read_commits(log).records == played.commits
    assert len(read_items(log)) == len(played.items)
    for scene in played.scenes:
        name = f"replays-{scene.replays[0].replica}.jsonl"
        assert read_replays(tmp_path / "stored" / name).records == scene.replays


def test_a_misreporting_replica_says_what_it_was_asked_for(
    config: CalibrationConfig, decisions: tuple[Decision, ...]
) -> None:
    arm = config.arms[0]
    scored = score_decisions(config.verifier, arm.condition, arm.batching, decisions)
    items = {item.content_digest: item for item in scored.items}
    other = arm.reference_on(config.verifier.engine)
    honest = replay_commits(scored.commits, items, ReplayAs(condition=other))
    planted = misreport(honest, scored.commits)
    assert [r.invocation for r in planted] == [c.invocation for c in scored.commits]
    assert [r.invocation for r in honest] != [c.invocation for c in scored.commits]
    assert [r.scores for r in planted] == [r.scores for r in honest]


def test_an_interrupt_stops_the_replays_side_by_side(
    config: CalibrationConfig, decisions: tuple[Decision, ...]
) -> None:
    committing, calls, lock = num_rows(decisions), list[int](), Lock()

    def advance(count: int) -> None:
        with lock:
            before = sum(calls)
            calls.append(count)
        if before == committing:
            os.kill(os.getpid(), signal.SIGINT)
        if before >= committing:
            time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        play(config, a_tolerance_file(), decisions, advance)
    left = sum(calls) - committing
    assert 0 < left < committing, f"{left} rows were replayed of {NUM_WAYS * committing}"
