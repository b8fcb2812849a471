"""What the tests of a GPU node start from: a device, which must be there, and its models."""

from pathlib import Path

import pytest

from tests.serving.engines import write_model

HIDDEN, INTERMEDIATE = 2048, 8192


@pytest.fixture(scope="session", autouse=True)
def num_devices() -> int:
    """Return how many devices there are; a job that promised one fails without it."""
    import torch  # noqa: PLC0415 - not at collection, which a CPU does too

    count: int = torch.cuda.device_count()
    if not count:
        pytest.fail("no CUDA device is here: these tests belong on a GPU node", pytrace=False)
    return count


@pytest.fixture(scope="session")
def judge_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge") / "model"
    return write_model(folder, INTERMEDIATE, hidden_size=HIDDEN)


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward") / "model"
    return write_model(folder, INTERMEDIATE, hidden_size=HIDDEN, labels=1)
