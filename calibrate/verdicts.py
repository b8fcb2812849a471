"""Judges a file of replays against a commit log, and feeds the drift alarm.

A replay whose commit is not in the log, or whose line cannot be used, becomes a reject: the others
are judged all the same.
"""

from pathlib import Path

from harness.codec import encode
from harness.commit_log import Reject, read_commits, read_replays
from harness.errors import InvalidRecordError
from harness.judge.alarm import AlarmReport, alarm_over
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.document import Record
from harness.records.verdict import Policy, Verdict

__all__ = ["JudgedFiles", "judge_files"]


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


def _commit_of(replay: ReplayRecord, by_id: dict[str, CommitRecord]) -> CommitRecord:
    if replay.commit_id not in by_id:
        raise InvalidRecordError("no usable commit with this id is in the commit log")
    return by_id[replay.commit_id]
