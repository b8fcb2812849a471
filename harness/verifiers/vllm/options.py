"""What a vLLM engine is asked for: environment and arguments, from a verifier and a condition.

Pure, and the one place where vLLM's switches are set. What the engine made of them is read back by
`harness.serving.engine_facts`, in the same words as a server's.
"""

from pathlib import Path
from typing import Any

from harness.conditions.condition import Condition
from harness.conditions.reduction_order import Attention
from harness.errors import UnsupportedConditionError
from harness.records.engine import Engine, Vllm
from harness.records.invocation import PrecisionName
from harness.records.switches import SwitchValues
from harness.records.verifier import Device, HeadDtype, LogLikelihood, VerifierSpec
from harness.verifiers.heads import model_task

__all__ = [
    "engine_environment",
    "engine_options",
    "refuse_unsupported",
    "requested_order",
    "requested_precision",
]

SCHEDULER = "harness.serving.scheduler.RecordingScheduler"

_MAX_LOGPROBS = 256
"""Tokens of a head, at most; vLLM's own limit is 20."""
_DTYPES = {
    PrecisionName.FLOAT32: "float32",
    PrecisionName.TF32: "float32",
    PrecisionName.BFLOAT16: "bfloat16",
    PrecisionName.FLOAT16: "float16",
}
_ORDERS = ("vendor", "batch_invariant")


def engine_environment(engine: Engine, condition: Condition) -> dict[str, str | None]:
    """Return what the environment of an engine's process must hold; None: must not be set."""
    if not isinstance(engine, Vllm):
        return {}
    invariant = condition.reduction_order.name == "batch_invariant"
    is_tf32 = condition.precision is PrecisionName.TF32
    return {
        "VLLM_BATCH_INVARIANT": "1" if invariant else None,
        "VLLM_CPU_ATTN_SPLIT_KV": "0" if engine.split_kv is False else None,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else steps are taken by a race
        "VLLM_FLOAT32_MATMUL_PRECISION": "high" if is_tf32 else None,
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }


def engine_options(
    spec: VerifierSpec, engine: Vllm, condition: Condition, folder: str, log: Path
) -> dict[str, Any]:
    """Return the arguments of ``vllm.LLM`` for the checkpoint in `folder`, recording to `log`."""
    asked = {
        "attention_backend": engine.attention_backend,
        "block_size": engine.block_size,
        "cudagraph_capture_sizes": engine.cudagraph_capture_sizes,
        "enable_chunked_prefill": engine.chunked_prefill,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "kv_cache_memory_bytes": engine.kv_cache_bytes,
        "max_model_len": engine.max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
    }
    return {
        **{name: value for name, value in asked.items() if value is not None},
        "model": folder,
        "runner": "generate" if model_task(spec.head) == "causal_lm" else "pooling",
        "dtype": requested_precision(spec, engine, condition)["dtype"],
        "kv_cache_dtype": engine.kv_cache_dtype,
        "hf_overrides": {"head_dtype": str(spec.head.dtype)},
        "logprobs_mode": _logprobs_mode(spec),
        "max_logprobs": _MAX_LOGPROBS,
        "max_num_seqs": engine.max_num_seqs,
        "enable_prefix_caching": engine.prefix_caching,
        "enforce_eager": engine.enforce_eager,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "trust_remote_code": spec.trust_remote_code,
        "scheduler_cls": SCHEDULER,
        "additional_config": {"scorepin": {"log": str(log), "allow_pin": True}},
        "disable_log_stats": True,
        **_split_kv(spec, engine),
    }


def refuse_unsupported(spec: VerifierSpec, condition: Condition) -> None:
    """Raise UnsupportedConditionError for what vLLM, if it is the engine, cannot do."""
    if not isinstance(spec.engine, Vllm):
        return
    order = condition.reduction_order
    problems = {
        f"precision {condition.precision}: vLLM has {', '.join(_DTYPES)}": (
            condition.precision not in _DTYPES
        ),
        f"precision_overrides: vLLM sets {', '.join(condition.precision_overrides)} by itself": (
            bool(condition.precision_overrides)
        ),
        f"reduction_order {order.name}: vLLM has {' and '.join(_ORDERS)}": (
            order.name not in _ORDERS
        ),
        "batch_invariant: vLLM has kernels for it on CUDA only": (
            order.name == "batch_invariant" and spec.device is Device.CPU
        ),
        "attention: name vLLM's kernel as engine.attention_backend": (
            order.attention is not Attention.AUTO
        ),
        "onednn: vLLM chooses by itself": order.onednn is not None,
        "fingerprint: the sums of an engine cannot be probed; leave it out": order.fingerprint,
        f"head.dtype {spec.head.dtype}: vLLM has model and float32": (
            spec.head.dtype is HeadDtype.FLOAT64
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise UnsupportedConditionError(f"engine vllm: {problem}")


def requested_precision(spec: VerifierSpec, engine: Vllm, condition: Condition) -> SwitchValues:
    """Return what is asked for, under the names of the facts that answer it."""
    return {
        "dtype": _DTYPES[condition.precision],
        "cache_dtype": engine.kv_cache_dtype,
        "head_dtype": str(spec.head.dtype),
    }


def requested_order(engine: Vllm, condition: Condition) -> SwitchValues:
    """Return what is asked for, under the names of the facts that answer it."""
    asked: dict[str, Any] = {
        "attention_backend": engine.attention_backend,
        "block_size": engine.block_size,
        "enable_chunked_prefill": engine.chunked_prefill,
        "enable_prefix_caching": engine.prefix_caching,
        "enforce_eager": engine.enforce_eager,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "num_threads": condition.reduction_order.num_threads,
        "split_kv": engine.split_kv,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _logprobs_mode(spec: VerifierSpec) -> str:
    """Return raw logits, except where a whole softmax is needed, which only the engine sees."""
    return "raw_logprobs" if isinstance(spec.head, LogLikelihood) else "raw_logits"


def _split_kv(spec: VerifierSpec, engine: Vllm) -> dict[str, Any]:
    """Return the argument that holds on CUDA; a CPU has a variable."""
    if engine.split_kv is not False or spec.device is Device.CPU:
        return {}
    return {"attention_config": {"flash_attn_max_num_splits_for_cuda_graph": 1}}
