"""The whole study on a fake verifier: its logic, never evidence."""

from datetime import UTC, datetime
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace
from rich.console import Console

from calibrate.config import CalibrationConfig, Claim
from calibrate.power.detection import delay_over
from calibrate.power.findings import PowerReport, read_power_report, write_power_report
from calibrate.power.replicas import Difference, Planted
from calibrate.power.rules import OURS, STRICT
from calibrate.power.spec import PowerSpec
from calibrate.power.stage import Staged, num_runs, stage, taking_part
from calibrate.power.study import findings
from calibrate.power.tables import print_power
from calibrate.statistics import rate_interval
from harness.decisions import read_decisions
from harness.errors import InputFileError
from harness.judge.tolerances import Tolerances
from harness.records import Decision, ReplayRecord
from harness.tolerance_file import load_tolerances
from tests.calibrate.example_runs import a_config, files_in, run, write_decisions
from tests.examples import a_build, a_tolerance_file

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NUM_DECISIONS, NUM_HONEST = 24, 40
SPEC = PowerSpec(commit_rows=8, replay_rows=3, honest_replays=NUM_HONEST, num_orders=40)


@cache
def calibrated() -> tuple[CalibrationConfig, Tolerances, tuple[Decision, ...]]:
    with TemporaryDirectory() as folder:
        decisions = write_decisions(Path(folder) / "decisions.jsonl", NUM_DECISIONS)
        claim = Claim(coverage=0.9, confidence=0.9)
        config = a_config(decisions, power=SPEC, claim=claim)
        run(config, Path(folder))
        tolerances = load_tolerances(files_in(Path(folder)).tolerance)
        return config, tolerances, taking_part(read_decisions(config.decisions), None)


@cache
def staged() -> Staged:
    config, _, decisions = calibrated()
    return stage(config, decisions)


def reported(given: Staged | None = None) -> PowerReport:
    config, tolerances, _ = calibrated()
    return findings(config, tolerances, given or staged(), now=NOW)


@pytest.fixture(scope="module")
def report() -> PowerReport:
    return reported()


def off(replay: ReplayRecord, by: float) -> ReplayRecord:
    first, *_ = replay.scores
    return replace(replay, scores={**replay.scores, first: float(replay.scores[first]) + by})


def test_what_is_staged() -> None:
    config, _, decisions = calibrated()
    given = staged()
    assert len(given.honest) == 2  # so many processes give 40 replays of 24 decisions
    runs = len(given.honest) + 3 + len(given.planted)
    assert num_runs(config, len(decisions)) == 1 + runs
    invocations = [commit.invocation for commit in given.commits]
    for honest in given.honest:
        assert [replay.invocation for replay in honest] == invocations
    for planted in given.planted:
        assert [replay.invocation for replay in planted.replays] == invocations
    for told in (given.reconstruction, given.retried, given.elsewhere):
        sizes = {replay.invocation.batch_membership.max_rows for replay in told}
        assert sizes == {SPEC.replay_rows}
    assert {c.invocation.batch_membership.max_rows for c in given.commits} == {SPEC.commit_rows}
    assert [r.scores for r in given.retried] == [r.scores for r in given.reconstruction]
    assert [r.scores for r in given.elsewhere] != [r.scores for r in given.reconstruction]


def test_the_first_candidates_of_the_first_decisions_take_part() -> None:
    _, _, decisions = calibrated()
    few = taking_part(decisions, 1, limit=5)
    assert [len(one.branches) for one in few] == [1] * 5
    assert taking_part(decisions, 9) == decisions


def test_honest_replicas_are_never_at_fault(report: PowerReport) -> None:
    honest = report.honest
    num = NUM_DECISIONS * honest.num_processes
    for rate in (honest.moved, honest.faults, honest.strict_faults):
        assert (rate.num_events, rate.num_trials) == (0, num)
    assert (honest.decisions.num_events, honest.decisions.num_trials) == (0, NUM_DECISIONS)
    alarms = honest.false_alarms
    assert (alarms.num_events, alarms.num_trials) == (0, 2 * SPEC.num_orders)
    assert not report.has_false_fault


def test_every_precision_is_found_at_once_under_strict_and_soon_by_the_alarm(
    report: PowerReport,
) -> None:
    modes = [one for one in report.replicas if one.difference is Difference.PRECISION]
    assert len(modes) == 3
    for mode in modes:
        assert mode.strict_faults == mode.beyond_floor == mode.moved, mode.name
        assert mode.strict_faults.num_events == NUM_DECISIONS
        assert mode.until_strict_fault.longest == 1
        assert mode.until_alarm.longest is not None
        assert mode.until_alarm.longest <= 5
    assert [target.met for target in report.targets] == [False, True, True]
    assert "0 of 48, at most 7.40%" in report.targets[0].found  # too few to meet it


def test_membership_that_was_misrecorded_is_found_where_it_moved(report: PowerReport) -> None:
    (batches, companions) = [
        one for one in report.replicas if one.difference is Difference.MEMBERSHIP
    ]
    assert batches.moved.num_events > companions.moved.num_events > 0
    assert companions.strict_faults == companions.moved
    assert companions.num_weights_changed is None


def test_a_replica_that_moves_no_bit_is_found_by_none(report: PowerReport) -> None:
    """A fake's scores know no attention kernel."""
    for still in (one for one in report.replicas if one.difference is Difference.ATTENTION):
        assert (still.moved.num_events, still.largest_shift) == (0, 0.0)
        assert set(still.found_by.values()) == {0}
        assert (still.until_alarm.num_raised, still.until_alarm.median) == (0, None)
        assert all(still.name not in rule.replicas_missed for rule in report.rules)


def test_rules_count_the_same_replays(report: PowerReport) -> None:
    num_planted = len(report.replicas) * NUM_DECISIONS
    moved = sum(one.moved.num_events for one in report.replicas)
    for rule in report.rules:
        found = sum(one.found_by[rule.name] for one in report.replicas)
        assert (rule.missed.num_events, rule.missed.num_trials) == (
            num_planted - found,
            num_planted,
        )
        assert rule.missed_moved is not None
        assert (rule.missed_moved.num_events, rule.missed_moved.num_trials) == (
            moved - found,
            moved,
        )
        assert rule.reconstruction_faults.num_trials == NUM_DECISIONS
    by_name = {rule.name: rule for rule in report.rules}
    for name in (OURS, STRICT):
        assert by_name[name].reconstruction_faults.num_events == 0
    assert by_name["exact"].reconstruction_faults.num_events > NUM_DECISIONS / 2
    assert by_name["exact"].replicas_missed == by_name[STRICT].replicas_missed == ()
    assert by_name["envelope alone"].replicas_missed != ()


def test_an_honest_replay_that_moved_is_a_false_fault() -> None:
    given = staged()
    first, second = given.honest
    honest = ((off(first[0], 2.0**-12), *first[1:]), second)
    report = reported(replace(given, honest=honest))
    assert report.has_false_fault
    assert (report.honest.strict_faults.num_events, report.honest.faults.num_events) == (1, 0)
    assert report.honest.decisions.num_events == 1
    assert not report.targets[0].met
    assert "1 of 48" in report.targets[0].found
    worse = tuple(off(replay, 2.0**-12) for replay in first)
    report = reported(replace(given, honest=(worse, second)))
    assert report.honest.false_alarms.num_events == SPEC.num_orders


def test_one_fault_of_ours_is_one_replan() -> None:
    given = staged()
    first, second = given.honest
    report = reported(replace(given, honest=(first, (off(second[0], 1e-9), *second[1:]))))
    assert report.published.our_replans.num_events == 0  # drift, no fault by default
    far = off(second[0], -1000.0), *second[1:]
    report = reported(replace(given, honest=(first, far)))
    assert report.published.our_replans.num_events == 1


def test_a_replica_that_was_left_out_is_told_and_in_no_count(report: PowerReport) -> None:
    given = staged()
    gone = Planted(replica=given.planted[0].replica, replays=(), left_out="no such thing here")
    without = reported(replace(given, planted=(gone, *given.planted[1:])))
    assert without.left_out == {gone.replica.name: "no such thing here"}
    assert len(without.replicas) == len(report.replicas) - 1
    assert without.rules[0].missed.num_trials == report.rules[0].missed.num_trials - NUM_DECISIONS


def test_a_tolerance_of_another_build_is_refused() -> None:
    config, _, _ = calibrated()
    other = Tolerances(files=(a_tolerance_file(build=a_build(weights_digest="sha256:other")),))
    with pytest.raises(InputFileError, match=r"'d0': .* do not speak for it: .*calibrate"):
        findings(config, other, staged(), now=NOW)


def test_the_report_is_read_back_as_it_was_written(report: PowerReport, tmp_path: Path) -> None:
    path = tmp_path / "run" / "power.json"
    write_power_report(path, report)
    write_power_report(path, report)
    assert read_power_report(path) == report
    assert reported() == report


def printed(report: PowerReport) -> str:
    console = Console(file=StringIO(), width=80)
    with console.capture() as capture:
        print_power(report, console)
    return capture.get()


def test_the_widest_figures_fit_eighty_columns(report: PowerReport) -> None:
    wide, slow = rate_interval(39_955, 40_000, 0.95), delay_over([True] * 9, 9, 0, lambda _: 99)
    widest = [
        replace(
            one,
            name="attention: math!!",
            moved=wide,
            largest_shift=0.00012,
            faults=wide,
            strict_faults=wide,
            until_alarm=slow,
        )
        for one in report.replicas
    ]
    rules = [
        replace(one, honest_faults=wide, reconstruction_faults=wide, missed_moved=wide)
        for one in report.rules
    ]
    text = printed(replace(report, replicas=tuple(widest), rules=tuple(rules)))
    assert "99.9 [99.8, 99.9]" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_tables_hold_everything(report: PowerReport) -> None:
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    names = [one.name for one in report.replicas] + [rule.name for rule in report.rules]
    for name in names:
        assert f"\n{name} " in text
    assert "default and its alarm leave 0 of 5 replicas unseen" in text
