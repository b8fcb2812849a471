"""``scorepin classify``: judge each replay against its commit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate import console
from calibrate.cli.app import JUDGE, app
from calibrate.cli.call import FAULT, USAGE, errors_told, now
from calibrate.cli.options import AsJson, Overwrite
from calibrate.cli.rejects import tell_rejects
from harness.records.verdict import Policy

if TYPE_CHECKING:
    from harness.records.verdict import Verdict


@app.command(rich_help_panel=JUDGE)
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
    withdraw: Annotated[
        bool,
        typer.Option(
            "--withdraw", help="When the drift alarm is raised, put the tolerance out of use."
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Judge each replay against its commit: one verdict a record, and a summary."""
    with errors_told():
        from calibrate.verdicts import judge_files, withdraw_alarmed  # noqa: PLC0415
        from harness.codec import encode  # noqa: PLC0415
        from harness.files import write_atomic  # noqa: PLC0415
        from harness.tolerance_file import load_tolerances  # noqa: PLC0415

        loaded, judged_at = load_tolerances(*tolerances), now().isoformat()
        judged = judge_files(commits, replays, loaded, policy=policy, now=judged_at, alpha=alpha)
        lines = b"".join(encode(verdict) + b"\n" for verdict in judged.verdicts)
        if out is not None:
            write_atomic(out, lines, overwrite=overwrite)
        if as_json:
            typer.echo(lines, nl=False)
        table = console.errors if as_json else console.results
        console.print_verdicts(judged.verdicts, judged.alarms, len(judged.rejects), table)
        if withdraw:
            console.print_withdrawn(withdraw_alarmed(judged, loaded, judged_at), table)
        tell_rejects(replays, judged.rejects)
        _exit(judged.verdicts, bool(judged.rejects))


def _exit(verdicts: "tuple[Verdict, ...]", has_rejects: bool) -> None:  # noqa: FBT001 - a fact
    if any(verdict.fault for verdict in verdicts):
        raise typer.Exit(FAULT)
    if has_rejects:
        raise typer.Exit(USAGE)
