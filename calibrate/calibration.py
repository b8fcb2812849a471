"""One calibration from a config to its files: store, tolerance file, report.

The order matters: what the config alone decides (are there enough decisions?) is settled before
anything runs; the report is written whether the build is blessed or refused; the tolerance file
only when it is blessed.
"""

import shutil
from datetime import datetime
from pathlib import Path

from calibrate.config import CalibrationConfig
from calibrate.evidence import ArmEvidence, Snapshot, snapshot, tolerance_file
from calibrate.observations import ObservationStore
from calibrate.report import write_report
from calibrate.run import Progress, run_plan
from calibrate.statistics import largest_rank
from harness.decisions import decisions_digest, read_decisions
from harness.errors import GuardRefusalError, StoreError
from harness.records.decision import Decision
from harness.records.document import Record
from harness.records.tolerance import ToleranceFile
from harness.tolerance_file import write_tolerances

__all__ = ["Calibrated", "RunFiles", "calibrate"]

_BYTES_PER_OBSERVATION = 200
"""Room a score takes in the store, with slack; checked before a run is begun."""


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
    decisions = read_decisions(config.decisions, config.num_decisions)
    largest_rank(len(decisions), config.claim.coverage, config.claim.confidence)
    _require_room(files, decisions)
    with ObservationStore(files.store) as store:
        content = decisions_digest(decisions)
        store.require("config_digest", config.digest, "another config")
        store.require("decisions_digest", content, "other decisions")
        created_at = store.settle("created_at", now.isoformat(timespec="seconds"))
        run_plan(config, decisions, store, progress)
        run = snapshot(config, store, content, created_at)
        num_observations = store.num_observations()
    file = _conclude(run, files, overwrite=overwrite)
    return Calibrated(file=file, num_observations=num_observations)


def _conclude(run: Snapshot, files: RunFiles, *, overwrite: bool) -> ToleranceFile:
    arms: list[ArmEvidence] = []
    try:
        arms.extend(ArmEvidence(run, at) for at in range(len(run.config.arms)))
        file = tolerance_file(run, arms)
    except GuardRefusalError as refusal:
        write_report(files.report, run, arms, refusal=str(refusal))
        raise
    write_tolerances(files.tolerance, file, overwrite=overwrite)
    write_report(files.report, run, arms, file=file)
    return file


def _require_room(files: RunFiles, decisions: tuple[Decision, ...]) -> None:
    """Raise StoreError now rather than when the disk is full in the middle of a run."""
    folder = next(p for p in (files.folder, *files.folder.absolute().parents) if p.exists())
    rows = sum(len(decision.branches) for decision in decisions)
    needed = rows * 20 * _BYTES_PER_OBSERVATION
    free = shutil.disk_usage(folder).free
    if free < needed:
        message = f"{folder}: {free >> 20} MiB free, about {needed >> 20} MiB needed"
        raise StoreError(f"{message}; free some space or give another --run folder")
