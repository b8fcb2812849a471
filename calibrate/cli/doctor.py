"""``scorepin doctor``: this machine's build facts and switches."""

from calibrate import console
from calibrate.cli.app import LOOK, app
from calibrate.cli.call import errors_told, print_json
from calibrate.cli.options import AsJson


@app.command(rich_help_panel=LOOK)
def doctor(*, as_json: AsJson = False) -> None:
    """Show this machine's build facts and which switches are on."""
    with errors_told():
        import msgspec  # noqa: PLC0415

        from calibrate.doctor import diagnose  # noqa: PLC0415

        diagnosis = diagnose()
        if as_json:
            print_json(msgspec.to_builtins(diagnosis))
        else:
            console.print_diagnosis(diagnosis)
