"""One condition in its own process: makes the model, runs the sweep, prints one JSON line.

Started by ``scripts.gpu.evidence`` with the condition's environment already set.
"""

import sys
from itertools import groupby
from typing import Any

import msgspec

from harness import machine
from harness.conditions.attention import attention_kernels, attn_implementation
from harness.conditions.condition import Condition, controlled
from harness.conditions.precision import torch_dtype_name
from harness.records.document import Record
from harness.records.switches import SwitchValues
from harness.records.verifier import Device
from harness.verifiers.forwards import Forward, Reads, forward_of
from harness.verifiers.inputs import first_columns, padded_inputs
from harness.verifiers.protocol import EncodedRow
from scripts.gpu.evidence.model import SHAPES, make_model, weights_digest
from scripts.gpu.evidence.sweep import (
    NUM_PROBES,
    Finding,
    Trial,
    finding,
    make_rows,
    trials,
)

__all__ = ["ArmJob", "ArmResult"]


class ArmJob(Record, frozen=True, kw_only=True):
    """What one process is to do."""

    condition: Condition
    """Precision, reduction order, attention kernel."""
    device: Device
    """Where."""
    shape: str
    """Of the model."""
    max_rows: int
    """Largest batch."""


class ArmResult(Record, frozen=True, kw_only=True):
    """What one process found."""

    kernels: tuple[str, ...]
    """Attention kernels that ran."""
    resolved: SwitchValues
    """Switches, read back."""
    weights_digest: str
    """Equal in arms that hold the same values."""
    scores: tuple[float, ...]
    """The probes' scores, each alone at the reference width, raw logits."""
    findings: tuple[Finding, ...]
    """Axis by axis."""
    libraries: dict[str, str]
    """Versions."""
    device_name: str
    """The device, by its own name."""
    device_capability: str
    """Capability, multiprocessors, driver."""


def main() -> None:
    """Read a job from standard input; print its result."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ArmJob)
    sys.stdout.buffer.write(msgspec.json.encode(run_arm(job)) + b"\n")


def run_arm(job: ArmJob) -> ArmResult:
    """Run the sweep under the job's condition."""
    with controlled(job.condition, job.device) as switches:
        dtype = torch_dtype_name(job.condition.precision)
        attention = attn_implementation(job.condition.reduction_order.attention)
        model = make_model(job.shape, dtype, attention, str(job.device))
        probe = _Probe(model, make_rows(max(job.max_rows, 32), SHAPES[job.shape]["vocab_size"]))
        run = list(trials(job.max_rows))
        with attention_kernels() as kernels:
            probe.score(run[0])
        scores = [probe.score(trial) for trial in run]
        facts = machine.device_facts(job.device)
        return ArmResult(
            kernels=tuple(sorted(kernels)),
            resolved=switches.precision | switches.order,
            weights_digest=weights_digest(model),
            scores=scores[0],
            findings=tuple(_findings(run, scores)),
            libraries=machine.library_versions(job.device),
            device_name=facts.name,
            device_capability=facts.capability,
        )


class _Probe:
    """The model and all rows; scores each probe in a trial's batch."""

    def __init__(self, model: Any, rows: list[tuple[int, ...]]) -> None:
        self._forward: Forward = forward_of(model, "sequence_classification")
        self._device = model.device
        self._probes = [_row(ids) for ids in rows[:NUM_PROBES]]
        self._companions = [_row(ids) for ids in rows[NUM_PROBES:]]
        self._inert = _row((0,))

    def score(self, trial: Trial) -> tuple[float, ...]:
        return tuple(self._score(trial, probe) for probe in self._probes)

    def _score(self, trial: Trial, probe: EncodedRow) -> float:
        import torch  # noqa: PLC0415 - after the condition's environment is set

        named = {-1: self._inert, 0: probe}
        rows = [named.get(at) or self._companions[at - 1] for at in trial.rows]
        starts = first_columns(rows, trial.width, trial.side)
        inputs = padded_inputs(rows, starts, trial.width, padding=0)
        lasts = [start + len(row.token_ids) - 1 for start, row in zip(starts, rows, strict=True)]
        reads = Reads(rows=list(range(len(rows))), columns=lasts)
        with torch.inference_mode():
            on_device = {name: t.to(self._device) for name, t in inputs.items()}
            logits = self._forward(on_device, reads)
            return float(logits[trial.rows.index(0), 0].double().item())


def _row(ids: tuple[int, ...]) -> EncodedRow:
    return EncodedRow(token_ids=ids, branch_start=0, branch_end=len(ids))


def _findings(run: list[Trial], scores: list[tuple[float, ...]]) -> list[Finding]:
    pairs = zip(run, scores, strict=True)
    return [
        finding(axis, [t.setting for t, _ in group], [s for _, s in group])
        for axis, group in ((axis, list(found)) for axis, found in groupby(pairs, _axis))
    ]


def _axis(pair: tuple[Trial, tuple[float, ...]]) -> str:
    return pair[0].axis


if __name__ == "__main__":
    main()
