"""The planted-fault study and every rule side by side: ``scorepin power``'s figures in one command.

Run ``python -m benchmarks.power``; ``--config configs/published.yaml`` is the published setting. A
run folder that is calibrated already is used as it is, another is calibrated first. The tables go
to standard error, the whole study to standard output as JSON.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from calibrate import console
from calibrate.calibration import RunFiles
from calibrate.cli.calibrate import calibrated_run
from calibrate.cli.call import print_json, run_folder
from calibrate.cli.power import studied
from calibrate.config import load_config
from calibrate.power.tables import print_power


def main(
    config_path: Annotated[Path, typer.Option("--config", help="A complete config.")] = Path(
        "configs/demo.yaml"
    ),
    run: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/NAME.")] = None,
    decisions: Annotated[int | None, typer.Option(help="Only the first so many.")] = None,
) -> None:
    """Print the tables and the JSON."""
    config = load_config(config_path)
    folder = run_folder(run, config)
    if not RunFiles(folder=folder, name=config.name).tolerance.exists():
        calibrated_run(config, folder, overwrite=False)
    report = studied(config, folder, decisions)
    print_power(report, console.errors)
    print_json(msgspec.to_builtins(report))


if __name__ == "__main__":
    typer.run(main)
