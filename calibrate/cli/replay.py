"""``scorepin replay``: execute commits again and append replay records."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate import console
from calibrate.cli.app import JUDGE, app
from calibrate.cli.batching import resized
from calibrate.cli.call import errors_told, print_json
from calibrate.cli.options import AsJson
from calibrate.cli.rejects import tell_rejects
from calibrate.progress import rows_progress
from harness.errors import ConfigError, InputFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.conditions.condition import Condition
    from harness.records.commit import CommitRecord
    from harness.replay import ReplayAs


@app.command(rich_help_panel=JUDGE)
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
    with errors_told():
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
            print_json({"replays": str(target), **counts})
        else:
            console.print_line(f"{len(replays)} replay records in {target}")
        tell_rejects(commits, read.rejects)


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
        batching=resized(padded, max_rows) if max_rows else None,
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
