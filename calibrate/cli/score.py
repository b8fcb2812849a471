"""``scorepin score``: score decisions and append their commit records."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import JUDGE, app
from calibrate.cli.batching import resized
from calibrate.cli.call import errors_told, print_json, run_folder
from calibrate.cli.options import AsJson, ConfigPath
from calibrate.progress import rows_progress
from harness.errors import ConfigError


@app.command(rich_help_panel=JUDGE)
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
    with errors_told():
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from harness.commit_log import CommitLog  # noqa: PLC0415
        from harness.decisions import read_decisions  # noqa: PLC0415
        from harness.scoring import score_decisions  # noqa: PLC0415

        config = load_config(config_path)
        if arm >= len(config.arms):
            raise ConfigError(f"--arm {arm}: the config has arms 0 to {len(config.arms) - 1}")
        chosen = config.arms[arm]
        found = read_decisions(decisions or config.decisions, limit or config.num_decisions)
        log = CommitLog(commits or run_folder(None, config) / "commits.jsonl")
        rows = sum(len(decision.branches) for decision in found)
        with rows_progress("scoring", rows) as bar:
            scored = score_decisions(
                config.verifier,
                chosen.condition,
                resized(chosen.batching, max_rows),
                found,
                seed=config.seed,
                committed=not speculative,
                advance=lambda count: bar.advance(bar.task_ids[0], count),
            )
        new = log.append(scored.commits, scored.items)
        if as_json:
            print_json({"commits": str(log.path), "num_new": new, "num_scored": len(found)})
            return
        known = "" if new == len(found) else f" ({len(found) - new} were there already)"
        console.print_line(f"{new} commit records{known} in {log.path}")
