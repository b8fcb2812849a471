"""The engine that a verifier's model runs in, as a config asks for it.

What an engine made of these wishes is read back: `Build` and the resolved switches have it.
"""

from enum import StrEnum
from urllib.parse import urlsplit

from harness.records.document import Record

__all__ = ["Dialect", "Endpoint", "Engine", "Transformers", "Vllm"]


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


class Dialect(StrEnum):
    """How a server is asked for the log-probabilities that a head needs."""

    VLLM = "vllm"
    """By token id (``logprob_token_ids``), at any rank; classifiers too."""
    OPENAI = "openai"
    """The most likely tokens of a plain completion: a head's tokens must be among them."""


class Endpoint(Record, frozen=True, kw_only=True, tag="endpoint", tag_field="name"):
    """OpenAI-compatible servers that somebody else runs; nobody sees what they batch.

    `verifier.model` is the checkpoint that they are declared to serve: its tokenizer encodes the
    rows, and its digest goes into the build as declared, not as read.
    """

    urls: dict[str, str]
    """Precision mode -> base URL of the server that runs it, without ``/v1``. A client cannot
    change a server's precision: the arms' modes and those the guards compare with have one each."""
    served_model: str
    """The model's name in requests."""
    dialect: Dialect = Dialect.VLLM
    """How log-probabilities are asked for."""
    top_logprobs: int = 20
    """For `openai`: how many tokens are asked for; the server may have a limit."""
    gate: bool = False
    """Whether a flight is gathered behind vLLM's pause and resume, each with an empty prefix cache;
    the server needs ``VLLM_SERVER_DEV_MODE=1``."""
    gate_wait_s: float = 0.05
    """Time from the last request of a gathered flight to the resume, so that it is there, too."""
    api_key_env: str | None = None
    """Environment variable that holds the API key; the key itself is never recorded."""
    num_connections: int = 64
    """Requests under way at once, at most: no flight is larger."""
    num_attempts: int = 4
    """Times that a request is sent before it is given up."""
    first_wait_s: float = 0.25
    """Wait before the second attempt; each later one is twice as long."""
    timeout_s: float = 120.0
    """Longest time from sending to answer, of one attempt."""

    def __post_init__(self) -> None:
        """URLs are plain addresses without a password, and something is sent."""
        if not self.urls:
            raise ValueError("engine.urls: name the server of each precision mode")
        for precision, url in self.urls.items():
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError(f"engine.urls.{precision}: {url!r} is no http address")
            if parts.username or parts.password:
                raise ValueError(f"engine.urls.{precision}: no password here; use api_key_env")
        for name in ("top_logprobs", "num_connections", "num_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine.{name} must be at least 1, found {getattr(self, name)}")
        if not self.timeout_s > 0 or not self.first_wait_s >= 0 or not self.gate_wait_s >= 0:
            raise ValueError("engine: timeout_s is above 0, first_wait_s and gate_wait_s not below")


Engine = Transformers | Vllm | Endpoint
"""An engine, told apart by `name` in JSON and YAML."""
