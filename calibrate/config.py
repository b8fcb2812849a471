"""The config of one calibration: one complete YAML file, checked before anything is started.

A key that is not known is an error with the nearest known one, a wrong type says where it stands,
a key that stands twice is refused. The command line only picks the file.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from harness.codec import digest, residue
from harness.conditions.condition import Condition
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import ConfigError, nearest
from harness.files import read_bytes
from harness.records.batching import Batching, PaddingSide
from harness.records.document import Record
from harness.records.invocation import PrecisionName
from harness.records.switches import SwitchValues
from harness.records.verifier import VerifierSpec

__all__ = ["Arm", "CalibrationConfig", "Claim", "Sweep", "load_config"]

Share = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]


class Claim(Record, frozen=True, kw_only=True):
    """What the tolerance file is to claim."""

    coverage: Share = 0.99
    """Share of decisions that a bound covers."""
    confidence: Share = 0.95
    """Confidence that it does."""


class Sweep(Record, frozen=True, kw_only=True):
    """Which compositions are measured; every row of every batch is a target."""

    rows: tuple[Count, ...] = (2, 3, 4, 12, 32)
    """Batch sizes, dense where kernels switch; those above the arm's `max_rows` are left out."""
    reference_rows: Count = 12
    """Batch size at which one thing at a time is varied."""
    sides: tuple[PaddingSide, ...] = (PaddingSide.RIGHT, PaddingSide.LEFT)
    """Padding sides to measure; the arm's own side is always measured."""


class Arm(Record, frozen=True, kw_only=True):
    """One condition under one batching mode: it gets a tolerance of its own."""

    precision: PrecisionName
    """Precision mode."""
    batching: Batching
    """Batching mode."""
    reduction_order: ReductionOrderSpec = ReductionOrderSpec(name="vendor")
    """Reduction order."""
    precision_overrides: SwitchValues = {}
    """Accumulation switches other than the mode's own."""

    @property
    def condition(self) -> Condition:
        """The arm without its batching."""
        return Condition(
            precision=self.precision,
            precision_overrides=self.precision_overrides,
            reduction_order=self.reduction_order,
        )


class CalibrationConfig(Record, frozen=True, kw_only=True):
    """A whole calibration."""

    name: str
    """Names the run's folder and files."""
    verifier: VerifierSpec
    """What is calibrated."""
    decisions: str
    """``embedded:decisions`` or a JSON-lines file, relative to the config."""
    arms: Annotated[tuple[Arm, ...], Meta(min_length=1)]
    """Conditions and batching modes; the first is the one that `score` uses."""
    num_decisions: Count | None = None
    """How many decisions, from the first; None for all."""
    guard_decisions: Count = 100
    """How many of them the reference precision runs, for the rounding guard."""
    claim: Claim = Claim()
    """What the tolerance file is to claim."""
    sweep: Sweep = Sweep()
    """Which compositions are measured."""
    seed: int = 0
    """Seed of every shuffle."""
    valid_days: Count | None = None
    """Days until the tolerance file expires; None for never."""
    processes: Count | None = None
    """Condition processes at a time; None: one on CUDA, cores / threads on a CPU."""

    @property
    def digest(self) -> str:
        """Digest of all that the measurement follows from (how many processes does not matter)."""
        return digest(msgspec.structs.replace(self, processes=None))


def load_config(path: Path) -> CalibrationConfig:
    """Read and check the config at `path`.

    Raises ConfigError with the file and the place in it.
    """
    raw = _parse(path)
    try:
        config = msgspec.convert(raw, CalibrationConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    known = msgspec.to_builtins(config)
    _refuse_unknown(path, residue(raw, known), known, "$")
    return _with_paths(config, path.parent)


def _parse(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.load(read_bytes(path), Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, found {type(raw).__name__}")
    return raw


def _refuse_unknown(path: Path, unknown: dict[str, Any], known: Any, at: str) -> None:
    for key, value in unknown.items():
        if isinstance(known, list | tuple):
            _refuse_unknown(path, value, known[int(key)], f"{at}[{key}]")
        elif key not in known:
            raise ConfigError(f"{path}: unknown key `{key}` at `{at}`; {nearest(str(key), known)}")
        else:
            _refuse_unknown(path, value, known[key], f"{at}.{key}")


def _with_paths(config: CalibrationConfig, folder: Path) -> CalibrationConfig:
    """Resolve the paths of a config against its own folder."""
    decisions = config.decisions
    if not decisions.startswith("embedded:"):
        decisions = str(folder / decisions)
    model, beside = config.verifier.model, folder / config.verifier.model
    if ":" not in model and not Path(model).is_absolute() and beside.is_dir():
        model = str(beside)
    verifier = msgspec.structs.replace(config.verifier, model=model)
    return msgspec.structs.replace(config, decisions=decisions, verifier=verifier)


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key standing twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's own signature
        """Return the mapping; raise when a key is repeated."""
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]  # type: ignore[no-untyped-call]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)
