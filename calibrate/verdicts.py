"""Judges a file of replays against a commit log, and feeds the drift alarm.

A replay whose commit is not in the log, or whose line cannot be used, becomes a reject: the others
are judged all the same. When an alarm was raised, the tolerances beyond whose floor its replica
had moved by then can be withdrawn; which of them the replica's drift is about is not known.
"""

from collections.abc import Sequence
from pathlib import Path

from harness.codec import encode
from harness.commit_log import Reject, read_commits, read_replays
from harness.errors import InvalidRecordError
from harness.judge.alarm import EXCEEDS, AlarmReport, alarm_over
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.document import Record
from harness.records.tolerance import ToleranceFile
from harness.records.verdict import Policy, Verdict
from harness.records.withdrawal import Withdrawal
from harness.withdrawals import withdraw

__all__ = ["JudgedFiles", "judge_files", "withdraw_alarmed"]


class JudgedFiles(Record, frozen=True, kw_only=True):
    """What came of a file of replays."""

    verdicts: tuple[Verdict, ...]
    """One a usable replay, in file order."""
    alarms: dict[str, AlarmReport]
    """Replica -> its drift alarm."""
    rejects: tuple[Reject, ...]
    """Lines of either file that could not be used."""


def judge_files(  # noqa: PLR0913 - what a judgement rests on
    commits: Path,
    replays: Path,
    tolerances: Tolerances,
    *,
    policy: Policy,
    now: str,
    alpha: float,
) -> JudgedFiles:
    """Judge every replay in `replays` whose commit is in `commits`."""
    committed, replayed = read_commits(commits), read_replays(replays)
    by_id = {commit.commit_id: commit for commit in committed.records}
    verdicts, rejects = [], [*committed.rejects, *replayed.rejects]
    for replay in replayed.records:
        try:
            commit = _commit_of(replay, by_id)
            verdicts.append(judge(commit, replay, tolerances, policy=policy, now=now))
        except InvalidRecordError as error:
            where = f"{replays}: replay of commit {replay.commit_id!r}"
            text = encode(replay).decode()
            rejects.append(Reject(where=where, error=f"{where}: {error}", text=text))
    alarms = alarm_over(verdicts, tolerances.exceedance_rates(), alpha)
    return JudgedFiles(verdicts=tuple(verdicts), alarms=alarms, rejects=tuple(rejects))


def withdraw_alarmed(judged: JudgedFiles, tolerances: Tolerances, now: str) -> tuple[Path, ...]:
    """Withdraw what the raised alarms are about; return the tolerance files that are concerned."""
    written: dict[Path, None] = {}
    for report in judged.alarms.values():
        for tolerance_id in _exceeded(judged.verdicts, report):
            for name, file in tolerances.holders(tolerance_id).items():
                withdraw(Path(name), file, [_withdrawal(report, file, tolerance_id, now)])
                written[Path(name)] = None
    return tuple(written)


def _exceeded(verdicts: Sequence[Verdict], report: AlarmReport) -> list[str]:
    """Return the tolerances that a replica's replays were beyond when it raised the alarm."""
    if report.alarm.alarmed_at is None:
        return []
    counted = [v for v in verdicts if v.replica == report.replica and v.kind in EXCEEDS]
    beyond = (v for v in counted[: report.alarm.alarmed_at] if EXCEEDS[v.kind])
    return list(dict.fromkeys(v.tolerance_id for v in beyond if v.tolerance_id is not None))


def _withdrawal(
    report: AlarmReport, file: ToleranceFile, tolerance_id: str, now: str
) -> Withdrawal:
    return Withdrawal(
        file_digest=file.digest,
        tolerance_id=tolerance_id,
        replica=report.replica,
        commit_id=report.raised_by or "",
        withdrawn_at=now,
        alpha=report.alarm.alpha,
        num_exceeded=report.alarm.num_exceeded,
        num_observed=report.alarm.num_observed,
    )


def _commit_of(replay: ReplayRecord, by_id: dict[str, CommitRecord]) -> CommitRecord:
    if replay.commit_id not in by_id:
        raise InvalidRecordError("no usable commit with this id is in the commit log")
    return by_id[replay.commit_id]
