"""Random checkpoints, each written once a run."""

from pathlib import Path

import pytest

from harness.verifiers.random_weights import Architecture, Task, WeightDtype, write_checkpoint
from tests.verifiers.cases import Build


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a writer of random checkpoints, which no test may change."""
    home = tmp_path_factory.mktemp("checkpoints")

    def write(architecture: Architecture, task: Task, num_labels: int = 1) -> Path:
        folder = home / f"{architecture}-{task}-{num_labels}"
        if folder.exists():
            return folder
        return write_checkpoint(
            folder,
            architecture=architecture,
            task=task,
            seed=7,
            num_labels=num_labels,
            dtype=WeightDtype.FLOAT32,
        )

    return write
