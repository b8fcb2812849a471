"""What this machine would put into a build, and which switches are on.

Reads only. Without torch it says so and what to install, since the planner's side works without.
"""

import os
import platform
from typing import Any

from harness.conditions.kernel_environment import kernel_environment
from harness.machine import device_facts, library_versions, num_cores, package_version
from harness.records.document import Record
from harness.records.verifier import Device

__all__ = ["Diagnosis", "diagnose"]

PACKAGES = (
    "scorepin",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "vllm",
)


class Diagnosis(Record, frozen=True, kw_only=True):
    """The facts of one machine."""

    python: str
    """Interpreter version."""
    platform: str
    """Operating system and machine type."""
    num_cores: int
    """Cores this process may use."""
    packages: dict[str, str | None]
    """Distribution -> version; None when it is not installed."""
    kernel_environment: dict[str, str]
    """Environment variables that steer kernels and would enter a build."""
    devices: dict[str, dict[str, Any]]
    """Device -> its facts, libraries and switches; empty without torch."""


def diagnose() -> Diagnosis:
    """Return the facts of this machine."""
    packages = {name: package_version(name) for name in PACKAGES}
    return Diagnosis(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        num_cores=num_cores(),
        packages=packages,
        kernel_environment=kernel_environment(os.environ),
        devices={str(d): _device(d) for d in _devices()} if packages["torch"] else {},
    )


def _devices() -> list[Device]:
    import torch  # noqa: PLC0415 - only when it is installed

    return [Device.CPU, *([Device.CUDA] if torch.cuda.is_available() else [])]


def _device(device: Device) -> dict[str, Any]:
    from harness.conditions.switches import read_switches  # noqa: PLC0415 - needs torch to read

    facts = device_facts(device)
    return {
        "name": facts.name,
        "capability": facts.capability,
        "libraries": library_versions(device),
        "switches": read_switches(device),
    }
