"""The `scorepin` command: one file a command, each picks files and calls what does the work.

What only calibration needs is imported by the commands that calibrate, when they are called. The
order of the imports is the order of the help.
"""

# ruff: noqa: I001, F401 - the order of the help; a command registers when it is imported
from calibrate.cli.app import PLANNER, app, main
from calibrate.cli import calibrate, report, show, diff, power
from calibrate.cli import score, replay, classify
from calibrate.cli import demo, doctor, locate, probe, lanes
from calibrate.cli.planner import effects, gate, ledger

for _planner_app in (gate.app, ledger.app, effects.app):
    app.add_typer(_planner_app, rich_help_panel=PLANNER)

__all__ = ["app", "main"]
