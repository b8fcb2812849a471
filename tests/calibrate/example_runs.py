"""Small calibrations to start a test from: a config, its decisions, a run into a folder."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from calibrate.calibration import Calibrated, RunFiles, calibrate
from calibrate.config import Arm, CalibrationConfig, Claim, Sweep
from calibrate.observations import ObservationStore, RunIdentity
from harness.records import PrecisionName
from harness.records.batching import Batching, Padded, PaddingSide
from harness.records.verifier import Prompt, Reward, VerifierSpec

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
NUM_DECISIONS = 60  # one more than coverage 0.95 at confidence 0.95 needs


class Recorder:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.planned_costs: dict[str, tuple[int, int]] = {}
        self.advanced_costs: dict[str, int] = {}

    def planned(self, process_id: str, cost: int, done: int) -> None:
        self.planned_costs[process_id] = (cost, done)

    def advanced(self, process_id: str, cost: int) -> None:
        self.advanced_costs[process_id] = self.advanced_costs.get(process_id, 0) + cost


def write_decisions(path: Path, num: int = NUM_DECISIONS, num_branches: int = 2) -> str:
    """Write `num` decisions whose rows differ in length; return the path."""
    lines = [
        {
            "decision_id": f"d{at}",
            "context": f"{at} + {at} = ? " + "Think. " * (at % 3),
            "branches": [
                {"branch_id": f"b{b}", "text": f" {at + b}." + "!" * (at * b % 4)}
                for b in range(num_branches)
            ],
        }
        for at in range(num)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def an_arm(**changes: Any) -> Arm:
    arm = Arm(precision=PrecisionName.BFLOAT16, batching=Padded(max_rows=8))
    return replace(arm, **changes)


def a_config(decisions: str, model: str = "fake:rounding", **changes: Any) -> CalibrationConfig:
    config = CalibrationConfig(
        name="example",
        verifier=VerifierSpec(
            model=model,
            head=Reward(),
            prompt=Prompt(template="<bos>{context}<sol>{branch}<eos>"),
        ),
        decisions=decisions,
        arms=(an_arm(),),
        guard_decisions=20,
        claim=Claim(coverage=0.95, confidence=0.95),
        sweep=Sweep(
            rows=(2,),
            reference_rows=4,
            sides=(PaddingSide.RIGHT, PaddingSide.LEFT),
            search=False,  # has its own tests, and fakes switch at every size
        ),
        processes=2,
    )
    return replace(config, **changes)


def files_in(folder: Path) -> RunFiles:
    return RunFiles(folder=folder, name="example")


def run(
    config: CalibrationConfig,
    folder: Path,
    *,
    now: datetime = NOW,
    progress: Recorder | None = None,
    overwrite: bool = False,
) -> Calibrated:
    files = files_in(folder)
    told = progress or Recorder()
    return calibrate(config, files, now=now, progress=told, overwrite=overwrite)


def an_identity(**changes: Any) -> RunIdentity:
    identity = RunIdentity(
        scorepin_version="0.1.0",
        config_digest="sha256:c",
        decisions_digest="sha256:d",
        created_at="2026-01-02T03:04:05+00:00",
    )
    return replace(identity, **changes)


def a_store(folder: Path, **changes: Any) -> ObservationStore:
    return ObservationStore(folder / "observations.sqlite", an_identity(**changes))


def padded(**changes: Any) -> Batching:
    return replace(Padded(max_rows=8), **changes)
