"""``scorepin demo``: a whole life of a tolerance on the embedded verifier."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import LOOK, app
from calibrate.cli.calibrate import calibrated_run
from calibrate.cli.call import errors_told, resume
from calibrate.cli.options import Overwrite, RunFolder
from calibrate.progress import rows_progress


@app.command(rich_help_panel=LOOK)
def demo(
    *,
    config_path: Annotated[
        Path | None, typer.Option("--config", help="Another config than the embedded demo's.")
    ] = None,
    run: RunFolder = None,
    overwrite: Overwrite = False,
) -> None:
    """Calibrate the embedded verifier, commit, and replay in three ways."""
    with errors_told(interrupted=resume()):
        from calibrate import demo as scenes  # noqa: PLC0415 - heavy
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from harness.decisions import read_decisions  # noqa: PLC0415

        config = load_config(config_path or scenes.demo_config())
        files, calibrated = calibrated_run(config, run, overwrite=overwrite)
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
