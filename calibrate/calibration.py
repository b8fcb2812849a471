"""One calibration from a config to its files: store, tolerance file, report.

The order matters: what the config alone decides (are there enough decisions?) is settled before
anything runs; where results switch is searched before batches are planned around it; the report is
written whether the build is blessed or refused; the tolerance file only when it is blessed.
"""

import shutil
from datetime import datetime
from pathlib import Path

from calibrate import __version__
from calibrate.appeals import hear_appeals
from calibrate.boundaries import refined
from calibrate.boundary_search import run_searches, searches_by_arm
from calibrate.config import CalibrationConfig
from calibrate.evidence import ArmEvidence, Snapshot, tolerance_file
from calibrate.observations import ObservationStore, RunIdentity
from calibrate.report import report_content, write_report
from calibrate.run import Progress, run_plan
from calibrate.statistics import largest_rank
from calibrate.stored_run import keep_config
from harness.decisions import decisions_digest, read_decisions
from harness.errors import ConfigError, GuardRefusalError, InputFileError, StoreError
from harness.files import read_bytes
from harness.records.decision import Decision
from harness.records.document import Record
from harness.records.tolerance import ToleranceFile
from harness.tolerance_file import seal, write_tolerances

__all__ = ["Calibrated", "RunFiles", "calibrate"]

_BYTES_PER_ROW = 4000
"""Room that a row's scores under one arm take in the store, with slack; checked before a run."""


class RunFiles(Record, frozen=True, kw_only=True):
    """Where a run keeps its files."""

    folder: Path
    """The run's own folder."""
    name: str
    """The config's name."""

    @property
    def store(self) -> Path:
        """The observation store."""
        return self.folder / "observations.sqlite"

    @property
    def tolerance(self) -> Path:
        """The tolerance file."""
        return self.folder / f"{self.name}.tolerance.json"

    @property
    def report(self) -> Path:
        """The report."""
        return self.folder / "report.html"


class Calibrated(Record, frozen=True, kw_only=True):
    """A blessed build."""

    file: ToleranceFile
    """What was written."""
    num_observations: int
    """Scores in the store."""


def calibrate(
    config: CalibrationConfig,
    files: RunFiles,
    *,
    now: datetime,
    progress: Progress,
    overwrite: bool = False,
) -> Calibrated:
    """Run, or resume, a calibration and write its files.

    Raises InsufficientEvidenceError before anything runs when there are too few decisions,
    GuardRefusalError after the report is written when a guard refuses the build.
    """
    _refuse_wasted_run(files, overwrite=overwrite)
    decisions = _decisions(config)
    _require_room(config, files, sum(len(decision.branches) for decision in decisions))
    identity = RunIdentity(
        scorepin_version=__version__,
        config_digest=config.digest,
        decisions_digest=decisions_digest(decisions),
        created_at=now.isoformat(timespec="seconds"),
    )
    with ObservationStore(files.store, identity) as store:
        keep_config(files.folder, config)
        run_searches(config, decisions, store)
        run_plan(refined(config, searches_by_arm(config, store)), decisions, store, progress)
        run = hear_appeals(config, decisions, store, progress)
        num_observations = store.num_observations()
    file = _conclude(run, files, overwrite=overwrite)
    return Calibrated(file=file, num_observations=num_observations)


def _conclude(run: Snapshot, files: RunFiles, *, overwrite: bool) -> ToleranceFile:
    arms = [ArmEvidence(run, at) for at in range(len(run.config.arms))]
    try:
        file = tolerance_file(run, arms)
    except GuardRefusalError as refusal:
        write_report(files.report, report_content(run, arms, refusal=str(refusal)))
        raise
    if not _is_written(files.tolerance, file):
        write_tolerances(files.tolerance, file, overwrite=overwrite)
    write_report(files.report, report_content(run, arms, file=file))
    return file


def _is_written(path: Path, file: ToleranceFile) -> bool:
    return path.exists() and read_bytes(path) == seal(file)


def _refuse_wasted_run(files: RunFiles, *, overwrite: bool) -> None:
    """Raise InputFileError now for a tolerance file of another run, not when all is measured."""
    if files.tolerance.exists() and not files.store.exists() and not overwrite:
        advice = "move it away, give another --run folder, or pass --overwrite"
        raise InputFileError(f"{files.tolerance}: is there already, of another run; {advice}")


def _decisions(config: CalibrationConfig) -> tuple[Decision, ...]:
    """Read the decisions; raise ConfigError or InsufficientEvidenceError for too few."""
    decisions = read_decisions(config.decisions, config.num_decisions)
    asked = config.num_decisions or 0
    if len(decisions) < asked:
        raise ConfigError(
            f"num_decisions is {asked} and {config.decisions} holds {len(decisions)}; add "
            f"{asked - len(decisions)}, ask for fewer, or leave it out to take all"
        )
    largest_rank(len(decisions), config.claim.coverage, config.claim.confidence)
    return decisions


def _require_room(config: CalibrationConfig, files: RunFiles, num_rows: int) -> None:
    """Raise StoreError for a new run now, rather than when the disk is full in the middle."""
    if files.store.exists():
        return
    folder = next(p for p in (files.folder, *files.folder.absolute().parents) if p.exists())
    needed = num_rows * len(config.arms) * _BYTES_PER_ROW
    free = shutil.disk_usage(folder).free
    if free < needed:
        message = f"{folder}: {free >> 20} MiB free, about {needed >> 20} MiB needed"
        raise StoreError(f"{message}; free some space or give another --run folder")
