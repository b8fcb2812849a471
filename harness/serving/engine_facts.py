"""What an engine is, as it resolved its own settings: the server's side of a build.

Read in the engine's process when its scheduler is made, and written at the top of each file of the
step log. Names of switches are vLLM's own, and their values what the engine made of its flags.
"""

import os
from typing import Any

from harness import machine
from harness.conditions.kernel_environment import kernel_environment
from harness.records.document import Record
from harness.records.switches import SwitchValues
from harness.records.verifier import Device

__all__ = ["EngineFacts", "engine_facts"]


class EngineFacts(Record, frozen=True, kw_only=True):
    """Facts of one engine."""

    model: str
    """As the engine was given it."""
    tokenizer: str
    """As the engine was given it."""
    engine: str
    """``vllm 0.32.0``."""
    dtype: str
    """Of weights and activations."""
    libraries: dict[str, str]
    """Library -> version."""
    parallel_layout: str
    """``1``, or ``tp=2 pp=1 dp=1``."""
    device: str
    """``cpu`` or ``cuda``."""
    device_name: str
    """As the device names itself."""
    device_capability: str
    """As `Build` has it."""
    kernel_environment: dict[str, str]
    """Variables that steer kernels, vLLM's own among them."""
    precision: SwitchValues
    """Resolved switches of the precision mode."""
    order: SwitchValues
    """Resolved switches of the reduction order."""


_VLLM_VARIABLES = (
    "VLLM_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT",
    "VLLM_CPU_",
    "VLLM_FLASH_ATTN_VERSION",
    "VLLM_FLOAT32_MATMUL_PRECISION",
    "VLLM_USE_",
)
"""Names, or the beginnings of names, of those that choose kernels."""


def engine_facts(config: Any) -> dict[str, Any]:
    """Return the facts of an engine from its ``VllmConfig``, as builtins."""
    import msgspec  # noqa: PLC0415 - beside the engine's
    import torch  # noqa: PLC0415

    device = Device.CUDA if config.device_config.device_type == "cuda" else Device.CPU
    facts = machine.device_facts(device) if device is Device.CPU else _cuda_facts()
    parallel, cache = config.parallel_config, config.cache_config
    found: dict[str, Any] = msgspec.to_builtins(
        EngineFacts(
            model=config.model_config.model,
            tokenizer=str(config.model_config.tokenizer),
            engine=f"vllm {machine.package_version('vllm')}",
            dtype=_dtype(config.model_config.dtype),
            libraries=machine.library_versions(device),
            parallel_layout=_layout(parallel),
            device=facts.device,
            device_name=facts.name,
            device_capability=facts.capability,
            kernel_environment=_variables(),
            precision={
                "dtype": _dtype(config.model_config.dtype),
                "cache_dtype": str(cache.cache_dtype),
                "head_dtype": _dtype(config.model_config.head_dtype),
                "logprobs_mode": config.model_config.logprobs_mode,
                "quantization": config.model_config.quantization,
                "float32_matmul_precision": torch.get_float32_matmul_precision(),
            },
            order={
                "attention_backend": _attention_backend(config),
                "block_size": cache.block_size,
                "cudagraph_capture_sizes": _sizes(config.compilation_config),
                "compilation_mode": _text(config.compilation_config.mode),
                "cudagraph_mode": _text(config.compilation_config.cudagraph_mode),
                "enforce_eager": config.model_config.enforce_eager,
                "enable_chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
                "enable_prefix_caching": bool(cache.enable_prefix_caching),
                "async_scheduling": bool(config.scheduler_config.async_scheduling),
                "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
                "long_prefill_token_threshold": (
                    config.scheduler_config.long_prefill_token_threshold
                ),
                "max_num_seqs": config.scheduler_config.max_num_seqs,
                "num_threads": torch.get_num_threads() if device is Device.CPU else None,
            },
        )
    )
    return found


def _attention_backend(config: Any) -> str | None:
    """Return the kernels of the layers, where they are in this process, else what was asked for."""
    layers = config.compilation_config.static_forward_context.values()
    found = {one.attn_backend.get_name() for one in layers if hasattr(one, "attn_backend")}
    return "+".join(sorted(found)) or _text(config.attention_config.backend)


def _sizes(compilation: Any) -> str | None:
    """Return the numbers of tokens that graphs are made for; None where there are none."""
    sizes = compilation.cudagraph_capture_sizes
    return ",".join(map(str, sorted(sizes))) if sizes else None


def _cuda_facts() -> machine.DeviceFacts:
    """Ask vLLM, which asks the driver: torch would open the device in this process."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    capability = current_platform.get_device_capability()
    return machine.DeviceFacts(
        device="cuda",
        name=current_platform.get_device_name(),
        capability=f"sm_{capability.to_int() if capability else 'unknown'}",
    )


def _variables() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name.startswith(_VLLM_VARIABLES)}
    return dict(sorted({**kernel_environment(os.environ), **own}.items()))


def _layout(parallel: Any) -> str:
    sizes = {
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "dp": parallel.data_parallel_size,
    }
    if set(sizes.values()) == {1}:
        return "1"
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _text(value: Any) -> str | None:
    return None if value is None else str(getattr(value, "name", value))
