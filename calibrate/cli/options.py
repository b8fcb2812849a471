"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AsJson", "ConfigPath", "Overwrite", "RunFolder"]

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A complete config, YAML.")]
RunFolder = Annotated[
    Path | None, typer.Option("--run", help="Folder of the run; default runs/NAME.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an older output file.")]
