"""What the README and the other pages show can be typed in: commands, options, paths, snippets."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from calibrate.cli import app
from tests.planner_site import base_distributions, link_environment, planner_python

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROSE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TOPS = ("harness/", "calibrate/", "configs/", "docs/", "scripts/", "benchmarks/", "tests/", ".ci/")


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def commands(page: Path) -> list[str]:
    lines = (line for text in blocks(page, "console") for line in text.splitlines())
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def refusal(line: str) -> str:
    """Return why a `scorepin` command line cannot be typed in; nothing when it can."""
    name, *arguments = shlex.split(line, comments=True)[1:]
    known = getattr(typer.main.get_command(app), "commands", {})
    if name.startswith("--"):
        return "" if name in ("--help", "--version", "--install-completion") else name
    if name not in known:
        return f"no command {name!r}"
    if "--help" in arguments:
        return ""
    try:
        known[name].make_context(name, arguments)
    except Exception as error:  # noqa: BLE001 - whatever the parser says is the finding
        return f"{type(error).__name__}: {error}"
    return ""


SHOWN = [(page, line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(
    ("page", "line"), SHOWN, ids=[f"{page.name}: {line}" for page, line in SHOWN]
)
def test_a_command_that_is_shown_can_be_typed_in(page: Path, line: str) -> None:
    program = shlex.split(line)[0]
    if program == "scorepin":
        assert refusal(line) == ""
    elif "/" in program:
        path = ROOT / program
        assert path.is_file(), f"{program} is not there"
        assert path.stat().st_mode & 0o100, f"{program} cannot be executed"
    else:
        assert program in ("pip", "python", "git"), f"{program}: is it there on a bare machine?"


def test_the_check_sees_a_wrong_command() -> None:
    assert refusal("scorepin show runs/mine/mine.tolerance.json --json") == ""
    assert "nonsense" in refusal("scorepin nonsense")
    assert "--jsn" in refusal("scorepin show FILE --jsn")
    assert "tolerances" in refusal("scorepin classify commits.jsonl replays.jsonl")


def test_the_readme_shows_the_promised_commands() -> None:
    shown = " ".join(commands(README)).split()
    promised = {"scripts/demo", "scripts/test", "calibrate", "score", "replay", "classify"}
    assert promised <= set(shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_link_leads_somewhere(page: Path) -> None:
    prose = PROSE.sub("", page.read_text(encoding="utf-8"))
    named = [
        word
        for text in re.findall(r"`([^`\n]+)`", prose)
        for word in text.split()
        if word.startswith(TOPS) and not set(word) & set("<>*{}")
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_planners_snippets_run_without_torch(tmp_path: Path) -> None:
    snippets = blocks(README, "python")
    assert snippets
    python = link_environment(tmp_path / "venv", base_distributions())
    for snippet in snippets:
        done = planner_python(python, "-c", snippet, path=ROOT, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), snippet
