"""What a study found: the records of ``power.json`` in a run's folder.

A `PowerReport` is one JSON document with a `schema_version`. Every rate in it has its exact
two-sided interval (Clopper and Pearson); a delay counts replays from 1, and is null where something
is not raised in enough of the orders. Scores are in `score_unit`.
"""

from pathlib import Path

from calibrate.power.detection import Delay
from calibrate.power.published import Published
from calibrate.power.replicas import Difference
from calibrate.statistics import Rate
from harness.codec import decode, encode, parse
from harness.files import read_bytes, write_atomic
from harness.records.commit import ScoreUnit
from harness.records.document import Document, Record

__all__ = [
    "FILE_NAME",
    "HonestFinding",
    "PowerReport",
    "ReplicaFinding",
    "RuleFinding",
    "StudySetting",
    "Target",
    "read_power_report",
    "write_power_report",
]

FILE_NAME = "power.json"


class StudySetting(Record, frozen=True, kw_only=True):
    """What was studied."""

    config: str
    """The config's name."""
    config_digest: str
    """Digest of the calibration's config."""
    build_id: str
    """The build."""
    tolerance_id: str
    """The tolerance that the commits are judged by."""
    floor: float
    """Its floor."""
    envelope: float
    """Its envelope."""
    exceedance_rate: float
    """Bound on how often an honest replay leaves the floor: the alarm's null rate."""
    score_unit: ScoreUnit
    """Unit of scores, floor and envelope."""
    alpha: float
    """False-alarm bound that the alarm was given."""
    num_decisions: int
    """Decisions that were committed."""
    num_rows: int
    """Their branches."""
    candidates: int | None
    """Branches taken of each decision, at most; None for all."""
    commit_rows: int
    """Rows in a committed batch, at most."""
    replay_rows: int
    """Rows in a batch of a reconstruction, at most."""
    num_orders: int
    """Orders in which each replica's streams were watched."""
    seed: int
    """Seed of the orders."""


class HonestFinding(Record, frozen=True, kw_only=True):
    """What the honest replicas gave: the committed computation again, once a fresh process."""

    num_processes: int
    """Fresh processes; each replayed every decision."""
    moved: Rate
    """Replays in which some score has other bits."""
    faults: Rate
    """Replays called a fault under `default`."""
    strict_faults: Rate
    """Replays called a fault under `strict`."""
    decisions: Rate
    """Decisions of which any replay was called a fault under `strict`."""
    false_alarms: Rate
    """Streams in which the alarm was raised, over all replicas and orders."""


class ReplicaFinding(Record, frozen=True, kw_only=True):
    """What one planted replica gave."""

    name: str
    """The replica."""
    difference: Difference
    """What kind of thing differs in secret."""
    differs: str
    """What differs, in words."""
    num_weights_changed: int | None
    """Weights that differ once loaded; None where the checkpoint was not derived."""
    moved: Rate
    """Replays in which some score has other bits: the others are no fault to be found."""
    beyond_floor: Rate
    """Replays in which some score moved by more than the floor, or that cannot be compared."""
    largest_shift: float | None
    """Largest movement of a score; None when no replay can be compared."""
    winner_changed: Rate
    """Replays with another winner."""
    faults: Rate
    """Replays called a fault under `default`."""
    strict_faults: Rate
    """Replays called a fault under `strict`."""
    until_strict_fault: Delay
    """Replays until the first fault under `strict`."""
    until_alarm: Delay
    """Replays until the drift alarm."""
    found_by: dict[str, int]
    """Rule -> replays that it calls a fault."""


class RuleFinding(Record, frozen=True, kw_only=True):
    """What one rule makes of the same replays."""

    name: str
    """The rule."""
    definition: str
    """When it calls a fault."""
    honest_faults: Rate
    """Honest replays called faults."""
    reconstruction_faults: Rate
    """Reconstructions called faults."""
    missed: Rate
    """Planted replays not called faults, of all."""
    missed_moved: Rate | None
    """The same of those in which a score has other bits; None when there is none."""
    replicas_missed: tuple[str, ...]
    """Replicas that moved, and of which no replay was called a fault."""


class Target(Record, frozen=True, kw_only=True):
    """Something the study was to show."""

    words: str
    """The target."""
    met: bool
    """Whether it is met."""
    found: str
    """What was found."""


class PowerReport(Document, frozen=True, kw_only=True):
    """A whole study."""

    scorepin_version: str
    """Release that made it."""
    created_at: str
    """When it was made, UTC, ISO 8601."""
    setting: StudySetting
    """What was studied."""
    honest: HonestFinding
    """The honest replicas."""
    replicas: tuple[ReplicaFinding, ...]
    """The planted ones."""
    left_out: dict[str, str]
    """Replica -> why it could not be run."""
    rules: tuple[RuleFinding, ...]
    """Every rule on the same commits and replays."""
    published: Published
    """The quantities of the published setting."""
    targets: tuple[Target, ...]
    """What the study was to show."""

    @property
    def has_false_fault(self) -> bool:
        """Whether an honest replay was called a fault, if only under `strict`."""
        return self.honest.strict_faults.num_events > 0


def write_power_report(path: Path, report: PowerReport) -> None:
    """Write the report, in place of an older one."""
    write_atomic(path, encode(report) + b"\n", overwrite=True)


def read_power_report(path: Path) -> PowerReport:
    """Return the report at `path`; raises what reading, parsing and decoding a document raise."""
    return decode(PowerReport, parse(read_bytes(path), str(path)), str(path))
