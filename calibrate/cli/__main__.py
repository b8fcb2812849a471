"""``python -m calibrate.cli`` is the command."""

from calibrate.cli import main

main()
