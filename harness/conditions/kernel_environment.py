"""Environment variables that steer kernels and that no switch owns: facts of a build.

Kept are names under the prefixes of the numeric libraries. Left out are those that only place
files, print, choose among equal devices, bound a cache, or say how a thread waits: they would make
one build look like two.

What it does not know: a variable read by a library outside these prefixes.
"""

from collections.abc import Mapping

from harness.conditions.switches import SWITCHES

__all__ = ["IGNORED", "KERNEL_ENVIRONMENT", "kernel_environment"]

KERNEL_ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DISABLE_ADDMM_CUDA_LT",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH_",
)
"""Names, or the beginnings of names."""

IGNORED = frozenset(
    {
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VERSION",
        "CUDA_VISIBLE_DEVICES",
        "CUDNN_VERSION",
        "DNNL_PRIMITIVE_CACHE_CAPACITY",
        "GOMP_SPINCOUNT",
        "KMP_BLOCKTIME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_VERSION",
        "OMP_DISPLAY_ENV",
        "OMP_WAIT_POLICY",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
        "PYTORCH_VERSION",
        "TORCH_HOME",
        "TORCH_LOGS",
        "TORCH_SHOW_CPP_STACKTRACES",
    }
)
"""Under a prefix, and of no effect on a kernel; version numbers are read from the libraries."""

_IGNORED_ENDINGS = ("_CACHE_PATH", "_DEBUG", "_DIR", "_FILE", "_VERBOSE")


def kernel_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that steer kernels and that no switch owns, sorted."""
    return {name: environ[name] for name in sorted(environ) if _counts(name)}


def _counts(name: str) -> bool:
    if name in SWITCHES or name in IGNORED or name.endswith(_IGNORED_ENDINGS):
        return False
    return name.startswith(KERNEL_ENVIRONMENT)
