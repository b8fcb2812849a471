"""Makes the study: stages it, has every rule judge the same commits and replays, and reports."""

from collections.abc import Sequence
from datetime import datetime

from calibrate import __version__
from calibrate.config import CalibrationConfig
from calibrate.power.findings import PowerReport, StudySetting
from calibrate.power.judged import Judged
from calibrate.power.published import published
from calibrate.power.rules import rules
from calibrate.power.stage import Staged, stage
from calibrate.power.targets import targets
from harness.errors import InputFileError
from harness.judge.tolerances import NoTolerance, Tolerances, UsableTolerance
from harness.records.commit import CommitRecord
from harness.records.decision import Decision
from harness.scoring import Advance

__all__ = ["findings", "study"]


def study(
    config: CalibrationConfig,
    tolerances: Tolerances,
    decisions: tuple[Decision, ...],
    *,
    now: datetime,
    advance: Advance = lambda _: None,
) -> PowerReport:
    """Commit `decisions`, replay them by every replica, and report what every rule finds.

    Raises InputFileError when `tolerances` hold none for what was committed.
    """
    return findings(config, tolerances, stage(config, decisions, advance), now=now)


def findings(
    config: CalibrationConfig, tolerances: Tolerances, staged: Staged, *, now: datetime
) -> PowerReport:
    """Return what every rule finds in `staged`."""
    told = now.isoformat()
    used = [_tolerance(commit, tolerances, told) for commit in staged.commits]
    setting = _setting(config, staged.commits, used[0])
    table = rules(tolerances, setting.envelope, told)
    judged = Judged(staged, table, setting)
    honest, replicas = judged.honest(), judged.replicas()
    return PowerReport(
        scorepin_version=__version__,
        created_at=now.isoformat(timespec="seconds"),
        setting=setting,
        honest=honest,
        replicas=replicas,
        left_out={p.replica.name: p.left_out for p in staged.planted if p.left_out is not None},
        rules=tuple(judged.rule(rule) for rule in table),
        published=published(staged, judged.our_faults()),
        targets=targets(honest, replicas),
    )


def _tolerance(commit: CommitRecord, tolerances: Tolerances, now: str) -> UsableTolerance:
    found = tolerances.lookup(commit, now)
    if isinstance(found, NoTolerance):
        where = f"decision {commit.decision_id!r}"
        raise InputFileError(f"{where}: the run's tolerances do not speak for it: {found.reason}")
    return found


def _setting(
    config: CalibrationConfig, commits: Sequence[CommitRecord], used: UsableTolerance
) -> StudySetting:
    spec, floor = config.power, used.tolerance.floor
    return StudySetting(
        config=config.name,
        config_digest=config.digest,
        build_id=commits[0].invocation.build.build_id,
        tolerance_id=used.tolerance_id,
        floor=floor.value,
        envelope=used.tolerance.envelope.value,
        exceedance_rate=floor.exceedance_rate_upper,
        score_unit=commits[0].score_unit,
        alpha=spec.alpha,
        num_decisions=len(commits),
        num_rows=sum(len(commit.scores) for commit in commits),
        candidates=spec.candidates,
        commit_rows=spec.commit_rows,
        replay_rows=spec.replay_rows,
        num_orders=spec.num_orders,
        seed=config.seed,
    )
