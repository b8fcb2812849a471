"""How a score head reads its values off a vLLM engine's answer.

The engine gives logits of chosen tokens (``logprobs_mode`` raw_logits), log-probabilities of a
prompt's own tokens, or the outputs of a classification layer. What is made of them is the head's,
in float64: `harness.verifiers.heads`.
"""

from abc import ABC, abstractmethod
from typing import Any

from harness.errors import UnsupportedConditionError
from harness.records.verifier import LogLikelihood, ProcessReward, Reward, StepSource, VerifierSpec
from harness.verifiers.heads import ScoreHead, Values
from harness.verifiers.protocol import EncodedRow

__all__ = ["Readout", "readout_of"]


class Readout(ABC):
    """Says what to ask an engine for one row, and takes a head's values from the answer."""

    decodes = True
    """Whether the engine generates tokens."""

    def __init__(self, head: ScoreHead, num_reasoning: int = 0) -> None:
        """Read for `head`, after `num_reasoning` generated tokens."""
        self._head, self._num_reasoning = head, num_reasoning

    @abstractmethod
    def params(self, num_extra: int) -> Any:
        """Return vLLM's parameters of a request that goes on for `num_extra` tokens more."""

    @abstractmethod
    def values(self, row: EncodedRow, output: Any) -> Values:
        """Return what the head takes, `[reads, values]`, from vLLM's output of `row`."""


def readout_of(spec: VerifierSpec, head: ScoreHead) -> Readout:
    """Return the readout of the spec's head; UnsupportedConditionError where vLLM has none."""
    if isinstance(spec.head, Reward):
        return _ClassLogits(head)
    if isinstance(spec.head, LogLikelihood):
        return _PromptLogprobs(head)
    if isinstance(spec.head, ProcessReward):
        if spec.head.source is StepSource.YES_NO:
            advice = "it gives a prompt's logits for its own tokens only; use engine transformers"
            raise UnsupportedConditionError(f"engine vllm: head.source yes_no: {advice}")
        return _TokenLogits(head)
    return _GeneratedLogits(head, spec.reasoning_tokens)


class _GeneratedLogits(Readout):
    """Logits of chosen tokens, where the next token, or the one after the reasoning, is drawn."""

    def params(self, num_extra: int) -> Any:
        from vllm import SamplingParams  # noqa: PLC0415 - heavy

        chosen = self._head.chosen
        return SamplingParams(
            temperature=0,
            max_tokens=self._num_reasoning + 1 + num_extra,
            ignore_eos=True,
            detokenize=False,
            logprobs=len(chosen),
            logprob_token_ids=chosen,
        )

    def values(self, row: EncodedRow, output: Any) -> Values:  # noqa: ARG002 - one place a row
        read = output.outputs[0].logprobs[self._num_reasoning]
        return [[read[token].logprob for token in self._head.chosen]]


class _PromptLogprobs(Readout):
    """Log-probabilities of the prompt's own tokens."""

    def params(self, num_extra: int) -> Any:
        from vllm import SamplingParams  # noqa: PLC0415 - heavy

        return SamplingParams(
            temperature=0,
            max_tokens=1 + num_extra,
            ignore_eos=True,
            detokenize=False,
            prompt_logprobs=0,
        )

    def values(self, row: EncodedRow, output: Any) -> Values:
        read, tokens = output.prompt_logprobs, row.token_ids
        return [[read[at + 1][tokens[at + 1]].logprob] for at in self._head.positions(row)]


class _Pooled(Readout):
    decodes = False
    task = ""

    def params(self, num_extra: int) -> Any:  # noqa: ARG002 - nothing is generated
        from vllm import PoolingParams  # noqa: PLC0415 - heavy

        return PoolingParams(task=self.task, use_activation=False)


class _ClassLogits(_Pooled):
    """The classification layer's outputs at the last token."""

    task = "classify"

    def values(self, row: EncodedRow, output: Any) -> Values:  # noqa: ARG002 - one place a row
        read = output.outputs.data.double().tolist()
        return [[read[label] for label in self._head.chosen]]


class _TokenLogits(_Pooled):
    """The classification layer's outputs at every token."""

    task = "token_classify"

    def values(self, row: EncodedRow, output: Any) -> Values:
        read = output.outputs.data.double().tolist()
        return [
            [read[at][label] for label in self._head.chosen] for at in self._head.positions(row)
        ]
