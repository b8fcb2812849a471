"""The config of one calibration: one complete YAML file, checked before anything is started.

A key that is not known is an error with the nearest known one, a wrong value says where it stands
and what may stand there, a key that stands twice is refused, and so is an arm that this device or
the guards cannot run. YAML is read as its version 1.2 has it: `yes` and `no` are words, a number
is one only when it looks like one. The command line only picks the file.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, inspect

from calibrate.power.spec import PowerSpec
from harness.codec import digest, residue
from harness.conditions.condition import Condition, requested_switches
from harness.conditions.flight import Flight
from harness.conditions.precision import reference_of
from harness.conditions.reduction_order import Attention, ReductionOrderSpec
from harness.errors import CallerError, ConfigError, nearest
from harness.files import read_bytes
from harness.records.batching import Batching, InFlight, PaddingSide
from harness.records.document import Record
from harness.records.engine import Endpoint, Engine, Transformers
from harness.records.invocation import PrecisionName
from harness.records.switches import SwitchValues
from harness.records.verifier import VerifierSpec
from harness.verifiers.endpoint import options as endpoint
from harness.verifiers.vllm import options as vllm

__all__ = ["Arm", "CalibrationConfig", "Claim", "Sweep", "load_config"]

FileName = Annotated[str, Meta(pattern=r"^\w[\w.-]*$")]
Share = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]


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
    widths: tuple[Count, ...] = ()
    """Padded widths to measure at `reference_rows`, beside the batches' own and the widest."""
    search: bool = True
    """Whether to find first where results switch, and to measure densely around it."""


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

    def reference_on(self, engine: Engine) -> Condition:
        """Return the same sums in the precision with which the guards compare the arm's.

        That is a finer one; of an engine that has none, a coarser one: what is judged is whether
        movement shrinks from one to the other.
        """
        precision = reference_of(self.precision)
        if precision is PrecisionName.FLOAT64 and not isinstance(engine, Transformers):
            precision = PrecisionName.BFLOAT16
        return Condition(precision=precision, reduction_order=self._unmeasured_order)

    @property
    def control(self) -> Condition:
        """The arm in the vendor's order: the negative control of a batch-invariant one."""
        order = msgspec.structs.replace(self._unmeasured_order, name="vendor")
        return msgspec.structs.replace(self.condition, reduction_order=order)

    @property
    def exact(self) -> Condition:
        """The same sums in float64, with the one attention kernel that always has it if need be."""
        order = self._unmeasured_order
        if order.attention not in {Attention.AUTO, Attention.SDPA, Attention.EAGER}:
            order = msgspec.structs.replace(order, attention=Attention.MATH)
        return Condition(precision=PrecisionName.FLOAT64, reduction_order=order)

    @property
    def _unmeasured_order(self) -> ReductionOrderSpec:
        """The order without its summation trees: what guards compare are scores."""
        return msgspec.structs.replace(self.reduction_order, fingerprint=False)


class CalibrationConfig(Record, frozen=True, kw_only=True):
    """A whole calibration."""

    name: FileName
    """Names the run's folder and files."""
    verifier: VerifierSpec
    """What is calibrated."""
    decisions: str
    """``embedded:decisions`` or a JSON-lines file; a path is relative to the config's folder."""
    arms: Annotated[tuple[Arm, ...], Meta(min_length=1)]
    """Conditions and batching modes; the first is the one that `score` uses."""
    num_decisions: Count | None = None
    """How many decisions, from the first; None for all."""
    guard_decisions: Count = 100
    """How many of them the reference precision runs, for the rounding guard."""
    appeal_decisions: CountOrNone = 20
    """Most decisions that are heard again in float64 when the reference precision moves them by
    more than the rounding guard allows; 0 hears none."""
    exact_decisions: CountOrNone = 20
    """How many of the guards' decisions float64 scores, each row alone, for the build's own
    rounding error; 0 for none."""
    claim: Claim = Claim()
    """What the tolerance file is to claim."""
    sweep: Sweep = Sweep()
    """Which compositions are measured."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of every shuffle."""
    valid_days: Annotated[int, Meta(ge=1, le=36500)] | None = None
    """Days until the tolerance file expires; None for never."""
    processes: Count | None = None
    """Condition processes at a time; None: one on CUDA, cores / threads on a CPU."""
    power: PowerSpec = PowerSpec()
    """What `scorepin power` studies."""

    @property
    def digest(self) -> str:
        """Digest of all that the measurement follows from.

        Where the decisions lie does not matter, since they have a digest of their own, nor how many
        processes run at a time, nor the study that is made afterwards.
        """
        plain = msgspec.to_builtins(msgspec.structs.replace(self, decisions="", processes=None))
        return digest({name: value for name, value in plain.items() if name != "power"})


def load_config(path: Path) -> CalibrationConfig:
    """Read and check the config at `path`.

    Raises ConfigError or UnsupportedConditionError with the file and the place in it.
    """
    raw = _parse(path)
    try:
        config = msgspec.convert(raw, CalibrationConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}{_advice(str(error))}") from error
    known = msgspec.to_builtins(config)
    _refuse_unknown(path, residue(raw, known), known, "$")
    for at, arm in enumerate(config.arms):
        _check_arm(f"{path}: `$.arms[{at}]`", arm, config.arms[:at], config.verifier)
    return _with_paths(config, path.absolute().parent)


def _parse(path: Path) -> dict[str, Any]:
    try:
        raw = _load_yaml(read_bytes(path), str(path))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        found = "an empty file" if raw is None else type(raw).__name__
        raise ConfigError(f"{path}: a config is a mapping of keys, found {found}")
    return raw


def _load_yaml(data: bytes, name: str) -> Any:
    loader = _StrictLoader(data)
    loader.name = name
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _advice(message: str) -> str:
    """Return what may stand at the place that a validation error names, if that can be listed."""
    found = re.fullmatch(r"Invalid (?:enum )?value '(.*)' - at `\$(.*)`", message)
    if not found:
        return ""
    value, place = found.groups()
    choices = _choices([inspect.type_info(CalibrationConfig)], re.findall(r"\w+", place))
    return f"; {nearest(value, choices)}"


def _choices(kinds: Iterable[inspect.Type], steps: Sequence[str]) -> Iterator[str]:
    """Yield the values that are known at a place, `steps` below a value of one of `kinds`."""
    for kind in kinds:
        match kind:
            case inspect.UnionType():
                yield from _choices(kind.types, steps)
            case inspect.Metadata():
                yield from _choices([kind.type], steps)
            case inspect.VarTupleType():
                yield from _choices([kind.item_type], steps[1:])
            case inspect.EnumType():
                yield from map(str, kind.cls)
            case inspect.LiteralType():
                yield from map(str, kind.values)
            case inspect.StructType() if steps == [kind.tag_field]:
                yield str(kind.tag)
            case inspect.StructType():
                fields = (field for field in kind.fields if [field.encode_name] == steps[:1])
                yield from _choices((field.type for field in fields), steps[1:])


def _refuse_unknown(path: Path, unknown: dict[str, Any], known: Any, at: str) -> None:
    for key, value in unknown.items():
        if isinstance(known, list | tuple):
            _refuse_unknown(path, value, known[int(key)], f"{at}[{key}]")
        elif key not in known:
            raise ConfigError(f"{path}: unknown key `{key}` at `{at}`; {nearest(str(key), known)}")
        else:
            _refuse_unknown(path, value, known[key], f"{at}.{key}")


def _check_arm(where: str, arm: Arm, earlier: Sequence[Arm], verifier: VerifierSpec) -> None:
    """Raise what engine and device say of the arm and of its guards, beginning with `where`."""
    if arm in earlier:
        raise ConfigError(f"{where}: the same as `$.arms[{earlier.index(arm)}]`; remove one")
    packs, in_flight = (
        not isinstance(verifier.engine, Transformers),
        isinstance(arm.batching, InFlight),
    )
    if packs != in_flight:
        advice = "mode in_flight goes with an engine that schedules by itself, and with none other"
        raise ConfigError(f"{where}.batching: {advice} (verifier.engine)")
    try:
        for condition in (arm.condition, arm.reference_on(verifier.engine)):
            requested_switches(condition, verifier.device)
            vllm.refuse_unsupported(verifier, condition)
            endpoint.refuse_unsupported(verifier, condition)
        if isinstance(verifier.engine, Endpoint) and isinstance(arm.batching, InFlight):
            endpoint.refuse_flight(Flight(), arm.batching.max_rows, verifier.engine)
    except CallerError as error:
        raise type(error)(f"{where}: {error}") from error


def _with_paths(config: CalibrationConfig, folder: Path) -> CalibrationConfig:
    """Resolve the paths of a config against its own folder."""
    decisions = config.decisions
    if not decisions.startswith("embedded:"):
        decisions = str(folder / decisions)
    model, other = config.verifier.model, config.power.other_checkpoint
    verifier = msgspec.structs.replace(config.verifier, model=_beside(folder, model))
    power = msgspec.structs.replace(config.power, other_checkpoint=other and _beside(folder, other))
    return msgspec.structs.replace(config, decisions=decisions, verifier=verifier, power=power)


def _beside(folder: Path, model: str) -> str:
    """Return the folder of `model` that lies in `folder`, or `model` as it is, if there is none."""
    beside = folder / model
    return str(beside) if beside.is_dir() else model


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key standing twice in one mapping."""

    yaml_implicit_resolvers = {}  # YAML 1.1 takes `no` for false and 1:30 for 90; see below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's own signature
        """Return the mapping; raise when a key is repeated."""
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
