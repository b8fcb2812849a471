"""``scorepin power``: planted faults, and what every rule makes of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate import console
from calibrate.cli.app import MEASURE, app
from calibrate.cli.call import FAULT, errors_told, now, print_json, run_folder
from calibrate.cli.options import AsJson, ConfigPath, RunFolder
from calibrate.progress import rows_progress
from harness.errors import InputFileError

if TYPE_CHECKING:
    from calibrate.config import CalibrationConfig
    from calibrate.power.findings import PowerReport

__all__ = ["studied"]


@app.command(rich_help_panel=MEASURE)
def power(
    config_path: ConfigPath,
    *,
    run: RunFolder = None,
    decisions: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many decisions.")
    ] = None,
    honest: Annotated[
        int | None, typer.Option(min=1, help="Honest replays, at least; default the config's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plant faults in replicas: what every rule finds, and what it calls a fault wrongly."""
    with errors_told():
        import msgspec  # noqa: PLC0415

        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from calibrate.power.findings import FILE_NAME  # noqa: PLC0415 - heavy
        from calibrate.power.tables import print_power  # noqa: PLC0415

        config = load_config(config_path)
        folder = run_folder(run, config)
        report = studied(config, folder, decisions, honest)
        if as_json:
            print_json(msgspec.to_builtins(report))
        else:
            print_power(report, console.results)
            console.results.print()
            console.print_paths({"study": folder / FILE_NAME})
        if report.has_false_fault:
            raise typer.Exit(FAULT)


def studied(
    config: "CalibrationConfig",
    folder: Path,
    num_decisions: int | None = None,
    honest: int | None = None,
) -> "PowerReport":
    """Make the study of a calibrated run with a bar, and store it in the run's folder.

    Raises InputFileError where nothing is calibrated yet.
    """
    from msgspec.structs import replace  # noqa: PLC0415

    from calibrate.calibration import RunFiles  # noqa: PLC0415 - heavy
    from calibrate.power.findings import FILE_NAME, write_power_report  # noqa: PLC0415
    from calibrate.power.stage import num_runs, taking_part  # noqa: PLC0415
    from calibrate.power.study import study  # noqa: PLC0415
    from harness.decisions import read_decisions  # noqa: PLC0415
    from harness.tolerance_file import load_tolerances  # noqa: PLC0415

    path = RunFiles(folder=folder, name=config.name).tolerance
    if not path.exists():
        advice = "run scorepin calibrate first, with the same config and --run"
        raise InputFileError(f"{path}: is not there; {advice}")
    spec = replace(config.power, honest_replays=honest or config.power.honest_replays)
    config, tolerances = replace(config, power=spec), load_tolerances(path)
    read = read_decisions(config.decisions, config.num_decisions)
    decisions = taking_part(read, spec.candidates, num_decisions)
    rows = sum(len(decision.branches) for decision in decisions)
    with rows_progress("replaying", rows * num_runs(config, len(decisions))) as bar:
        report = study(
            config,
            tolerances,
            decisions,
            now=now(),
            advance=lambda count: bar.advance(bar.task_ids[0], count),
        )
    write_power_report(folder / FILE_NAME, report)
    return report
