"""``python -m scripts.gpu.evidence --out FOLDER``: every precision and attention kernel, in turn.

Each condition runs in a process of its own. When the time is up no further one is started, and the
table says which were left out. Writes ``evidence.json`` and ``evidence.md``.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from harness.conditions.attention import KERNELS, Attention
from harness.conditions.condition import Condition, environment, label
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import UnsupportedConditionError
from harness.files import write_atomic
from harness.records.document import Record
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device
from scripts.gpu.evidence.arm import ArmJob, ArmResult
from scripts.gpu.evidence.model import SHAPES

HALF_ONLY = (Attention.FLASH, Attention.CUDNN)
"""Kernels of a CUDA device that serve half precisions only."""


class Arm(Record, frozen=True, kw_only=True):
    """One condition and what came of it."""

    label: str
    """The condition."""
    seconds: float | None = None
    """How long its process took; None when it was not run."""
    result: ArmResult | None = None
    """What it found."""
    problem: str = ""
    """Why there is no result."""


def main(  # noqa: PLR0913, PLR0917 - options
    out: Annotated[Path, typer.Option(help="Folder for the evidence.")],
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.CUDA,
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "7b",
    max_rows: Annotated[int, typer.Option(min=16, help="Largest batch.")] = 128,
    minutes: Annotated[float, typer.Option(help="Start no condition after so long.")] = 8.0,
    only: Annotated[
        list[PrecisionName] | None, typer.Option(help="Only this precision; may be repeated.")
    ] = None,
) -> None:
    """Measure, and write evidence.json and evidence.md."""
    if shape not in SHAPES:
        raise typer.BadParameter(f"--shape: one of {', '.join(SHAPES)}")
    out.mkdir(parents=True, exist_ok=True)
    begun, arms = time.monotonic(), []
    for condition in _conditions(device, only or list(PrecisionName)):
        if time.monotonic() - begun > minutes * 60:
            arms.append(Arm(label=label(condition), problem="not run: the time was up"))
        else:
            job = ArmJob(condition=condition, device=device, shape=shape, max_rows=max_rows)
            arms.append(_run(job))
        _tell(arms[-1])
        _write(out, arms)  # after each: a run that is cut short leaves what it had
    if not any(arm.result for arm in arms):
        raise typer.Exit(1)


def _conditions(device: Device, precisions: list[PrecisionName]) -> Iterator[Condition]:
    """Yield every precision under every attention kernel that can serve it."""
    for precision in precisions:
        for attention in (Attention.AUTO, Attention.EAGER, *KERNELS[device]):
            if precision is PrecisionName.FLOAT64 and attention is not Attention.AUTO:
                continue
            half = precision in (PrecisionName.BFLOAT16, PrecisionName.FLOAT16)
            if device is Device.CUDA and attention in HALF_ONLY and not half:
                continue
            order = ReductionOrderSpec(name="vendor", attention=attention)
            condition = Condition(precision=precision, reduction_order=order)
            try:
                environment(condition, device)
            except UnsupportedConditionError:
                continue
            yield condition


def _run(job: ArmJob) -> Arm:
    merged = {**os.environ, **environment(job.condition, job.device)}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "scripts.gpu.evidence.arm"],
        input=msgspec.json.encode(job),
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        problem = f"exit status {done.returncode}: {''.join(last)}"
        return Arm(label=label(job.condition), seconds=seconds, problem=problem)
    result = msgspec.json.decode(done.stdout.splitlines()[-1], type=ArmResult)
    return Arm(label=label(job.condition), seconds=seconds, result=result)


def _write(out: Path, arms: list[Arm]) -> None:
    data = msgspec.json.format(msgspec.json.encode(arms), indent=1)
    write_atomic(out / "evidence.json", data + b"\n", overwrite=True)
    write_atomic(out / "evidence.md", _markdown(arms).encode(), overwrite=True)


def _markdown(arms: list[Arm]) -> str:
    ran = [arm for arm in arms if arm.result]
    lines = ["# Evidence", ""]
    if ran and ran[0].result:
        facts = ran[0].result
        versions = ", ".join(f"{name} {version}" for name, version in facts.libraries.items())
        digests = {arm.result.weights_digest for arm in ran if arm.result}
        lines += [
            f"{facts.device_name}, {facts.device_capability}; {versions}.",
            f"{len(digests)} digest of the weights over {len(ran)} conditions.",
            "",
        ]
    lines += ["| condition | kernel | axis | classes of equal bits | movement |", "|" + "---|" * 5]
    for arm in arms:
        lines += _rows(arm)
    return "\n".join(lines) + "\n"


def _rows(arm: Arm) -> Iterator[str]:
    if arm.result is None:
        yield f"| {arm.label} | | | {arm.problem.replace('|', '/')} | |"
        return
    for found in arm.result.findings:
        classes = " / ".join(" ".join(part) for part in found.classes)
        kernel = "+".join(arm.result.kernels)
        yield f"| {arm.label} | {kernel} | {found.axis} | {classes} | {found.max_movement:.3g} |"


def _tell(arm: Arm) -> None:
    took = "" if arm.seconds is None else f" {arm.seconds:.1f} s"
    typer.echo(f"{arm.label}:{took} {arm.problem or 'done'}", err=True)


if __name__ == "__main__":
    typer.run(main)
