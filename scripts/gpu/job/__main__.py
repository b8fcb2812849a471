"""``python -m scripts.gpu.job --model NAME --out FOLDER``: facts, calibration, tests, in turn.

Everything lies in one folder: ``config.yaml``, the tolerance file, ``report.html``, the observation
store, ``build.json``, ``packages.txt``, ``nvidia-smi.txt``, ``tests.xml``, a log a step, and
``job.json``, which says how each step ended. It is written after each step, so that a job that is
cut short leaves what it had. A step that fails does not keep the next from running, except that
nothing is calibrated without a config. The exit status is 1 when any step failed.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from harness.files import write_atomic
from harness.records.document import Record
from harness.records.verifier import Device
from scripts.gpu.job.config import EngineName, Filling, filled

ROOT = Path(__file__).parents[3]


class Step(Record, frozen=True, kw_only=True):
    """One command and what came of it."""

    name: str
    """Names its log too."""
    command: tuple[str, ...]
    """As it was run."""
    exit_status: int | None = None
    """None for a step that was not run."""
    seconds: float | None = None
    """How long it took."""
    note: str = ""
    """Why it was not run."""


def main(  # noqa: PLR0913, PLR0917 - options
    model: Annotated[str, typer.Option(help="A folder or a hub name.")],
    out: Annotated[Path, typer.Option(help="The job's folder.")],
    engine: Annotated[EngineName, typer.Option(help="What runs it.")] = EngineName.TRANSFORMERS,
    device: Annotated[Device, typer.Option(help="Where.")] = Device.CUDA,
    decisions: Annotated[str, typer.Option(help="A JSON-lines file.")] = "embedded:decisions",
    num_decisions: Annotated[int | None, typer.Option(min=1, help="How many of them.")] = None,
    coverage: Annotated[float, typer.Option(help="Share of decisions to be covered.")] = 0.99,
    template: Annotated[str | None, typer.Option(help="Prompt, {context} and {branch}.")] = None,
    yes: Annotated[list[str] | None, typer.Option(help="A judge's token for yes.")] = None,
    no: Annotated[list[str] | None, typer.Option(help="A judge's token for no.")] = None,
    *,
    skip_tests: Annotated[bool, typer.Option("--skip-tests", help="Calibrate only.")] = False,
) -> None:
    """Calibrate a model on this node, run the CUDA tests, and leave all of it in one folder."""
    if bool(yes) != bool(no):
        raise typer.BadParameter("--yes and --no are given together, or neither")
    filling = Filling(
        model=model,
        engine=engine,
        device=device,
        decisions=_found(decisions),
        num_decisions=num_decisions,
        coverage=coverage,
        template=template,
        yes=tuple(yes or ()),
        no=tuple(no or ()),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "config.yaml", filled(filling).encode(), overwrite=True)
    steps: list[Step] = []
    for name, command in _commands(out.resolve(), skip_tests=skip_tests).items():
        steps.append(_run(name, command, out))
        _write(out, steps)
    if failed := [step.name for step in steps if step.exit_status or step.note]:
        typer.echo(f"failed or not run: {', '.join(failed)}; see {out / 'job.json'}", err=True)
    if any(step.exit_status for step in steps):
        raise typer.Exit(1)


def _found(decisions: str) -> str:
    """Return where the decisions are, from wherever the config will be read."""
    return decisions if decisions.startswith("embedded:") else str(Path(decisions).resolve())


def _commands(out: Path, *, skip_tests: bool) -> dict[str, tuple[str, ...]]:
    scorepin = (sys.executable, "-m", "calibrate.cli")
    found: dict[str, tuple[str, ...]] = {
        "build.json": (*scorepin, "doctor", "--json"),
        "packages.txt": (sys.executable, "-m", "pip", "freeze"),
        "nvidia-smi.txt": ("nvidia-smi", "-q"),
        "calibrate.log": (*scorepin, "calibrate", str(out / "config.yaml"), "--run", str(out)),
    }
    if not skip_tests:
        xml = f"--junitxml={out / 'tests.xml'}"
        found["tests.log"] = (sys.executable, "-m", "pytest", "-m", "cuda", xml, "tests/cuda")
    return found


def _run(name: str, command: Sequence[str], out: Path) -> Step:
    """Run one step; what it prints goes to the file it is named after."""
    if shutil.which(command[0]) is None:
        return Step(name=name, command=tuple(command), note=f"{command[0]} is not installed")
    typer.echo(f"{name}: {' '.join(command)}", err=True)
    begun = time.monotonic()
    with (out / name).open("wb") as printed, (out / f"{name}.err").open("wb") as errors:
        done = subprocess.run(command, cwd=ROOT, stdout=printed, stderr=errors, check=False)
    seconds = time.monotonic() - begun
    typer.echo(f"{name}: exit status {done.returncode}, {seconds:.0f} s", err=True)
    return Step(
        name=name, command=tuple(command), exit_status=done.returncode, seconds=round(seconds, 1)
    )


def _write(out: Path, steps: Sequence[Step]) -> None:
    data = msgspec.json.format(msgspec.json.encode(steps), indent=1)
    write_atomic(out / "job.json", data + b"\n", overwrite=True)


if __name__ == "__main__":
    typer.run(main)
