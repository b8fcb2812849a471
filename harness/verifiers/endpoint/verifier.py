"""The endpoint backend; see `harness.verifiers.protocol.EngineVerifier`.

Rules kept here:

* rows are tokenized here, by the declared checkpoint's tokenizer, and sent as token ids;
* what the server says of itself is recorded as said, what is declared for it as declared, and the
  rest as unknown: a build of an endpoint never equals one that was read back;
* no step is told of, so whoever records a membership has only what was asked for.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from harness.codec import digest
from harness.conditions.condition import Condition
from harness.conditions.flight import Flight
from harness.errors import ConfigError, InvalidRecordError
from harness.records.build import Build
from harness.records.engine import Dialect, Endpoint
from harness.records.invocation import PrecisionMode, ReductionOrder
from harness.records.verifier import VerifierSpec
from harness.serving.row_request import Reading, RowRequest, row_request, row_values
from harness.verifiers.checkpoint import Checkpoint, find_checkpoint
from harness.verifiers.endpoint.options import (
    endpoint_of,
    refuse_ambiguous,
    refuse_flight,
    refuse_unsupported,
    url_of,
)
from harness.verifiers.heads import model_task, score_head
from harness.verifiers.loading import load_tokenizer
from harness.verifiers.prompt import TokenLimit, encode_rows, plain_template
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText, Served

if TYPE_CHECKING:
    import httpx

    from harness.verifiers.endpoint.flights import Flights
    from harness.verifiers.endpoint.server_words import ServerWords

__all__ = ["EndpointVerifier"]


class EndpointVerifier:
    """A verifier on a foreign server."""

    def __init__(
        self,
        spec: VerifierSpec,
        condition: Condition,
        *,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """Reach the server of the condition's precision; `transport` stands in for the network.

        Raises UnsupportedConditionError, ConfigError, ModelLoadError, or WorkerError when it does
        not answer.
        """
        self._spec, self._condition = spec, condition
        self._engine = endpoint_of(spec)
        refuse_unsupported(spec, condition)
        checkpoint = find_checkpoint(spec.model, spec.revision)
        self._tokenizer = load_tokenizer(checkpoint, spec)
        self._template = plain_template(spec.prompt, self._tokenizer)
        self._weights_digest = f"declared {checkpoint.digest()}"
        self._head = score_head(spec.head, self._tokenizer, _num_labels(spec, checkpoint))
        self._reading = _reading(spec, self._engine, self._tokenizer, self._head.chosen)
        with ExitStack() as stack:
            self._runner = stack.enter_context(asyncio.Runner())
            self._flights = self._opened(stack, transport)
            self._words = self._runner.run(self._greeted())
            self._limit = self._token_limit()
            self._undo = stack.pop_all()

    def _opened(self, stack: ExitStack, transport: "httpx.AsyncBaseTransport | None") -> "Flights":
        from harness.serving.connection import Connection, ConnectionLimits  # noqa: PLC0415 - httpx
        from harness.verifiers.endpoint.flights import Flights  # noqa: PLC0415

        engine, key = self._engine, _api_key(self._engine)
        limits = ConnectionLimits(
            num_connections=engine.num_connections,
            num_attempts=engine.num_attempts,
            first_wait_s=engine.first_wait_s,
            timeout_s=engine.timeout_s,
        )
        url = url_of(engine, self._condition.precision)
        rows, gate = (
            Connection(url, limits, api_key=key, transport=transport) for _ in ("rows", "gate")
        )
        for connection in (rows, gate):
            stack.callback(lambda one: self._runner.run(one.__aexit__()), connection)
        self._connection = rows
        return Flights(rows, gate, engine)

    async def _greeted(self) -> "ServerWords":
        """Have one row of one token answered, and ask the server what it is."""
        from harness.verifiers.endpoint.server_words import server_words  # noqa: PLC0415 - httpx

        await self._flights.open()
        answer = await self._flights.send(self._request(self._head.chosen[:1]))
        return await server_words(self._connection, self._engine.served_model, answer)

    def facts(self) -> Build:
        """Return the build: what the server says, what is declared, and what is unknown."""
        from harness.verifiers.endpoint.server_words import UNKNOWN  # noqa: PLC0415 - httpx

        spec, words = self._spec, self._words
        return Build(
            weights_digest=self._weights_digest,
            tokenizer_digest=digest(self._tokenizer.backend_tokenizer.to_str()),
            prompt_digest=digest(
                [spec.prompt, spec.max_tokens, spec.overflow, spec.reasoning_tokens]
            ),
            head_digest=digest(spec.head),
            engine=f"endpoint: {words.owner}, version {words.version}",
            libraries={"server": words.software},
            parallel_layout=UNKNOWN,
            device=UNKNOWN,
            device_name=UNKNOWN,
            device_capability=UNKNOWN,
            kernel_environment={"all": UNKNOWN},
            verifier=spec,
        )

    def resolved(self) -> ResolvedCondition:
        """Return the condition: the precision as declared, the rest as the server tells it."""
        precision = self._condition.precision
        return ResolvedCondition(
            precision_mode=PrecisionMode(
                name=precision,
                requested={},
                resolved={"declared_dtype": str(precision)},
            ),
            reduction_order=ReductionOrder(
                name=self._condition.reduction_order.name,
                requested={"gate": self._engine.gate},
                resolved={
                    "max_model_len": self._words.max_model_len,
                    "system_fingerprint": self._words.fingerprint,
                },
            ),
            loaded_digest=self._weights_digest,
        )

    def encode(self, texts: Sequence[RowText]) -> list[EncodedRow]:
        """Turn texts into rows; see `EngineVerifier.encode`."""
        return encode_rows(self._template, texts, self._tokenizer, self._limit)

    def serve(self, rows: Sequence[EncodedRow], flight: Flight) -> Served:
        """Send `rows` together, in their order; see `EngineVerifier.serve`.

        Raises UnsupportedConditionError too for a token of the head that the server did not tell.
        """
        refuse_flight(flight, len(rows), self._engine)
        requests = [self._request(row.token_ids) for row in rows]
        try:
            bodies = self._runner.run(self._flights.fly(requests))
        except ValueError as error:
            raise InvalidRecordError(f"the server's answer is no JSON: {error}") from error
        return Served(scores=tuple(map(self._score, bodies)))

    def close(self) -> None:
        """Close every connection."""
        self._undo.close()

    def _request(self, token_ids: Sequence[int]) -> RowRequest:
        return row_request(
            self._spec.head, list(token_ids), self._head.chosen, reading=self._reading
        )

    def _score(self, body: Any) -> float:
        values = row_values(self._spec.head, body, self._head.chosen, self._reading)
        return self._head.score([values])

    def _token_limit(self) -> TokenLimit:
        spec, told = self._spec, self._words.max_model_len
        if told is None and spec.max_tokens is None:
            raise ConfigError("verifier.max_tokens: the server does not tell its limit; give one")
        decoded = spec.reasoning_tokens + (model_task(spec.head) == "causal_lm")
        limits = [spec.max_tokens, None if told is None else told - decoded]
        return TokenLimit(max_tokens=min(filter(None, limits)), overflow=spec.overflow)


def _api_key(engine: Endpoint) -> str | None:
    if engine.api_key_env is None:
        return None
    key = os.environ.get(engine.api_key_env)
    if not key:
        raise ConfigError(f"engine.api_key_env: {engine.api_key_env} is not set; export the key")
    return key


def _num_labels(spec: VerifierSpec, checkpoint: Checkpoint) -> int:
    """Return how many labels the declared checkpoint has; 0 where no classifier is read."""
    if model_task(spec.head) == "causal_lm":
        return 0
    from transformers import AutoConfig  # noqa: PLC0415 - heavy

    config = AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=spec.trust_remote_code)
    return int(config.num_labels)


def _reading(
    spec: VerifierSpec, engine: Endpoint, tokenizer: Any, chosen: Sequence[int]
) -> Reading:
    texts: tuple[str, ...] = ()
    if engine.dialect is Dialect.OPENAI:
        texts = tuple(tokenizer.batch_decode([[token] for token in chosen]))
        every = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        refuse_ambiguous(texts, every)
    return Reading(
        dialect=engine.dialect,
        num_reasoning=spec.reasoning_tokens,
        num_top=engine.top_logprobs,
        texts=texts,
    )
