"""The config of a node's calibration: one of `configs/`, with a model and its head filled in.

The filled-in file is complete and lies in the job's folder: it is what was calibrated.
"""

from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from harness.records.document import Record
from harness.records.verifier import Device

__all__ = ["EngineName", "Filling", "filled"]

CONFIGS = Path(__file__).parents[3] / "configs"


class EngineName(StrEnum):
    """What runs the model."""

    TRANSFORMERS = "transformers"
    """Padded forwards: `configs/cuda.yaml`."""
    VLLM = "vllm"
    """vLLM in the measuring process: `configs/vllm.yaml`."""


class Filling(Record, frozen=True, kw_only=True):
    """What a job is told."""

    model: str
    """A folder or a hub name."""
    engine: EngineName = EngineName.TRANSFORMERS
    """What runs it."""
    device: Device = Device.CUDA
    """Where."""
    decisions: str = "embedded:decisions"
    """``embedded:decisions`` or a JSON-lines file."""
    num_decisions: int | None = None
    """How many of them; None for all."""
    template: str | None = None
    """The prompt; None for the config's own."""
    yes: tuple[str, ...] = ()
    """With `no`: the tokens of a judge's log-odds; without, the head is a reward model's."""
    no: tuple[str, ...] = ()
    """See `yes`."""
    coverage: float = 0.99
    """Share of decisions that a bound covers."""


def filled(filling: Filling) -> str:
    """Return the whole config, as YAML."""
    name = "vllm" if filling.engine is EngineName.VLLM else "cuda"
    config: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    verifier = config["verifier"]
    verifier |= {"model": filling.model, "device": str(filling.device)}
    if filling.template is not None:
        verifier["prompt"] = {"template": filling.template}
    if filling.yes:
        verifier["head"] = {"kind": "log_odds", "yes": [*filling.yes], "no": [*filling.no]}
    if filling.device is Device.CUDA:
        _on_cuda(config)
    elif filling.engine is EngineName.TRANSFORMERS:  # the CUDA config's arms do not run on a CPU
        order = {"name": "vendor", "num_threads": 1}
        batching = {"mode": "padded", "max_rows": 8}
        config["arms"] = [{"precision": "bfloat16", "reduction_order": order, "batching": batching}]
        config["sweep"] = {"rows": [3, 8], "reference_rows": 4, "sides": ["right"], "search": False}
    config |= {"name": "node", "decisions": filling.decisions}
    config["claim"]["coverage"] = filling.coverage
    if filling.num_decisions is not None:
        config["num_decisions"] = filling.num_decisions
        config["guard_decisions"] = min(config["guard_decisions"], filling.num_decisions)
    return yaml.safe_dump(config, sort_keys=False)


def _on_cuda(config: dict[str, Any]) -> None:
    """Leave out what only a CPU takes, and let vLLM size its cache."""
    for arm in config["arms"]:
        arm.get("reduction_order", {}).pop("num_threads", None)
    for name in ("kv_cache_bytes", "block_size", "max_model_len", "enforce_eager"):
        config["verifier"].get("engine", {}).pop(name, None)
