"""The command: train, evaluate, and write the three things that ship."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils import logging as transformers_logging

from harness.errors import ConfigError
from scripts.train_tiny_verifier.decisions import decision_lines, draw_held_out
from scripts.train_tiny_verifier.evaluate import Evaluation, evaluate, score_held_out
from scripts.train_tiny_verifier.model import build_model, save_checkpoints
from scripts.train_tiny_verifier.tokenizer import train_tokenizer
from scripts.train_tiny_verifier.training import StepReport, TrainingReport, train


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed on standard output."""

    out: str
    num_parameters: int
    training: TrainingReport
    evaluation: Evaluation


def run(out: Path, cpu_seconds: float, num_problems: int, console: Console) -> RunReport:
    """Train and write `reward/`, `lm/` and `decisions.jsonl` into the new directory `out`."""
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} holds files already: name a new or empty directory with --out")
    tokenizer = train_tokenizer()
    model = build_model(tokenizer)
    with _progress(console) as progress:
        task = progress.add_task("training", total=1.0, losses="")

        def show(report: StepReport) -> None:
            progress.update(task, completed=report.spent_share, losses=_losses(report))

        training = train(model, tokenizer, cpu_seconds=cpu_seconds, on_step=show)
        progress.update(task, completed=1.0)
    held_out = draw_held_out(num_problems)
    console.print(f"scoring the candidates of {num_problems} held-out problems")
    evaluation = evaluate(score_held_out(model, tokenizer, held_out))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    save_checkpoints(model, tokenizer, out)
    (out / "decisions.jsonl").write_text(decision_lines(held_out), encoding="utf-8")
    return RunReport(
        out=str(out), num_parameters=num_parameters, training=training, evaluation=evaluation
    )


def main(
    out: Annotated[Path, typer.Option(help="New or empty directory for the results.")],
    cpu_seconds: Annotated[float, typer.Option(min=0.1, help="Budget for training.")] = 1300.0,
    num_problems: Annotated[
        int, typer.Option(min=1, help="Held-out problems; 400 give the decisions that ship.")
    ] = 400,
) -> None:
    """Train the tiny verifier on one core; progress on stderr, the report as JSON on stdout."""
    torch.set_num_threads(1)
    switches: Any = transformers_logging
    switches.disable_progress_bar()
    console = Console(stderr=True)
    try:
        report = run(out, cpu_seconds, num_problems, console)
    except ConfigError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% of CPU budget {task.fields[losses]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _losses(report: StepReport) -> str:
    return f"step {report.step} reward {report.reward_loss:.3f} language {report.language_loss:.3f}"


if __name__ == "__main__":
    typer.run(main)
