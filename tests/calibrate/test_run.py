import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from calibrate.calibration import calibrate
from calibrate.config import CalibrationConfig
from calibrate.observations import ObservationStore
from harness.conditions.batching import Batch
from harness.errors import InputFileError, StoreError, WorkerError
from harness.messages import Scored
from harness.records.batching import Solo
from harness.runner import ConditionProcess
from harness.tolerance_file import read_tolerance_file
from tests.calibrate.example_runs import (
    LATER,
    NOW,
    NUM_DECISIONS,
    Recorder,
    a_config,
    an_arm,
    files_in,
    run,
    write_decisions,
)
from tests.calibrate.killed_runs import (
    end,
    halted,
    kill_group,
    num_stored,
    tolerance_bytes,
    workers,
)

FIRST = "arm-0/measure-0"
PROCESSES = {FIRST, "arm-0/measure-1", "arm-0/reference", "arm-0/exact"}


@pytest.fixture
def config(tmp_path: Path) -> CalibrationConfig:
    return a_config(write_decisions(tmp_path / "decisions.jsonl"))


class Interrupted(Recorder):
    """A progress that interrupts the run, as Ctrl-C does, when so many batches are stored."""

    def __init__(self, num_batches: int) -> None:
        super().__init__()
        self.num_left = num_batches

    def advanced(self, process_id: str, cost: int) -> None:
        super().advanced(process_id, cost)
        self.num_left -= 1
        if self.num_left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run(a_config(write_decisions(folder / "decisions.jsonl")), folder)
    return folder


def assert_same_files(one: Path, other: Path) -> None:
    assert tolerance_bytes(one) == tolerance_bytes(other)
    assert files_in(one).report.read_bytes() == files_in(other).report.read_bytes()


def test_a_run_killed_and_resumed_gives_the_same_bytes(
    config: CalibrationConfig, tmp_path: Path, whole: Path
) -> None:
    killed = tmp_path / "killed"
    for batches, stored in ((40, 40), (300, 340)):
        kill_group(config, killed, batches)
        assert sum(num_stored(killed).values()) == stored
        assert not files_in(killed).tolerance.exists()
    run(config, killed, now=LATER)
    assert_same_files(killed, whole)


def test_another_seed_or_another_start_gives_other_bytes(
    config: CalibrationConfig, tmp_path: Path, whole: Path
) -> None:
    run(replace(config, seed=1), tmp_path / "seed")
    run(config, tmp_path / "later", now=LATER)
    found = {tolerance_bytes(folder) for folder in (whole, tmp_path / "seed", tmp_path / "later")}
    assert len(found) == 3


def test_a_killed_run_is_not_resumed_with_something_else(
    config: CalibrationConfig, tmp_path: Path
) -> None:
    kill_group(config, tmp_path / "run", 40)
    before = num_stored(tmp_path / "run")
    with pytest.raises(StoreError, match="begun with another config"):
        run(replace(config, seed=1), tmp_path / "run")
    other = write_decisions(tmp_path / "other.jsonl", NUM_DECISIONS + 1)
    with pytest.raises(StoreError, match="begun with other decisions"):
        run(replace(config, decisions=other), tmp_path / "run")
    assert num_stored(tmp_path / "run") == before
    same = write_decisions(tmp_path / "moved.jsonl")
    assert run(replace(config, decisions=same), tmp_path / "run").num_observations > 0


def test_workers_end_when_only_their_run_is_killed(
    config: CalibrationConfig, tmp_path: Path
) -> None:
    child = halted(replace(config, guard_decisions=NUM_DECISIONS), tmp_path / "run", 1)
    started = list(workers(child.pid))
    child.kill()
    end(child)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline, f"still there: {started}"
        time.sleep(0.05)


def die_after(monkeypatch: pytest.MonkeyPatch, num_batches: int) -> None:
    """Kill each condition's process when it has given the scores of so many batches."""
    original = ConditionProcess.run

    def run(process: ConditionProcess, batches: Sequence[Batch]) -> Iterator[Scored]:
        for number, scored in enumerate(original(process, batches), 1):
            if number == num_batches:
                process._process.kill()
                process._process.wait()
            yield scored

    monkeypatch.setattr(ConditionProcess, "run", run)


def test_a_worker_that_dies_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = write_decisions(
        tmp_path / "many.jsonl", NUM_DECISIONS, 60
    )  # more than a pipe holds
    config = a_config(decisions, arms=(an_arm(batching=Solo()),), processes=1)
    die_after(monkeypatch, 5)
    with pytest.raises(WorkerError, match=r"(?s)arm-0/measure-0: .*SIGKILL") as caught:
        run(config, tmp_path / "run")
    assert "all that was scored is stored; run again to resume" in str(caught.value)
    assert list(workers(os.getpid())) == []
    assert 5 <= num_stored(tmp_path / "run")["arm-0/measure-0"] < NUM_DECISIONS * 60


def test_a_run_whose_worker_died_is_resumed(
    config: CalibrationConfig, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        die_after(patched, NUM_DECISIONS * 2 // 4)  # the first composition: all has been sent
        with pytest.raises(WorkerError, match="run again to resume"):
            run(replace(config, processes=1), tmp_path / "run")
    assert num_stored(tmp_path / "run") == {"arm-0/measure-0": NUM_DECISIONS * 2 // 4}
    run(config, tmp_path / "run", now=LATER)
    assert_same_files(tmp_path / "run", whole)


def test_what_is_stored_is_not_computed_again(config: CalibrationConfig, tmp_path: Path) -> None:
    kill_group(replace(config, processes=1), tmp_path / "run", 100)
    whole, resumed = Recorder(), Recorder()
    run(config, tmp_path / "whole", progress=whole)
    run(config, tmp_path / "run", progress=resumed)
    assert set(whole.planned_costs) == set(resumed.planned_costs) == PROCESSES
    assert whole.advanced_costs == {name: cost for name, (cost, _) in whole.planned_costs.items()}
    for name, (cost, done) in resumed.planned_costs.items():
        assert (cost, 0) == whole.planned_costs[name]
        assert resumed.advanced_costs[name] == cost - done
    assert 0 < resumed.planned_costs["arm-0/measure-0"][1] < whole.advanced_costs["arm-0/measure-0"]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the precision of every condition's process that is started."""
    found: list[str] = []
    original = ConditionProcess.__enter__

    def recorded(process: ConditionProcess) -> ConditionProcess:
        found.append(str(process._job.condition.precision))
        return original(process)

    monkeypatch.setattr(ConditionProcess, "__enter__", recorded)
    return found


def test_a_finished_process_is_not_started_again(
    config: CalibrationConfig, tmp_path: Path, whole: Path, starts: list[str]
) -> None:
    one_by_one = replace(config, processes=1)
    with pytest.raises(KeyboardInterrupt):
        run(one_by_one, tmp_path / "run", progress=Interrupted(num_stored(whole)[FIRST] + 5))
    assert starts == ["bfloat16", "bfloat16"]
    starts.clear()
    run(one_by_one, tmp_path / "run", now=LATER)
    assert starts == ["bfloat16", "float32", "float64"]
    assert_same_files(tmp_path / "run", whole)


def test_a_finished_run_only_derives_its_files_again(
    config: CalibrationConfig, tmp_path: Path, starts: list[str]
) -> None:
    first = run(config, tmp_path / "run")
    files = files_in(tmp_path / "run")
    whole, report = files.tolerance.stat(), files.report.read_bytes()
    starts.clear()
    files.report.unlink()
    progress = Recorder()
    assert run(config, tmp_path / "run", now=LATER, progress=progress) == first
    assert starts == []
    assert progress.advanced_costs == {}
    assert {cost == done for cost, done in progress.planned_costs.values()} == {True}
    assert set(progress.planned_costs) == PROCESSES
    assert files.report.read_bytes() == report
    assert files.tolerance.stat().st_mtime_ns == whole.st_mtime_ns
    files.tolerance.unlink()
    run(config, tmp_path / "run", now=LATER)
    assert read_tolerance_file(files.tolerance).created_at == NOW.isoformat()


def test_another_tolerance_file_is_not_overwritten_unless_told(
    config: CalibrationConfig, tmp_path: Path
) -> None:
    run(config, tmp_path / "run")
    files = files_in(tmp_path / "run")
    files.tolerance.write_text("mine")
    with pytest.raises(InputFileError, match=r"exists; .*--overwrite"):
        run(config, tmp_path / "run")
    assert files.tolerance.read_text() == "mine"
    run(config, tmp_path / "run", overwrite=True)
    assert read_tolerance_file(files.tolerance)


def test_a_new_run_over_an_older_tolerance_file_is_refused_before_it_begins(
    config: CalibrationConfig, tmp_path: Path, starts: list[str]
) -> None:
    files = files_in(tmp_path / "run")
    files.folder.mkdir()
    files.tolerance.write_text("mine")
    with pytest.raises(InputFileError, match=r"of another run; .*--overwrite"):
        run(config, tmp_path / "run")
    assert (starts, files.store.exists()) == ([], False)
    run(config, tmp_path / "run", overwrite=True)
    assert read_tolerance_file(files.tolerance)


def test_a_second_run_on_the_same_store_is_refused_at_once(
    config: CalibrationConfig, tmp_path: Path
) -> None:
    child = halted(config, tmp_path / "run", 3)
    try:
        start = time.monotonic()
        with pytest.raises(StoreError, match="another run is using it"):
            run(config, tmp_path / "run")
        assert time.monotonic() - start < 5
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        end(child)


def test_an_interrupt_ends_the_processes_and_keeps_what_is_stored(
    config: CalibrationConfig, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", progress=Interrupted(1))
    assert list(workers(os.getpid())) == []
    assert sum(num_stored(tmp_path / "run").values()) == 1


def test_a_full_disk_in_the_middle_loses_nothing(
    config: CalibrationConfig, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ObservationStore.__enter__

    def on_a_small_disk(store: ObservationStore) -> ObservationStore:
        entered = original(store)
        entered._db.execute("PRAGMA max_page_count=30")
        return entered

    with monkeypatch.context() as patched:
        patched.setattr(ObservationStore, "__enter__", on_a_small_disk)
        with pytest.raises(StoreError, match="disk is full; free some space and run again"):
            run(config, tmp_path / "run")
    files = files_in(tmp_path / "run")
    names = sorted(path.name for path in files.folder.iterdir())
    assert names == ["config.json", "observations.sqlite"]
    assert sum(num_stored(tmp_path / "run").values()) > 10
    run(config, tmp_path / "run", now=LATER)
    assert_same_files(tmp_path / "run", whole)


def test_too_little_room_is_told_before_a_run_begins(
    config: CalibrationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[str]
) -> None:
    def nearly_full(path: object) -> object:
        return type("Usage", (), {"free": 1000})()

    monkeypatch.setattr("shutil.disk_usage", nearly_full)
    with pytest.raises(StoreError, match=r"0 MiB free, about .*another --run folder"):
        run(config, tmp_path / "run")
    assert (starts, (tmp_path / "run").exists()) == ([], False)


def test_what_fails_before_a_model_is_loaded_can_be_mended_in_place(
    config: CalibrationConfig, tmp_path: Path
) -> None:
    mistaken = replace(config, verifier=replace(config.verifier, max_tokens=3))
    with pytest.raises(InputFileError, match="row is too long"):
        run(mistaken, tmp_path / "run")
    assert run(config, tmp_path / "run").num_observations > 0


def test_calibrate_needs_no_terminal(config: CalibrationConfig, tmp_path: Path) -> None:
    calibrated = calibrate(config, files_in(tmp_path / "run"), now=NOW, progress=Recorder())
    assert calibrated.num_observations == 2 * NUM_DECISIONS * 14 + 2 * 20 * (12 + 1)
