"""The `scorepin` command: picks files, calls the code that does the work, prints what came of it.

Results go to standard output, progress and errors to standard error. Exit status: 0 no fault, 1 a
fault, 2 the call or its input must be mended, 3 a guard refuses the build, 130 interrupted. What
only calibration needs is imported by the commands that calibrate.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import calibrate
from calibrate import console
from calibrate.planner_cli import effects, gate, ledger
from calibrate.progress import RunProgress, rows_progress
from harness.errors import (
    ConfigError,
    GuardRefusalError,
    InputFileError,
    ReconstructionMismatchError,
    ReplayDivergenceError,
    ScorepinError,
)
from harness.records.verdict import Policy

if TYPE_CHECKING:
    from calibrate.calibration import Calibrated, RunFiles
    from calibrate.config import CalibrationConfig
    from harness.commit_log import Reject
    from harness.conditions.condition import Condition
    from harness.records.batching import Batching
    from harness.records.commit import CommitRecord
    from harness.records.verdict import Verdict
    from harness.replay import ReplayAs

__all__ = ["app", "main"]

FAULT, USAGE, GUARD, INTERRUPTED = 1, 2, 3, 130
EXTRA_MODULES = frozenset(
    {
        "jinja2",
        "matplotlib",
        "numpy",
        "safetensors",
        "scipy",
        "tokenizers",
        "torch",
        "transformers",
        "yaml",
    }
)

HELP = "Measure how far a verifier's scores move, pin how decisions were scored, judge replays."
EPILOG = """Exit status: 0 no fault, 1 a fault, 2 the call or its input must be mended, 3 a guard \
refuses the build, 130 interrupted.

Shell completion: `scorepin --install-completion`, then open a new shell."""

app = typer.Typer(
    name="scorepin",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

for planner_app in (gate.app, ledger.app, effects.app):
    app.add_typer(planner_app)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A complete config, YAML.")]
RunFolder = Annotated[
    Path | None, typer.Option("--run", help="Folder of the run; default runs/NAME.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an older output file.")]


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        console.print_line(f"scorepin {calibrate.__version__}")
        raise typer.Exit


@app.command("calibrate")
def calibrate_command(
    config_path: ConfigPath,
    *,
    run: RunFolder = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure a build and write its tolerance file; run it again to resume."""
    with _errors_told(interrupted=_resume()):
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML

        config = load_config(config_path)
        files, calibrated = _calibrated(config, run, overwrite=overwrite)
        paths = {"tolerance": str(files.tolerance), "report": str(files.report)}
        if as_json:
            _print_json({**paths, "num_observations": calibrated.num_observations})
            return
        console.print_tolerances(calibrated.file)
        console.results.print()
        console.print_paths({"tolerance file": files.tolerance, "report": files.report})


@app.command()
def score(  # noqa: PLR0913 - options
    config_path: ConfigPath,
    *,
    commits: Annotated[
        Path | None, typer.Option(help="Commit log; default runs/NAME/commits.jsonl.")
    ] = None,
    decisions: Annotated[
        str | None, typer.Option(help="Decisions file; default the config's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    arm: Annotated[int, typer.Option(min=0, help="Which of the config's arms to run.")] = 0,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Rows in a batch.")] = None,
    speculative: Annotated[
        bool, typer.Option("--speculative", help="Nothing is acted on: records are plan noise.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a decisions file and append a commit record for each decision."""
    with _errors_told():
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from harness.commit_log import CommitLog  # noqa: PLC0415
        from harness.decisions import read_decisions  # noqa: PLC0415
        from harness.scoring import score_decisions  # noqa: PLC0415

        config = load_config(config_path)
        if arm >= len(config.arms):
            raise ConfigError(f"--arm {arm}: the config has arms 0 to {len(config.arms) - 1}")
        chosen = config.arms[arm]
        found = read_decisions(decisions or config.decisions, limit or config.num_decisions)
        log = CommitLog(commits or _folder(None, config) / "commits.jsonl")
        rows = sum(len(decision.branches) for decision in found)
        with rows_progress("scoring", rows) as bar:
            scored = score_decisions(
                config.verifier,
                chosen.condition,
                _resized(chosen.batching, max_rows),
                found,
                seed=config.seed,
                committed=not speculative,
                advance=lambda count: bar.advance(bar.task_ids[0], count),
            )
        new = log.append(scored.commits, scored.items)
        if as_json:
            _print_json({"commits": str(log.path), "num_new": new, "num_scored": len(found)})
            return
        known = "" if new == len(found) else f" ({len(found) - new} were there already)"
        console.print_line(f"{new} commit records{known} in {log.path}")


@app.command()
def replay(  # noqa: PLR0913 - options
    commits: Annotated[Path, typer.Argument(metavar="COMMITS", help="Commit log.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Replay file; default COMMITS with .replays.jsonl.")
    ] = None,
    replica: Annotated[str, typer.Option(help="Name of this replica in the records.")] = "",
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Batch anew, so many rows: a reconstruction.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Another precision mode: a reconstruction.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    as_json: AsJson = False,
) -> None:
    """Execute commits again, in the recorded condition and batches, and append replay records."""
    with _errors_told():
        from harness.commit_log import append_replays, read_commits, read_items  # noqa: PLC0415
        from harness.replay import replay_commits  # noqa: PLC0415

        target = out or commits.with_name(f"{commits.stem}.replays.jsonl")
        read = read_commits(commits)
        chosen = read.records[:limit]
        if not chosen:
            first = f"; {read.rejects[0].error}" if read.rejects else ""
            raise InputFileError(f"{commits}: no usable commit to replay{first}")
        _require_torch(chosen)
        departs = _departure(chosen[0], max_rows, precision, replica)
        with rows_progress("replaying", _num_rows(chosen, max_rows)) as bar:
            replays = replay_commits(
                chosen,
                read_items(commits),
                departs,
                lambda count: bar.advance(bar.task_ids[0], count),
            )
        append_replays(target, replays)
        if as_json:
            counts = {"num_replayed": len(replays), "num_rejected": len(read.rejects)}
            _print_json({"replays": str(target), **counts})
        else:
            console.print_line(f"{len(replays)} replay records in {target}")
        _tell_rejects(commits, read.rejects)


@app.command()
def classify(  # noqa: PLR0913 - options
    commits: Annotated[Path, typer.Argument(metavar="COMMITS", help="Commit log.")],
    replays: Annotated[Path, typer.Argument(metavar="REPLAYS", help="Replay file.")],
    *,
    tolerances: Annotated[
        list[Path], typer.Option(help="Tolerance file or folder of them; may be repeated.")
    ],
    policy: Annotated[
        Policy, typer.Option(help="`strict` takes drift as a fault.")
    ] = Policy.DEFAULT,
    out: Annotated[Path | None, typer.Option(help="Write the verdicts here, JSON lines.")] = None,
    alpha: Annotated[
        float, typer.Option(min=1e-12, max=0.5, help="False-alarm bound of the drift alarm.")
    ] = 0.01,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Judge each replay against its commit: one verdict a record, and a summary."""
    with _errors_told():
        from calibrate.verdicts import judge_files  # noqa: PLC0415
        from harness.codec import encode  # noqa: PLC0415
        from harness.files import write_atomic  # noqa: PLC0415
        from harness.tolerance_file import load_tolerances  # noqa: PLC0415

        judged = judge_files(
            commits,
            replays,
            load_tolerances(*tolerances),
            policy=policy,
            now=_now().isoformat(),
            alpha=alpha,
        )
        lines = b"".join(encode(verdict) + b"\n" for verdict in judged.verdicts)
        if out is not None:
            write_atomic(out, lines, overwrite=overwrite)
        if as_json:
            typer.echo(lines, nl=False)
        table = console.errors if as_json else console.results
        console.print_verdicts(judged.verdicts, judged.alarms, len(judged.rejects), table)
        _tell_rejects(replays, judged.rejects)
        _exit(judged.verdicts, bool(judged.rejects))


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A tolerance file.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show a tolerance file."""
    with _errors_told():
        from harness.codec import encode  # noqa: PLC0415
        from harness.tolerance_file import read_tolerance_file  # noqa: PLC0415

        file = read_tolerance_file(path)
        if as_json:
            typer.echo(encode(file))
        else:
            console.print_tolerances(file)


@app.command()
def doctor(*, as_json: AsJson = False) -> None:
    """Show this machine's build facts and which switches are on."""
    with _errors_told():
        import msgspec  # noqa: PLC0415

        from calibrate.doctor import diagnose  # noqa: PLC0415

        diagnosis = diagnose()
        if as_json:
            _print_json(msgspec.to_builtins(diagnosis))
        else:
            console.print_diagnosis(diagnosis)


@app.command()
def demo(
    *,
    config_path: Annotated[
        Path | None, typer.Option("--config", help="Another config than the embedded demo's.")
    ] = None,
    run: RunFolder = None,
    overwrite: Overwrite = False,
) -> None:
    """Calibrate the embedded verifier, commit, and replay in three ways."""
    with _errors_told(interrupted=_resume()):
        from calibrate import demo as scenes  # noqa: PLC0415 - heavy
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from harness.decisions import read_decisions  # noqa: PLC0415

        config = load_config(config_path or scenes.demo_config())
        files, calibrated = _calibrated(config, run, overwrite=overwrite)
        console.print_tolerances(calibrated.file)
        decisions = scenes.on_stage(read_decisions(config.decisions, config.num_decisions))
        rows = sum(len(decision.branches) for decision in decisions)
        with rows_progress("committing and replaying", rows * (1 + scenes.NUM_WAYS)) as bar:
            played = scenes.play(
                config,
                calibrated.file,
                decisions,
                lambda count: bar.advance(bar.task_ids[0], count),
            )
        scenes.store_scenes(files.folder, played)
        console.print_scenes(played)
        console.results.print()
        console.print_paths(
            {
                "tolerance file": files.tolerance,
                "report": files.report,
                "commit log": files.folder / "commits.jsonl",
            }
        )


def _calibrated(
    config: "CalibrationConfig", run: Path | None, *, overwrite: bool
) -> "tuple[RunFiles, Calibrated]":
    """Calibrate with a bar; a refusal says where its report is."""
    from calibrate.calibration import RunFiles  # noqa: PLC0415 - heavy
    from calibrate.calibration import calibrate as run_calibration  # noqa: PLC0415
    from calibrate.plan import plan_processes  # noqa: PLC0415

    files = RunFiles(folder=_folder(run, config), name=config.name)
    num_processes = len(plan_processes(config, config.num_decisions or 1))
    try:
        with RunProgress(num_processes) as progress:
            calibrated = run_calibration(
                config, files, now=_now(), progress=progress, overwrite=overwrite
            )
    except GuardRefusalError as refusal:
        raise GuardRefusalError(f"{refusal}\nreport: {files.report}") from refusal
    return files, calibrated


@contextmanager
def _errors_told(interrupted: str = "nothing was written; run it again") -> Iterator[None]:
    """Turn errors into a message on standard error and an exit status."""
    try:
        yield
    except ScorepinError as error:
        _end(f"[red]error[/] {type(error).__name__}:", str(error), _status(error))
    except ModuleNotFoundError as error:
        root = (error.name or "").partition(".")[0]
        if root not in EXTRA_MODULES:
            raise
        advice = f"{root} is not installed: pip install 'scorepin[calibrate]'"
        _end("[red]error[/]:", advice, USAGE)
    except OSError as error:
        advice = "check that there is room, and that it may be written"
        _end("[red]error[/]:", f"{error.filename or 'output'}: {error.strerror}; {advice}", USAGE)
    except KeyboardInterrupt:
        _end("[yellow]interrupted[/]:", interrupted, INTERRUPTED)


def _resume() -> str:
    """Say how to go on with a run, with the options it was begun with."""
    command = shlex.join(["scorepin", *sys.argv[1:]])
    return f"all that was scored is stored; go on with: {command}"


def _end(head: str, message: str, status: int) -> NoReturn:
    console.errors.print(head, end=" ")
    console.errors.print(message, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def _status(error: ScorepinError) -> int:
    if isinstance(error, GuardRefusalError):
        return GUARD
    if isinstance(error, ReplayDivergenceError | ReconstructionMismatchError):
        return FAULT
    return USAGE


def _exit(verdicts: "tuple[Verdict, ...]", has_rejects: bool) -> None:  # noqa: FBT001 - a fact
    if any(verdict.fault for verdict in verdicts):
        raise typer.Exit(FAULT)
    if has_rejects:
        raise typer.Exit(USAGE)


def _folder(run: Path | None, config: "CalibrationConfig") -> Path:
    return run or Path("runs") / config.name


def _now() -> datetime:
    """Return the time, or the one that SOURCE_DATE_EPOCH fixes for reproducible files."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)


def _resized(batching: "Batching", max_rows: int | None) -> "Batching":
    import msgspec  # noqa: PLC0415

    from harness.records.batching import Solo  # noqa: PLC0415

    if max_rows is None:
        return batching
    if isinstance(batching, Solo):
        raise ConfigError("--max-rows: this arm runs each row alone; choose another with --arm")
    return msgspec.structs.replace(batching, max_rows=max_rows)


def _departure(
    commit: "CommitRecord", max_rows: int | None, precision: str | None, replica: str
) -> "ReplayAs":
    """Return how to replay; what is not asked for is as in the first commit."""
    from harness.errors import nearest  # noqa: PLC0415
    from harness.records.batching import Padded, Solo  # noqa: PLC0415
    from harness.records.invocation import PrecisionName  # noqa: PLC0415
    from harness.replay import ReplayAs  # noqa: PLC0415

    if precision is not None and precision not in set(PrecisionName):
        raise ConfigError(f"--precision {precision}: {nearest(precision, map(str, PrecisionName))}")
    rule = commit.invocation.batch_membership.requested
    padded = Padded() if rule is None or isinstance(rule, Solo) else rule
    return ReplayAs(
        condition=_in_precision(commit, precision) if precision else None,
        batching=_resized(padded, max_rows) if max_rows else None,
        replica=replica,
    )


def _in_precision(commit: "CommitRecord", precision: str) -> "Condition":
    import msgspec  # noqa: PLC0415

    from harness.conditions.condition import Condition  # noqa: PLC0415

    asked = {"precision": precision, "precision_overrides": {}}
    try:
        return msgspec.convert({**commit.invocation.condition, **asked}, Condition)
    except msgspec.ValidationError as error:
        where = f"--precision: commit {commit.commit_id}"
        advice = "replay it on the engine that wrote it"
        raise ConfigError(
            f"{where} has a condition of another engine ({error}); {advice}"
        ) from error


def _require_torch(commits: "Sequence[CommitRecord]") -> None:
    """Raise ModuleNotFoundError here rather than in a process of its own, with a long trace."""
    models = {commit.invocation.build.verifier.model for commit in commits}
    if find_spec("torch") is None and not all(model.startswith("fake:") for model in models):
        raise ModuleNotFoundError(name="torch")


def _num_rows(commits: "Sequence[CommitRecord]", max_rows: int | None) -> int:
    """Return how many rows a replay scores: each recorded batch once, or each branch once."""
    if max_rows is not None:
        return sum(len(commit.scores) for commit in commits)
    steps = (step for commit in commits for step in commit.invocation.batch_membership.steps)
    batches = {tuple(slot.content_digest for slot in step.slots) for step in steps}
    return sum(map(len, batches))


def _tell_rejects(path: Path, rejects: "Sequence[Reject]") -> None:
    """Keep unusable lines in a file of their own, and say where."""
    from harness.commit_log import write_rejects  # noqa: PLC0415

    if rejects:
        target = path.with_name(f"{path.name}.rejects")
        write_rejects(target, rejects, overwrite=True)
        message = f"unusable records: {len(rejects)}, kept in {target}; the first: "
        console.errors.print(
            message + rejects[0].error, markup=False, highlight=False, soft_wrap=True
        )


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()
