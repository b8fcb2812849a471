"""Facts of this machine and its libraries that may change a kernel.

Reads; decides nothing. What is read here becomes part of a build, and `scorepin doctor` prints it.
"""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.records.document import Record
from harness.records.verifier import Device

__all__ = ["DeviceFacts", "device_facts", "library_versions", "num_cores", "package_version"]


class DeviceFacts(Record, frozen=True, kw_only=True):
    """The device that kernels are chosen for."""

    device: str
    """``cpu`` or ``cuda``."""
    name: str
    """As the device names itself."""
    capability: str
    """CPU: instruction sets. CUDA: compute capability, multiprocessors, driver."""


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def library_versions(device: Device) -> dict[str, str]:
    """Return library -> version, for those whose kernels run on `device`."""
    import torch  # noqa: PLC0415 - not on the planner's side

    found: dict[str, Any] = {"torch": torch.__version__}
    if device is Device.CUDA:
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "cublas": package_version("nvidia-cublas-cu12") or package_version("nvidia-cublas"),
            "triton": package_version("triton"),
        }
    else:
        config = torch.__config__.show()
        found |= {
            "onednn": _first(r"MKL-DNN v(\S+)", config),
            "mkl": _first(r"oneAPI Math Kernel Library Version (\S+)", config),
            "openmp": _first(r"OpenMP (\d+)", config),
        }
    return {name: str(value) for name, value in found.items() if value is not None}


def device_facts(device: Device) -> DeviceFacts:
    """Return the facts of the current device of that kind."""
    return _cuda_facts() if device is Device.CUDA else _cpu_facts()


def _cpu_facts() -> DeviceFacts:
    import torch  # noqa: PLC0415 - not on the planner's side

    flags = _cpuinfo("flags").split()
    sets = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
    kernels = torch.backends.cpu.get_cpu_capability()
    capability = " ".join([f"kernels={kernels}", *(name for name in sets if name in flags)])
    name = _cpuinfo("model name") or platform.processor() or platform.machine()
    family = "/".join(_cpuinfo(key) for key in ("cpu family", "model", "stepping"))
    return DeviceFacts(device="cpu", name=f"{name} ({family})", capability=capability)


def _cuda_facts() -> DeviceFacts:
    import torch  # noqa: PLC0415 - not on the planner's side

    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    parts = [f"sm_{facts.major}{facts.minor}", f"multiprocessors={facts.multi_processor_count}"]
    parts.append(f"driver={_cuda_driver()}")
    return DeviceFacts(device="cuda", name=facts.name, capability=" ".join(parts))


def _cuda_driver() -> str:
    file = Path("/proc/driver/nvidia/version")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return _first(r"Kernel Module(?: for \S+)?\s+(\d+[.\d]*)", text) or "unknown"


def _cpuinfo(key: str) -> str:
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return _first(rf"(?m)^{re.escape(key)}\s*:\s*(.*)$", text) or ""


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match.group(1) if match else None


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
