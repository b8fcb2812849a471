"""A build: everything that must be equal for two scores to be comparable.

Which facts are checked is one list, `CHECKED`; `build_id` is the digest of exactly those. Switches
that a condition owns (dtypes, TF32, threads, ...) are not here: they belong to the precision mode
and the reduction order, so that one build can be measured under several.
"""

from functools import cached_property
from typing import Any

import msgspec

from harness.codec import digest
from harness.records.document import Record
from harness.records.verifier import VerifierSpec

__all__ = ["CHECKED", "Build", "differing_facts"]

CHECKED = (
    "weights_digest",
    "tokenizer_digest",
    "prompt_digest",
    "head_digest",
    "engine",
    "libraries",
    "parallel_layout",
    "device",
    "device_name",
    "device_capability",
    "kernel_environment",
)
"""The fields that identify a build. A new field is checked unless a reason stands beside it."""


class Build(Record, frozen=True, kw_only=True, dict=True):
    """Facts of the model, the software and the machine, read back after set-up."""

    weights_digest: str
    """Digest of every stored tensor: name, dtype, shape, bytes."""
    tokenizer_digest: str
    """Digest of the tokenizer's files."""
    prompt_digest: str
    """Digest of the prompt, chat template, BOS handling and length limits."""
    head_digest: str
    """Digest of the score head with its token ids and dtype."""
    engine: str
    """Engine with its version: ``transformers 5.24.0``."""
    libraries: dict[str, str]
    """Library -> version, where it may change a kernel: torch, cuda, cublas, cudnn, onednn, ..."""
    parallel_layout: str
    """``1`` for one device; ``tp=2`` and the like for more."""
    device: str
    """``cpu`` or ``cuda``."""
    device_name: str
    """As the device names itself."""
    device_capability: str
    """CPU: instruction sets that kernels choose by. CUDA: compute capability and driver."""
    kernel_environment: dict[str, str]
    """Environment variables that steer kernels and that no switch owns."""
    verifier: VerifierSpec
    """The spec it was made from; not checked, since the digests above say what it led to."""

    @cached_property
    def build_id(self) -> str:
        """Digest of the checked fields."""
        return digest(self.checked())

    def checked(self) -> dict[str, Any]:
        """Return the checked fields as builtins."""
        plain = msgspec.to_builtins(self)
        return {name: plain[name] for name in CHECKED}


def differing_facts(commit: Build, replay: Build) -> tuple[str, ...]:
    """Return the names of the checked fields that differ, nested ones with a dot."""
    return tuple(_differing(commit.checked(), replay.checked(), ""))


def _differing(left: dict[str, Any], right: dict[str, Any], prefix: str) -> list[str]:
    names: list[str] = []
    for name in sorted(left.keys() | right.keys()):
        here, there = left.get(name), right.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            names += _differing(here, there, f"{prefix}{name}.")
        elif here != there:
            names.append(f"{prefix}{name}")
    return names
