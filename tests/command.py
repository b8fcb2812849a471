"""The `scorepin` command as a user starts it, and a config of the fake, which takes seconds."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from calibrate.cli import app

SCOREPIN = str(Path(sys.executable).with_name("scorepin"))
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")},
    "COLUMNS": "80",
    "OMP_NUM_THREADS": "1",
    "SOURCE_DATE_EPOCH": "1767323045",  # 2026-01-02T03:04:05Z
    "TERM": "dumb",
}


def scorepin(
    *arguments: str | Path, cwd: Path, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in `cwd` to its end."""
    return subprocess.run(
        [*prefix, SCOREPIN, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def a_config(**changes: Any) -> dict[str, Any]:
    """Return a config of the fake verifier, with top-level keys changed."""
    return {
        "name": "fake",
        "verifier": {
            "model": "fake:rounding",
            "head": {"kind": "reward"},
            "prompt": {"template": "{context}{branch}"},
        },
        "decisions": "embedded:decisions",
        "num_decisions": 22,
        "arms": [
            {
                "precision": "bfloat16",
                "reduction_order": {"name": "vendor", "num_threads": 1},
                "batching": {"mode": "padded", "side": "right", "max_rows": 12},
            }
        ],
        "sweep": {
            "rows": [3, 12],
            "reference_rows": 12,
            "sides": ["right", "left"],
            "search": False,
        },
        "claim": {"coverage": 0.9, "confidence": 0.9},
        "guard_decisions": 22,
        **changes,
    }


def a_verifier(model: str, **changes: Any) -> dict[str, Any]:
    """Return the `verifier` of a config."""
    prompt = {"template": "<bos>{context}<sol>{branch}<eos>"}
    return {"model": model, "head": {"kind": "reward"}, "prompt": prompt, **changes}


def write_config(path: Path, **changes: Any) -> Path:
    """Write a config and return its path."""
    path.write_text(yaml.safe_dump(a_config(**changes), sort_keys=False))
    return path


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command came to."""

    code: int
    stdout: str
    stderr: str


def invoke(*arguments: str | Path) -> Done:
    """Run the command in this process, which spares its start; an exception of ours is a bug."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    return Done(code=result.exit_code, stdout=result.stdout, stderr=result.stderr)
