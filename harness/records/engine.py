"""The engine that a verifier's model runs in, as a config asks for it.

What an engine made of these wishes is read back: `Build` and the resolved switches have it.
"""

from harness.records.document import Record

__all__ = ["Engine", "Transformers", "Vllm"]


class Transformers(Record, frozen=True, kw_only=True, tag="transformers", tag_field="name"):
    """Hugging Face transformers: padded forwards, exactly as planned."""


class Vllm(Record, frozen=True, kw_only=True, tag="vllm", tag_field="name"):
    """vLLM in the measuring process: its own scheduler packs requests into steps.

    None leaves a setting to vLLM. Dtype and threads belong to the condition, and so does
    ``VLLM_BATCH_INVARIANT``: it is the reduction order `batch_invariant`.
    """

    max_num_seqs: int = 64
    """Most requests in one step."""
    max_num_batched_tokens: int | None = None
    """Most tokens in one step; beyond it a prompt is cut into chunks."""
    max_model_len: int | None = None
    """Longest prompt with what follows it, tokens."""
    chunked_prefill: bool | None = None
    """Whether a prompt may be computed in several steps."""
    prefix_caching: bool = False
    """Whether a prompt's first blocks may come out of the cache of another's."""
    block_size: int | None = None
    """Tokens in a block of the cache."""
    attention_backend: str | None = None
    """``FLASH_ATTN``, ``TRITON_ATTN``, ..., as vLLM names them."""
    split_kv: bool | None = None
    """False: no attention kernel may cut a sequence's keys into parts that are summed apart."""
    enforce_eager: bool = False
    """Whether the model runs without compilation and CUDA graphs."""
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    """Numbers of tokens that graphs are made for: smaller steps are padded up to the next."""
    kv_cache_dtype: str = "auto"
    """Type of the cached keys and values; ``auto``: the model's."""
    kv_cache_bytes: int | None = None
    """Size of the cache. A CPU needs one."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that may be taken, where no size of the cache is given."""
    tensor_parallel_size: int = 1
    """GPUs among which every layer is cut."""

    def __post_init__(self) -> None:
        """A step holds at least one request, and a device is there."""
        for name in ("max_num_seqs", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine.{name} must be at least 1, found {getattr(self, name)}")


Engine = Transformers | Vllm
"""An engine, told apart by `name` in JSON and YAML."""
