"""The verifier as a config asks for it: model, prompt, score head, limits, device.

The head and the prompt are part of the build: they change the score. The model's name is not: its
weights' digest is.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from harness.records.document import Record
from harness.records.engine import Engine, Transformers

__all__ = [
    "Device",
    "ExpectedGrade",
    "Head",
    "HeadDtype",
    "LogLikelihood",
    "LogOdds",
    "Message",
    "Overflow",
    "ProcessReward",
    "Prompt",
    "Reduction",
    "Reward",
    "StepReduction",
    "StepSource",
    "VerifierSpec",
]

Tokens = Annotated[tuple[str, ...], Meta(min_length=1)]


class Device(StrEnum):
    """Where the model runs."""

    CPU = "cpu"
    """The host's processor."""
    CUDA = "cuda"
    """The current CUDA device."""


class HeadDtype(StrEnum):
    """Type in which the head's own linear layer runs."""

    MODEL = "model"
    """That of the model's weights."""
    FLOAT32 = "float32"
    """Single precision, from the checkpoint's stored values."""
    FLOAT64 = "float64"
    """Double precision, from the checkpoint's stored values."""


class Reduction(StrEnum):
    """How token log-likelihoods become one score."""

    MEAN = "mean"
    """Per token."""
    SUM = "sum"
    """Of the whole branch."""


class StepReduction(StrEnum):
    """How step scores become one score."""

    MIN = "min"
    """The weakest step's logit."""
    PRODUCT = "product"
    """Log of the product of the steps' probabilities."""
    LAST = "last"
    """The last step's logit."""


class StepSource(StrEnum):
    """Which head scores a step."""

    TOKEN_CLASSIFICATION = "token_classification"  # noqa: S105 - no secret
    """A token-classification head: its one label, or label 1 minus label 0 of two."""
    SEQUENCE_CLASSIFICATION = "sequence_classification"
    """A sequence-classification head applied at each step instead of the last token."""
    YES_NO = "yes_no"
    """Log-odds of two token sets at each step."""


class LogOdds(Record, frozen=True, kw_only=True, tag="log_odds", tag_field="kind"):
    """log sum exp of the `yes` logits minus that of the `no` logits after the last token."""

    yes: Tokens
    """Tokens that mean accepted, each one token of the vocabulary."""
    no: Tokens
    """Tokens that mean rejected."""
    dtype: HeadDtype = HeadDtype.MODEL
    """Type of the language-model head."""


class Reward(Record, frozen=True, kw_only=True, tag="reward", tag_field="kind"):
    """Raw logit of a sequence-classification head at the last real token."""

    label: int | None = None
    """The class whose logit is the score; None for a head with one output."""
    dtype: HeadDtype = HeadDtype.MODEL
    """Type of the classification layer."""


class ProcessReward(Record, frozen=True, kw_only=True, tag="process_reward", tag_field="kind"):
    """One score for each step of the branch, reduced to one."""

    source: StepSource
    """Which head scores a step."""
    separator: str
    """The token that ends a step, one token of the vocabulary."""
    reduce: StepReduction
    """How step scores become one."""
    include_last_token: bool = False
    """Whether the row's last token ends a step too."""
    yes: tuple[str, ...] = ()
    """For `yes_no`: tokens that mean the step is right."""
    no: tuple[str, ...] = ()
    """For `yes_no`: tokens that mean it is wrong."""
    dtype: HeadDtype = HeadDtype.MODEL
    """Type of the head's linear layer."""

    def __post_init__(self) -> None:
        """Token sets go with `yes_no`, and only with it."""
        needs = self.source is StepSource.YES_NO
        if needs != bool(self.yes) or needs != bool(self.no):
            raise ValueError("`yes` and `no` must be given for source yes_no, and only for it")


class LogLikelihood(Record, frozen=True, kw_only=True, tag="log_likelihood", tag_field="kind"):
    """Log-likelihood of the branch's tokens given all that stands before them."""

    reduce: Reduction = Reduction.MEAN
    """Per token or in all."""
    dtype: HeadDtype = HeadDtype.MODEL
    """Type of the language-model head."""


class ExpectedGrade(Record, frozen=True, kw_only=True, tag="expected_grade", tag_field="kind"):
    """Mean of the grades under the softmax over their tokens' logits after the last token."""

    grades: dict[str, float]
    """Token -> grade, each one token of the vocabulary."""
    dtype: HeadDtype = HeadDtype.MODEL
    """Type of the language-model head."""

    def __post_init__(self) -> None:
        """One grade is no scale."""
        if len(self.grades) < 2:
            raise ValueError("`grades` needs at least two tokens")


Head = LogOdds | Reward | ProcessReward | LogLikelihood | ExpectedGrade
"""A score head, told apart by `kind` in JSON and YAML."""


class Message(Record, frozen=True, kw_only=True):
    """One chat message; its content may hold ``{context}`` and ``{branch}``."""

    role: str
    """As the chat template knows it: system, user, assistant."""
    content: str
    """Text with the two fields."""


class Prompt(Record, frozen=True, kw_only=True):
    """How a context and a branch become the model's tokens. Nothing is added in silence."""

    template: str | None = None
    """Plain text with ``{context}`` and ``{branch}``; special tokens are written out."""
    chat: tuple[Message, ...] = ()
    """Messages for the tokenizer's chat template, instead of `template`."""
    add_generation_prompt: bool = False
    """For `chat`: whether the assistant's opening tokens follow."""
    add_special_tokens: bool = False
    """Whether the tokenizer adds its own (BOS, EOS, CLS) to the rendered text."""

    def __post_init__(self) -> None:
        """Exactly one form, and the branch stands in it once."""
        if (self.template is None) == (not self.chat):
            raise ValueError("a prompt has either `template` or `chat`")
        text = self.template or "".join(message.content for message in self.chat)
        if text.count("{branch}") != 1 or text.count("{context}") > 1:
            raise ValueError("a prompt holds {branch} once and {context} at most once")


class Overflow(StrEnum):
    """What happens to a row longer than the model's context."""

    ERROR = "error"
    """The run stops and names the branch."""
    KEEP_END = "keep_end"
    """The first tokens are dropped; the row is counted and reported as truncated."""


class VerifierSpec(Record, frozen=True, kw_only=True):
    """Everything that must be said to make the verifier again."""

    model: str
    """``embedded:reward``, ``embedded:lm``, a folder, a hub name, or ``fake:`` (labelled so)."""
    head: Head
    """How a score is read off the model."""
    prompt: Prompt
    """How a row is written."""
    revision: str | None = None
    """Revision of a hub model."""
    max_tokens: int | None = None
    """Longest row; None for the model's own limit."""
    overflow: Overflow = Overflow.ERROR
    """What happens to longer rows."""
    device: Device = Device.CPU
    """Where the model runs."""
    engine: Engine = Transformers()
    """What runs it."""
    reasoning_tokens: int = 0
    """Tokens that a judge generates, greedily, before its score is read; the engine must decode."""
    trust_remote_code: bool = False
    """Whether code in the checkpoint may run."""

    def __post_init__(self) -> None:
        """A row has at least one token, and only a decoding engine's judge reasons first."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, found {self.max_tokens}")
        if self.reasoning_tokens < 0:
            raise ValueError(f"reasoning_tokens is at least 0, found {self.reasoning_tokens}")
        if self.reasoning_tokens and isinstance(self.engine, Transformers):
            raise ValueError("reasoning_tokens needs an engine that decodes: engine {name: vllm}")
        if self.reasoning_tokens and not isinstance(self.head, LogOdds | ExpectedGrade):
            raise ValueError("reasoning_tokens goes with the heads log_odds and expected_grade")
