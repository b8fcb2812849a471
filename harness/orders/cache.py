"""The cache of order fingerprints: one file a build and resolved condition.

A file is keyed by the build, the resolved switches, the ladder, and name, size and time of every
shared library beside torch; it is written whole or not at all, and read back only if its key and
its own digest hold. A damaged or foreign file counts as none: the fingerprints are measured again.

What a cached fingerprint cannot see: a kernel that changed with none of these changed (a driver's
own code, a library loaded from elsewhere, autotuning in a running process, a defective core). So
`scorepin probe` always measures anew, and says where the cache differs.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.codec import canonical_bytes, digest, parse
from harness.errors import CorruptFileError, InputFileError, StoreError
from harness.files import read_bytes, write_atomic
from harness.orders.fingerprint import LENGTHS, ROWS

__all__ = ["cache_folder", "cache_key", "load_fingerprints", "store_fingerprints"]

METHOD = 1
"""Raised when fingerprints of an older release mean something else."""


def cache_folder() -> Path:
    """Return ``$SCOREPIN_CACHE``, or ``~/.cache/scorepin``."""
    chosen = os.environ.get("SCOREPIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "scorepin"


def cache_key(build_id: str, resolved: Mapping[str, Any]) -> str:
    """Return the digest of all that a cached fingerprint is keyed by."""
    return digest([METHOD, build_id, dict(resolved), ROWS, LENGTHS, _libraries()])


def load_fingerprints(key: str) -> dict[str, str] | None:
    """Return the fingerprints stored under `key`; None when there are none, or not whole ones."""
    path = _path(key)
    try:
        raw = parse(read_bytes(path), str(path))
    except (InputFileError, CorruptFileError):
        return None
    if not isinstance(raw, dict) or raw.get("key") != key:
        return None
    found = raw.get("fingerprints")
    if not isinstance(found, dict) or raw.get("digest") != digest(found):
        return None
    return {str(name): str(value) for name, value in found.items()}


def store_fingerprints(key: str, fingerprints: Mapping[str, str]) -> None:
    """Keep fingerprints under `key`; a folder that cannot be written costs time, not evidence."""
    found = dict(fingerprints)
    data = canonical_bytes({"key": key, "fingerprints": found, "digest": digest(found)})
    with suppress(StoreError):
        write_atomic(_path(key), data + b"\n", overwrite=True)


def _path(key: str) -> Path:
    return cache_folder() / "orders" / f"{key.removeprefix('sha256:')}.json"


def _libraries() -> list[list[Any]]:
    """Return name, size and time of the shared libraries that torch loads."""
    import torch  # noqa: PLC0415 - not on the planner's side

    folder = Path(torch.__file__).parent
    files = [*(folder / "lib").glob("*.so*"), *folder.glob("_C*.so")]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(files)]
