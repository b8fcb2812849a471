"""``scorepin locate``: the first module and operator whose bits differ, and why."""

from pathlib import Path
from typing import Annotated

import typer

from calibrate import console
from calibrate.cli.app import LOOK, app
from calibrate.cli.call import errors_told, print_json
from calibrate.cli.options import AsJson, ConfigPath


@app.command("locate", rich_help_panel=LOOK)
def locate_command(  # noqa: PLR0913 - options
    config_path: ConfigPath,
    *,
    decision: Annotated[str, typer.Option("--decision", help="Id of the decision.")],
    arm: Annotated[int, typer.Option(min=0, help="Number of the arm.")] = 0,
    left: Annotated[str | None, typer.Option(help="A composition; default: chosen.")] = None,
    right: Annotated[str | None, typer.Option(help="The other; default: chosen.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for the plot, SVG.")] = None,
    trees: Annotated[bool, typer.Option(help="Measure the summation orders too.")] = True,
    as_json: AsJson = False,
) -> None:
    """Compare a decision in two batches, module by module: where its bits part, and why."""
    with errors_told():
        import msgspec  # noqa: PLC0415

        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from calibrate.growth import growth_plot, print_located  # noqa: PLC0415 - heavy
        from calibrate.locate import locate  # noqa: PLC0415 - heavy
        from calibrate.located import told  # noqa: PLC0415
        from harness.files import write_atomic  # noqa: PLC0415

        config = load_config(config_path)
        located = locate(config, decision, arm=arm, left=left, right=right, trees=trees)
        if plot is not None:
            write_atomic(plot, growth_plot(located).encode(), overwrite=True)
        if as_json:
            print_json({**msgspec.to_builtins(located), "told": told(located)})
            return
        print_located(located, console.results)
        if plot is not None:
            console.print_paths({"plot": plot})
