"""An environment that holds what `pip install scorepin` brings, and nothing else."""

import os
import subprocess
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["base_distributions", "link_environment", "planner_python"]


def base_distributions(name: str = "scorepin") -> set[str]:
    """Return the distributions that `name` needs without any extra, itself left out."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for text in distribution(waiting.pop()).requires or ():
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name not in found:
                found.add(requirement.name)
                waiting.append(requirement.name)
    return found


def link_environment(folder: Path, names: Iterable[str]) -> Path:
    """Make a virtual environment with links to the distributions `names`; return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in names:
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or ()} - {"..", "/", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


def planner_python(
    python: Path, *arguments: str | Path, path: Path, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run `python` with `path` as the only further place of code."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PYTHONPATH": str(path), "COLUMNS": "80", "TERM": "dumb"}
    return subprocess.run(
        [str(python), *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
