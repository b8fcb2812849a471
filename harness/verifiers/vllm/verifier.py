"""The vLLM backend: an engine in this process; see `harness.verifiers.protocol.EngineVerifier`.

Rules kept here:

* the build and the resolved switches are the engine's own facts, in the words in which a recording
  server tells them, so that a tolerance measured here speaks for that server's commits;
* the weights are loaded fresh in each precision, and digested as they are in memory;
* rows are tokenized here, as every backend does, and reach the engine as token ids.
"""

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.codec import digest
from harness.conditions.condition import Condition, controlled
from harness.conditions.flight import Flight
from harness.errors import InputFileError, ModelLoadError, UnsupportedConditionError
from harness.records.build import Build
from harness.records.engine import Vllm
from harness.records.verifier import VerifierSpec
from harness.serving.server_build import (
    build_of,
    precision_of,
    reduction_order_of,
    server_build,
)
from harness.verifiers.checkpoint import find_checkpoint
from harness.verifiers.heads import model_task, score_head
from harness.verifiers.loading import load_tokenizer
from harness.verifiers.prompt import TokenLimit, encode_rows, plain_template
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText, Served
from harness.verifiers.vllm.flights import Flights
from harness.verifiers.vllm.options import (
    engine_options,
    refuse_unsupported,
    requested_order,
    requested_precision,
)
from harness.verifiers.vllm.readout import readout_of
from harness.verifiers.wholeness import loaded_digest

__all__ = ["VllmVerifier"]


class VllmVerifier:
    """A verifier of vLLM."""

    def __init__(self, spec: VerifierSpec, condition: Condition) -> None:
        """Start an engine under `condition`.

        Raises ModelLoadError, ConfigError or UnsupportedConditionError; switches are restored.
        """
        self._spec, self._condition = spec, condition
        self._engine = _engine_of(spec)
        refuse_unsupported(spec, condition)
        with ExitStack() as stack:
            self._open(stack)
            self._undo = stack.pop_all()

    def _open(self, stack: ExitStack) -> None:
        spec = self._spec
        stack.enter_context(controlled(self._condition, spec.device))
        checkpoint = find_checkpoint(spec.model, spec.revision)
        tokenizer = load_tokenizer(checkpoint, spec)
        self._template = plain_template(spec.prompt, tokenizer)
        log = Path(stack.enter_context(TemporaryDirectory(prefix="scorepin-steps-")))
        options = engine_options(spec, self._engine, self._condition, checkpoint.folder, log)
        self._llm = _started(options)
        config = self._llm.llm_engine.vllm_config
        num_labels = int(getattr(config.model_config.hf_config, "num_labels", 0))
        pools = model_task(spec.head) != "causal_lm"
        self._head = score_head(spec.head, tokenizer, num_labels if pools else 0)
        self._readout = readout_of(spec, self._head)
        room = config.model_config.max_model_len - spec.reasoning_tokens - (not pools)
        limit = min(spec.max_tokens or room, room)
        self._limit = TokenLimit(max_tokens=limit, overflow=spec.overflow)
        self._tokenizer = tokenizer
        self._flights = Flights(self._llm.llm_engine, log / "engine-0")
        self._server = server_build(self._flights.facts)

    def facts(self) -> Build:
        """Return the build, as a recording server of the same settings tells it."""
        return build_of(self._server, self._spec)

    def resolved(self) -> ResolvedCondition:
        """Return the condition as the engine resolved it."""
        facts, condition = self._server.facts, self._condition
        precision, order = precision_of(facts), reduction_order_of(facts)
        asked = requested_precision(self._spec, self._engine, condition)
        return ResolvedCondition(
            precision_mode=type(precision)(
                name=precision.name, requested=asked, resolved=precision.resolved
            ),
            reduction_order=type(order)(
                name=order.name,
                requested=requested_order(self._engine, condition),
                resolved=order.resolved,
            ),
            loaded_digest=digest(self._llm.apply_model(loaded_digest)),
        )

    def encode(self, texts: Sequence[RowText]) -> list[EncodedRow]:
        """Turn texts into rows.

        Raises InputFileError naming the row that is too long or that the head cannot read.
        """
        rows = encode_rows(self._template, texts, self._tokenizer, self._limit)
        for row, text in zip(rows, texts, strict=True):
            try:
                self._head.positions(row)
            except InputFileError as error:
                raise InputFileError(f"{text.name}: {error}") from error
        return rows

    def serve(self, rows: Sequence[EncodedRow], flight: Flight) -> Served:
        """Take `rows` through the engine as `flight` says; see `EngineVerifier.serve`."""
        if flight.extra_tokens and not self._readout.decodes:
            raise UnsupportedConditionError("extra_tokens: a pooling engine generates nothing")
        params = self._readout.params(flight.extra_tokens)
        flown = self._flights.fly([row.token_ids for row in rows], params, flight)
        scores = (
            self._head.score(self._readout.values(row, output))
            for row, output in zip(rows, flown.outputs, strict=True)
        )
        return Served(
            scores=tuple(scores), steps=flown.steps, generated=flown.generated, note=flown.note
        )

    def close(self) -> None:
        """End the engine and restore every switch."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm, self._flights
        gc.collect()
        self._undo.close()


def _engine_of(spec: VerifierSpec) -> Vllm:
    if not isinstance(spec.engine, Vllm):
        raise UnsupportedConditionError("verifier.engine: vllm is needed here")
    return spec.engine


def _started(options: dict[str, Any]) -> Any:
    try:
        from vllm import LLM  # noqa: PLC0415 - heavy
    except ImportError as error:
        advice = "install it: pip install 'scorepin[vllm]' on a GPU node, scripts/vllm for a CPU"
        raise UnsupportedConditionError(f"engine vllm: {error}; {advice}") from error
    try:
        return LLM(**options)
    except (ValueError, RuntimeError, AssertionError, TypeError, KeyError) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(f"{options['model']}: vLLM cannot start on it ({cause})") from error
