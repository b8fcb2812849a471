"""``scorepin calibrate``: measure a build and write its tolerance file."""

from pathlib import Path
from typing import TYPE_CHECKING

from calibrate import console
from calibrate.cli.app import MEASURE, app
from calibrate.cli.call import errors_told, now, print_json, resume, run_folder
from calibrate.cli.options import AsJson, ConfigPath, Overwrite, RunFolder
from calibrate.progress import RunProgress
from harness.errors import GuardRefusalError

if TYPE_CHECKING:
    from calibrate.calibration import Calibrated, RunFiles
    from calibrate.config import CalibrationConfig

__all__ = ["calibrated_run"]


@app.command("calibrate", rich_help_panel=MEASURE)
def calibrate_command(
    config_path: ConfigPath,
    *,
    run: RunFolder = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure a build and write its tolerance file; run it again to resume."""
    with errors_told(interrupted=resume()):
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML

        config = load_config(config_path)
        files, calibrated = calibrated_run(config, run, overwrite=overwrite)
        paths = {"tolerance": str(files.tolerance), "report": str(files.report)}
        if as_json:
            print_json({**paths, "num_observations": calibrated.num_observations})
            return
        console.print_tolerances(calibrated.file)
        console.results.print()
        console.print_paths({"tolerance file": files.tolerance, "report": files.report})


def calibrated_run(
    config: "CalibrationConfig", run: Path | None, *, overwrite: bool
) -> "tuple[RunFiles, Calibrated]":
    """Calibrate with a bar; a refusal says where its report is."""
    from calibrate.calibration import RunFiles  # noqa: PLC0415 - heavy
    from calibrate.calibration import calibrate as run_calibration  # noqa: PLC0415
    from calibrate.plan import plan_processes  # noqa: PLC0415

    files = RunFiles(folder=run_folder(run, config), name=config.name)
    num_processes = len(plan_processes(config, config.num_decisions or 1))
    try:
        with RunProgress(num_processes) as progress:
            calibrated = run_calibration(
                config, files, now=now(), progress=progress, overwrite=overwrite
            )
    except GuardRefusalError as refusal:
        raise GuardRefusalError(f"{refusal}\nreport: {files.report}") from refusal
    return files, calibrated
