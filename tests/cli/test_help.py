"""What the command says about itself, and how it ends when it is called wrongly."""

from pathlib import Path

import pytest
import typer

from calibrate.cli import app
from tests.command import invoke, scorepin

COMMANDS = (
    "calibrate",
    "report",
    "score",
    "replay",
    "classify",
    "show",
    "diff",
    "doctor",
    "demo",
    "lanes",
    "power",
    "probe",
    "locate",
)
GROUPS = ("gate", "ledger", "effects")
"""The planner's, tested beside what they show."""


def test_the_commands_are_those_that_are_promised() -> None:
    group = typer.main.get_command(app)
    assert sorted(getattr(group, "commands", {})) == sorted(COMMANDS + GROUPS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_all_its_options(command: str) -> None:
    done = invoke(command, "--help")
    assert (done.code, done.stderr) == (0, "")
    assert f" {command} [OPTIONS]" in done.stdout
    group = typer.main.get_command(app)
    parameters = getattr(group, "commands", {})[command].params
    assert [p.name for p in parameters if not p.help] == []
    options = [option for p in parameters for option in p.opts if option.startswith("--")]
    assert [option for option in options if option not in done.stdout] == []


def test_the_help_tells_the_exit_statuses_and_shell_completion(tmp_path: Path) -> None:
    done = scorepin("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "Exit status: 0 no fault, 1 a fault, 2 the call or its input" in words
    assert "Shell completion: `scorepin --install-completion`" in words
    assert scorepin(cwd=tmp_path).stdout.strip() == done.stdout.strip()


def test_the_version(tmp_path: Path) -> None:
    done = scorepin("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "scorepin 0.1.0\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(tmp_path: Path, shell: str) -> None:
    done = scorepin("--show-completion", shell, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_SCOREPIN_COMPLETE" in done.stdout


def test_completion_completes(tmp_path: Path) -> None:
    done = scorepin(
        cwd=tmp_path,
        _SCOREPIN_COMPLETE="complete_bash",
        COMP_WORDS="scorepin c",
        COMP_CWORD="1",
    )
    assert done.stdout.split() == ["calibrate", "classify"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["show"], "Missing argument 'FILE'."),
        (["show", "a", "b"], "Got unexpected extra argument"),
        (["show", "a", "--jsn"], "--json"),
        (["score", "a", "--limit", "0"], "'--limit': Input should be greater than or equal to 1"),
        (["score", "a", "--limit", "few"], "'--limit': Input should be a valid integer"),
        (["classify", "a", "b"], "Missing option '--tolerances'."),
        (
            ["classify", "a", "b", "--tolerances", "c", "--policy", "lax"],
            "'lax' is not one of 'default'",
        ),
        (
            ["classify", "a", "b", "--tolerances", "c", "--alpha", "nan"],
            "'--alpha': Input should be less",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = scorepin(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
