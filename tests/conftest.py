"""For every test: measured summation trees are kept in a folder of this run, not in the user's."""

import os
import shutil
import tempfile

import pytest

CACHE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder in the process that starts the others; they inherit its name."""
    if not hasattr(config, "workerinput"):
        config.stash[CACHE] = tempfile.mkdtemp(prefix="scorepin-cache-")
        os.environ["SCOREPIN_CACHE"] = config.stash[CACHE]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it again."""
    if CACHE in config.stash:
        shutil.rmtree(config.stash[CACHE], ignore_errors=True)
