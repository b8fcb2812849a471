"""What a vLLM engine is asked for, without vLLM."""

from pathlib import Path
from typing import Any

import pytest

from harness.conditions.condition import Condition
from harness.conditions.reduction_order import Attention
from harness.errors import UnsupportedConditionError
from harness.records.engine import Transformers, Vllm
from harness.records.invocation import PrecisionName
from harness.records.verifier import (
    Device,
    HeadDtype,
    LogLikelihood,
    LogOdds,
    Reward,
    VerifierSpec,
)
from harness.runner import ConditionProcess
from harness.verifiers import open_verifier
from harness.verifiers.vllm.options import (
    engine_environment,
    engine_options,
    refuse_unsupported,
    requested_order,
    requested_precision,
)
from tests.verifiers.cases import a_condition, a_spec

ODDS = LogOdds(yes=("y",), no=("n",))


def a_vllm_spec(**changes: Any) -> VerifierSpec:
    return a_spec("model", changes.pop("head", Reward()), **{"engine": Vllm()} | changes)


def options(spec: VerifierSpec, condition: Condition | None = None) -> dict[str, Any]:
    assert isinstance(spec.engine, Vllm)
    return engine_options(spec, spec.engine, condition or a_condition(), "folder", Path("log"))


def test_what_is_left_to_vllm_is_not_passed() -> None:
    passed = options(a_vllm_spec())
    left = {"attention_backend", "block_size", "max_model_len", "max_num_batched_tokens"}
    assert left.isdisjoint(passed)
    assert passed["model"] == "folder"
    assert passed["dtype"] == "float32"
    assert passed["enable_prefix_caching"] is False


def test_every_setting_of_an_engine_reaches_vllm() -> None:
    engine = Vllm(
        max_num_seqs=3,
        max_num_batched_tokens=64,
        max_model_len=128,
        chunked_prefill=False,
        prefix_caching=True,
        block_size=32,
        attention_backend="TRITON_ATTN",
        enforce_eager=True,
        cudagraph_capture_sizes=(1, 2),
        kv_cache_dtype="fp8",
        kv_cache_bytes=1 << 20,
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2,
    )
    passed = options(a_vllm_spec(engine=engine))
    assert (
        passed
        | {
            "max_num_seqs": 3,
            "max_num_batched_tokens": 64,
            "max_model_len": 128,
            "enable_chunked_prefill": False,
            "enable_prefix_caching": True,
            "block_size": 32,
            "attention_backend": "TRITON_ATTN",
            "enforce_eager": True,
            "cudagraph_capture_sizes": (1, 2),
            "kv_cache_dtype": "fp8",
            "kv_cache_memory_bytes": 1 << 20,
            "gpu_memory_utilization": 0.5,
            "tensor_parallel_size": 2,
        }
        == passed
    )


@pytest.mark.parametrize(
    ("head", "runner", "mode"),
    [
        (Reward(), "pooling", "raw_logits"),
        (ODDS, "generate", "raw_logits"),
        (LogLikelihood(), "generate", "raw_logprobs"),
    ],
)
def test_a_head_decides_what_the_engine_gives(head: Any, runner: str, mode: str) -> None:
    passed = options(a_vllm_spec(head=head))
    assert (passed["runner"], passed["logprobs_mode"]) == (runner, mode)


def test_keys_are_not_split_where_that_is_asked() -> None:
    whole = Vllm(split_kv=False)
    cpu, cuda = (options(a_vllm_spec(engine=whole, device=device)) for device in Device)
    assert "attention_config" not in cpu
    assert cuda["attention_config"] == {"flash_attn_max_num_splits_for_cuda_graph": 1}
    assert engine_environment(whole, a_condition())["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert engine_environment(Vllm(), a_condition())["VLLM_CPU_ATTN_SPLIT_KV"] is None


def test_the_environment_follows_the_condition() -> None:
    vendor = engine_environment(Vllm(), a_condition())
    invariant = engine_environment(Vllm(), a_condition(name="batch_invariant"))
    tf32 = engine_environment(Vllm(), a_condition(PrecisionName.TF32))
    assert vendor["VLLM_BATCH_INVARIANT"] is None
    assert invariant["VLLM_BATCH_INVARIANT"] == "1"
    assert vendor["VLLM_FLOAT32_MATMUL_PRECISION"] is None
    assert tf32["VLLM_FLOAT32_MATMUL_PRECISION"] == "high"
    assert vendor["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert engine_environment(Transformers(), a_condition()) == {}


def test_a_process_is_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")  # left over in the caller's shell
    process = ConditionProcess(a_vllm_spec(), a_condition(), [])
    assert "VLLM_BATCH_INVARIANT" not in process._environment
    assert process._environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    plain = ConditionProcess(a_spec("model", Reward()), a_condition(), [])
    assert plain._environment["VLLM_BATCH_INVARIANT"] == "1"


REFUSED: dict[str, tuple[dict[str, Any], Condition]] = {
    "precision float64": ({}, a_condition(PrecisionName.FLOAT64)),
    "reduction_order deterministic": ({}, a_condition(name="deterministic")),
    "on CUDA only": ({}, a_condition(name="batch_invariant")),
    "engine.attention_backend": ({}, a_condition(attention=Attention.MATH)),
    "onednn": ({}, a_condition(onednn=False)),
    "cannot be probed": ({}, a_condition(fingerprint=True)),
    "head.dtype float64": ({"head": Reward(dtype=HeadDtype.FLOAT64)}, a_condition()),
    "precision_overrides": (
        {},
        Condition(
            precision=PrecisionName.FLOAT32,
            precision_overrides={"mkldnn.matmul.fp32_precision": "bf16"},
            reduction_order=a_condition().reduction_order,
        ),
    ),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_vllm_cannot_do_is_refused_by_name(problem: str) -> None:
    changes, condition = REFUSED[problem]
    with pytest.raises(UnsupportedConditionError, match=f"engine vllm: .*{problem}"):
        refuse_unsupported(a_vllm_spec(**changes), condition)
    refuse_unsupported(a_spec("model", changes.get("head", Reward())), condition)


def test_what_vllm_can_do_is_not_refused() -> None:
    for precision in (PrecisionName.FLOAT32, PrecisionName.BFLOAT16, PrecisionName.FLOAT16):
        refuse_unsupported(a_vllm_spec(), a_condition(precision, num_threads=1))
    cuda = a_vllm_spec(device=Device.CUDA)
    refuse_unsupported(cuda, a_condition(name="batch_invariant"))


def test_requests_go_by_the_names_of_the_facts() -> None:
    engine = Vllm(block_size=32, split_kv=False)
    spec = a_vllm_spec(engine=engine, head=Reward(dtype=HeadDtype.FLOAT32))
    order = requested_order(engine, a_condition(num_threads=1))
    assert order["block_size"] == 32
    assert order["num_threads"] == 1
    assert order["split_kv"] is False
    assert "attention_backend" not in order
    precision = requested_precision(spec, engine, a_condition(PrecisionName.TF32))
    assert precision == {"dtype": "float32", "cache_dtype": "auto", "head_dtype": "float32"}


def test_an_engine_is_no_verifier_of_forwards() -> None:
    with pytest.raises(UnsupportedConditionError, match="Vllm is opened by open_engine"):
        open_verifier(a_vllm_spec(), a_condition())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": Transformers(), "reasoning_tokens": 3}, "needs an engine that decodes"),
        ({"reasoning_tokens": 3}, "log_odds and expected_grade"),
        ({"head": ODDS, "reasoning_tokens": -1}, "at least 0"),
    ],
)
def test_a_spec_that_cannot_reason_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_vllm_spec(**changes)


def test_an_empty_engine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.max_num_seqs must be at least 1"):
        Vllm(max_num_seqs=0)
    with pytest.raises(ValueError, match=r"engine\.tensor_parallel_size must be at least 1"):
        Vllm(tensor_parallel_size=0)
