"""Every numeric switch: its name, its reason, when it counts, what it reaches, who owns it.

This is the one place where the switches stand. Library switches are set by `applied`, in the order
of the table, and put back in reverse in ``finally``. Environment switches count only before the
libraries start: they are never written here, only verified, and a runner puts them into its child's
environment (`environment_of`).

Three switches write over each other in torch: ``float32_matmul_precision`` sets the state behind
``cuda.matmul.allow_tf32`` and ``mkldnn.matmul.fp32_precision``. They are saved together, the wide
one is written first, and a request that torch itself could not answer for afterwards ("mix of the
legacy and new APIs") is refused.

What it does not know: flush-to-zero of denormals, which torch can set and not read, and switches of
libraries that are not in the table.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness.conditions.switch import Owner, Phase, Switch
from harness.conditions.torch_state import (
    DEBUG_MODES,
    NO_SPLIT_K,
    attribute,
    blas_library,
    deterministic_mode,
    environment_variable,
    functions,
    half_reduction,
    shared_float32,
)
from harness.errors import ConfigError, UnsupportedConditionError, nearest
from harness.records.switches import SwitchValues
from harness.records.verifier import Device

__all__ = [
    "SWITCHES",
    "applied",
    "environment_of",
    "read_switches",
    "switch",
]

_CPU = frozenset({Device.CPU})
_CUDA = frozenset({Device.CUDA})
_BOTH = _CPU | _CUDA
_TOGGLE = (False, True)

_TABLE = (
    Switch(
        name="OMP_NUM_THREADS",
        reason="OpenMP fixes its pool at start; the count decides how a reduction is cut.",
        access=environment_variable("OMP_NUM_THREADS"),
        owner=Owner.ORDER,
        devices=_CPU,
    ),
    Switch(
        name="MKL_NUM_THREADS",
        reason="MKL's own count, which takes precedence over OpenMP's.",
        access=environment_variable("MKL_NUM_THREADS"),
        owner=Owner.ORDER,
        devices=_CPU,
    ),
    Switch(
        name="MKL_CBWR",
        reason="MKL's conditional reproducibility picks a code path; read at its first call.",
        access=environment_variable("MKL_CBWR"),
        owner=Owner.ORDER,
        devices=_CPU,
    ),
    Switch(
        name="ONEDNN_MAX_CPU_ISA",
        reason="Caps the instruction sets of oneDNN, and so its kernels; read at its first call.",
        access=environment_variable("ONEDNN_MAX_CPU_ISA"),
        owner=Owner.ORDER,
        devices=_CPU,
    ),
    Switch(
        name="ONEDNN_DEFAULT_FPMATH_MODE",
        reason="Lets oneDNN compute float32 in a narrower type; read at its first call.",
        access=environment_variable("ONEDNN_DEFAULT_FPMATH_MODE"),
        owner=Owner.PRECISION,
        devices=_CPU,
    ),
    Switch(
        name="CUBLAS_WORKSPACE_CONFIG",
        reason="cuBLAS repeats bits over streams only with :4096:8 or :16:8; read with its handle.",
        access=environment_variable("CUBLAS_WORKSPACE_CONFIG"),
        owner=Owner.ORDER,
        devices=_CUDA,
    ),
    Switch(
        name="CUBLASLT_WORKSPACE_SIZE",
        reason="Bounds cuBLASLt's workspace, and so which split-K kernels it may choose.",
        access=environment_variable("CUBLASLT_WORKSPACE_SIZE"),
        owner=Owner.ORDER,
        devices=_CUDA,
    ),
    Switch(
        name="TORCH_BLAS_PREFER_CUBLASLT",
        reason="First value of cuda.preferred_blas_library.",
        access=environment_variable("TORCH_BLAS_PREFER_CUBLASLT"),
        owner=Owner.ORDER,
        devices=_CUDA,
    ),
    Switch(
        name="NVIDIA_TF32_OVERRIDE",
        reason="0 turns TF32 off in all NVIDIA libraries, whatever the program says.",
        access=environment_variable("NVIDIA_TF32_OVERRIDE"),
        owner=Owner.PRECISION,
        devices=_CUDA,
    ),
    Switch(
        name="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        reason="1 turns TF32 on in torch's matmuls before the program runs.",
        access=environment_variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
        owner=Owner.PRECISION,
        devices=_CUDA,
    ),
    Switch(
        name="num_threads",
        reason="Threads of torch's CPU kernels and of MKL: how a reduction is cut.",
        access=functions("get_num_threads", "set_num_threads"),
        owner=Owner.ORDER,
        devices=_CPU,
    ),
    Switch(
        name="deterministic_algorithms",
        reason="Picks deterministic kernels and refuses (or warns of) operators that have none.",
        access=deterministic_mode(),
        owner=Owner.ORDER,
        devices=_BOTH,
        choices=DEBUG_MODES,
    ),
    Switch(
        name="deterministic.fill_uninitialized_memory",
        reason="Fills fresh memory under deterministic algorithms, so that stray reads repeat.",
        access=attribute("utils.deterministic.fill_uninitialized_memory"),
        owner=Owner.ORDER,
        devices=_BOTH,
        choices=_TOGGLE,
    ),
    Switch(
        name="float32_matmul_precision",
        reason="Allows TF32 or bfloat16 in float32 matmuls. Before the two that it writes over.",
        access=shared_float32(
            functions("get_float32_matmul_precision", "set_float32_matmul_precision")
        ),
        owner=Owner.PRECISION,
        devices=_BOTH,
        choices=("highest", "high", "medium"),
    ),
    Switch(
        name="cuda.matmul.allow_tf32",
        reason="Allows TF32 in cuBLAS. After float32_matmul_precision, which it writes over.",
        access=shared_float32(attribute("backends.cuda.matmul.allow_tf32")),
        owner=Owner.PRECISION,
        devices=_CUDA,
        choices=_TOGGLE,
    ),
    Switch(
        name="mkldnn.matmul.fp32_precision",
        reason="Lets oneDNN's float32 matmuls use a narrower type. After float32_matmul_precision.",
        access=shared_float32(attribute("backends.mkldnn.matmul.fp32_precision")),
        owner=Owner.PRECISION,
        devices=_CPU,
        choices=("none", "ieee", "tf32", "bf16"),
    ),
    Switch(
        name="cudnn.allow_tf32",
        reason="Allows TF32 in cuDNN's convolutions and recurrent layers.",
        access=attribute("backends.cudnn.allow_tf32"),
        owner=Owner.PRECISION,
        devices=_CUDA,
        choices=_TOGGLE,
    ),
    Switch(
        name="cuda.matmul.allow_bf16_reduced_precision_reduction",
        reason="Lets split-K partial sums of bfloat16 products be added in bfloat16.",
        access=half_reduction("bf16"),
        owner=Owner.PRECISION,
        devices=_CUDA,
        choices=(*_TOGGLE, NO_SPLIT_K),
    ),
    Switch(
        name="cuda.matmul.allow_fp16_reduced_precision_reduction",
        reason="Lets split-K partial sums of float16 products be added in float16.",
        access=half_reduction("fp16"),
        owner=Owner.PRECISION,
        devices=_CUDA,
        choices=(*_TOGGLE, NO_SPLIT_K),
    ),
    Switch(
        name="cuda.matmul.allow_fp16_accumulation",
        reason="Lets float16 matmuls accumulate in float16.",
        access=attribute("backends.cuda.matmul.allow_fp16_accumulation"),
        owner=Owner.PRECISION,
        devices=_CUDA,
        choices=_TOGGLE,
    ),
    Switch(
        name="cpu.allow_fp16_reduced_precision_reduction",
        reason="Lets float16 matmuls accumulate in float16 on a CPU with float16 arithmetic.",
        access=functions(
            "_C._get_cpu_allow_fp16_reduced_precision_reduction",
            "_C._set_cpu_allow_fp16_reduced_precision_reduction",
        ),
        owner=Owner.PRECISION,
        devices=_CPU,
        choices=_TOGGLE,
    ),
    Switch(
        name="sdpa.allow_fp16_bf16_reduction_math",
        reason="Keeps the math attention in half types instead of float32.",
        access=functions(
            "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
            "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        ),
        owner=Owner.PRECISION,
        devices=_BOTH,
        choices=_TOGGLE,
    ),
    Switch(
        name="cudnn.deterministic",
        reason="Restricts cuDNN to deterministic algorithms.",
        access=attribute("backends.cudnn.deterministic"),
        owner=Owner.ORDER,
        devices=_CUDA,
        choices=_TOGGLE,
    ),
    Switch(
        name="cudnn.benchmark",
        reason="Picks cuDNN algorithms by timing them: another choice in another process.",
        access=attribute("backends.cudnn.benchmark"),
        owner=Owner.ORDER,
        devices=_CUDA,
        choices=_TOGGLE,
    ),
    Switch(
        name="cuda.preferred_blas_library",
        reason="cuBLAS or cuBLASLt: other kernels for the same matmul.",
        access=blas_library(),
        owner=Owner.ORDER,
        devices=_CUDA,
        choices=("default", "cublas", "cublaslt", "ck"),
    ),
    Switch(
        name="mkldnn.enabled",
        reason="Whether CPU kernels may be oneDNN's; off, MKL or torch's own code adds.",
        access=attribute("backends.mkldnn.enabled"),
        owner=Owner.ORDER,
        devices=_CPU,
        choices=_TOGGLE,
    ),
    Switch(
        name="mkldnn.deterministic",
        reason="Asks oneDNN for kernels that repeat bits.",
        access=attribute("backends.mkldnn.deterministic"),
        owner=Owner.ORDER,
        devices=_CPU,
        choices=_TOGGLE,
    ),
    *(
        Switch(
            name=f"sdpa.{kernel}",
            reason=f"Whether torch may choose the {kernel} attention kernel.",
            access=functions(
                f"backends.cuda.{kernel}_sdp_enabled", f"backends.cuda.enable_{kernel}_sdp"
            ),
            owner=Owner.ORDER,
            devices=devices,
            choices=_TOGGLE,
        )
        for kernel, devices in (
            ("flash", _BOTH),
            ("math", _BOTH),
            ("mem_efficient", _CUDA),
            ("cudnn", _CUDA),
        )
    ),
)

SWITCHES = {entry.name: entry for entry in _TABLE}
"""Every switch by name, in the order in which they are written."""


def switch(name: str) -> Switch:
    """Return the switch called `name`; raises `ConfigError` with the nearest known one."""
    try:
        return SWITCHES[name]
    except KeyError:
        raise ConfigError(f"unknown switch {name!r}: {nearest(name, SWITCHES)}") from None


def environment_of(values: SwitchValues) -> dict[str, str | None]:
    """Return the part of `values` that a child's environment must hold; None: must not be set."""
    found: dict[str, str | None] = {}
    for name, value in values.items():
        switch(name).check(value)
        if switch(name).phase is Phase.ENVIRONMENT:
            found[name] = None if value is None else str(value)
    return found


def read_switches(device: Device) -> SwitchValues:
    """Return every switch of `device` as this process has it now.

    A library switch that this torch lacks reads None, as does a variable that is not set.
    """
    return {entry.name: entry.read() for entry in _TABLE if device in entry.devices}


@contextmanager
def applied(values: SwitchValues) -> Iterator[SwitchValues]:
    """Set `values`, yield them as read back, and put everything back in reverse in ``finally``.

    Raises `UnsupportedConditionError`, with nothing changed, if an environment switch does not
    already hold, a switch is absent, or a value reads back otherwise than it was asked for.
    """
    for name, value in values.items():
        switch(name).check(value)
    with ExitStack() as stack:
        for entry in _TABLE:
            if entry.name in values:
                stack.callback(entry.save())
                entry.write(values[entry.name])
        yield _read_back(values)


def _read_back(requested: SwitchValues) -> SwitchValues:
    resolved = {name: switch(name).read() for name in requested}
    for name, value in requested.items():
        if resolved[name] != value:
            raise UnsupportedConditionError(
                f"switch {name} was set to {value!r} and reads back {resolved[name]!r}: another "
                "requested switch writes over it, or this build has no other value"
            )
    SWITCHES["float32_matmul_precision"].read()  # raises if torch can no longer answer for it
    return resolved
