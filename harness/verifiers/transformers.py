"""The transformers backend: one model, loaded fresh in one precision, scored batch by batch.

Rules kept here:

* position ids follow the rows' tokens, so they are the same for either padding side;
* the pooled position is the last real token by count, never by the pad token's id;
* no key-value cache, no dropout, no cast of a loaded model: another precision is another load;
* logits leave the device once a batch, as the few float64 values that the head takes from them.

Whether a kernel treats its rows independently is not known here; calibration measures it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from harness import machine
from harness.codec import digest
from harness.conditions.attention import attn_implementation
from harness.conditions.batch_invariant import batch_invariant
from harness.conditions.condition import (
    Condition,
    controlled,
    requested_switches,
    resolved_switches,
)
from harness.conditions.kernel_environment import kernel_environment
from harness.conditions.precision import torch_dtype_name
from harness.conditions.split_k import split_k
from harness.errors import ConfigError, InputFileError, UnsupportedConditionError
from harness.orders.cache import cache_key
from harness.orders.model_orders import ModelOrders
from harness.records.batching import PaddingSide
from harness.records.build import Build
from harness.records.invocation import PrecisionMode, ReductionOrder
from harness.records.switches import SwitchValues
from harness.records.verifier import Device, Overflow, ProcessReward, VerifierSpec
from harness.verifiers.causality import is_causal
from harness.verifiers.checkpoint import find_checkpoint
from harness.verifiers.first_forward import first_forward
from harness.verifiers.forwards import Reads, forward_of, pools_first_column
from harness.verifiers.head_layer import install_head
from harness.verifiers.heads import model_task, score_head
from harness.verifiers.inputs import (
    filled_up,
    first_columns,
    first_position,
    padded_inputs,
    padding_id,
)
from harness.verifiers.loading import load_model, load_tokenizer
from harness.verifiers.prompt import TokenLimit, encode_rows, plain_template
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText
from harness.verifiers.wholeness import loaded_digest

if TYPE_CHECKING:
    from torch import Tensor

    from harness.verifiers.trace import Watch

__all__ = ["TransformersVerifier"]


class TransformersVerifier:
    """A verifier of Hugging Face transformers; see `harness.verifiers.protocol.Verifier`."""

    def __init__(self, spec: VerifierSpec, condition: Condition) -> None:
        """Load the model under `condition`.

        Raises ModelLoadError, ConfigError or UnsupportedConditionError; switches are restored.
        """
        self._spec, self._condition = spec, condition
        with ExitStack() as stack:
            self._open(stack)
            self._undo = stack.pop_all()

    def _open(self, stack: ExitStack) -> None:
        spec, order = self._spec, self._condition.reduction_order
        _refuse_absent(spec.device)
        self._requested = requested_switches(self._condition, spec.device)
        stack.enter_context(controlled(self._condition, spec.device))
        self._checkpoint = find_checkpoint(spec.model, spec.revision)
        self._tokenizer = load_tokenizer(self._checkpoint, spec)
        dtype = torch_dtype_name(self._condition.precision)
        attention = attn_implementation(order.attention)
        self._model = load_model(self._checkpoint, spec, dtype, attention)
        self._head_layer = install_head(self._model, self._checkpoint, spec)
        if order.split_k:
            stack.enter_context(split_k(self._model, order.split_k))
        self._implementation: SwitchValues = {}
        if order.name == "batch_invariant":
            name = stack.enter_context(batch_invariant(self._model, spec.device))
            self._implementation = {"batch_invariant": name}
        self._bind()

    def _bind(self) -> None:
        """Tie prompt, limits, head and forward to what was loaded."""
        spec, model = self._spec, self._model
        self._template = plain_template(spec.prompt, self._tokenizer)
        self._limit = _token_limit(model, spec)
        self._head = score_head(spec.head, self._tokenizer, _num_labels(model, spec))
        forward = forward_of(model, model_task(spec.head))
        self._forward: Callable[..., Tensor] = forward
        if pools_first_column(forward):
            _refuse_other_pooling(spec)
        self._ids = {
            "padding": padding_id(self._tokenizer, model),
            "first_position": first_position(model),
        }
        self._first = first_forward(model, **self._ids)

    def facts(self) -> Build:
        """Return the build."""
        spec, device = self._spec, machine.device_facts(self._spec.device)
        return Build(
            weights_digest=self._checkpoint.digest(),
            tokenizer_digest=digest(self._tokenizer.backend_tokenizer.to_str()),
            prompt_digest=digest([self._template, self._limit]),
            head_digest=digest(spec.head),
            engine=f"transformers {machine.package_version('transformers')}",
            libraries=machine.library_versions(spec.device),
            parallel_layout="1",
            device=device.device,
            device_name=device.name,
            device_capability=device.capability,
            kernel_environment=kernel_environment(os.environ),
            verifier=spec,
        )

    def resolved(self) -> ResolvedCondition:
        """Return the condition as it turned out, with its fingerprints where it asks for them."""
        condition, switches = self._condition, resolved_switches(self._spec.device)
        return ResolvedCondition(
            precision_mode=PrecisionMode(
                name=condition.precision,
                requested=self._requested.precision,
                resolved=switches.precision | self._dtypes(),
            ),
            reduction_order=ReductionOrder(
                name=condition.reduction_order.label,
                requested=self._requested.order,
                resolved=switches.order | self._attention() | self._implementation,
                fingerprints=self._fingerprints(),
            ),
            loaded_digest=loaded_digest(self._model),
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

    def score(
        self,
        rows: Sequence[EncodedRow],
        width: int,
        side: PaddingSide | None,
        num_rows: int | None = None,
    ) -> list[float]:
        """Run one forward over `rows`, padded to `width` on `side`; one float64 score a row."""
        import torch  # noqa: PLC0415 - not on the planner's side

        padded = filled_up(rows, width, num_rows, self._ids["padding"]) if num_rows else rows
        starts = first_columns(padded, width, side)
        positions = [self._head.positions(row) for row in rows]
        places = [(row, starts[row] + at) for row, own in enumerate(positions) for at in own]
        reads = Reads(
            rows=[row for row, _ in places],
            columns=[column for _, column in places],
            once=self._head.reads_once,
            set_shape=num_rows is not None,
        )
        masked = num_rows is None or side is not PaddingSide.RIGHT or not self._is_causal
        with torch.inference_mode():
            inputs = padded_inputs(padded, starts, width, **self._ids, masked=masked)
            device = self._model.device
            logits = self._forward({name: t.to(device) for name, t in inputs.items()}, reads)
            values = iter(self._head.take(rows, logits).tolist())
        return [self._head.score(list(islice(values, len(own)))) for own in positions]

    @contextmanager
    def watched(self, watch: "Watch") -> Iterator[None]:
        """Hand every forward inside the context to `watch`; see `harness.verifiers.trace`."""
        forward = self._forward
        self._forward = partial(watch, self._model, forward)
        try:
            yield
        finally:
            self._forward = forward

    @cached_property
    def _is_causal(self) -> bool:
        return is_causal(self._model, **self._ids)

    @cached_property
    def orders(self) -> ModelOrders:
        """The summation trees of the model, measured when they are asked for."""
        switches = resolved_switches(self._spec.device)
        resolved = switches.precision | switches.order | self._dtypes() | self._attention()
        label = {"order": self._condition.reduction_order.label}
        return ModelOrders(
            self._model,
            self._forward,
            self.score,
            ids=self._ids,
            longest=self._limit.max_tokens,
            key=cache_key(self.facts().build_id, resolved | self._implementation | label),
        )

    def _fingerprints(self) -> dict[str, str]:
        return self.orders.fingerprints() if self._condition.reduction_order.fingerprint else {}

    def close(self) -> None:
        """Free the model and restore every switch."""
        self._undo.close()
        del self._model, self._forward, self._head_layer

    def _dtypes(self) -> SwitchValues:
        head = set(self._head_layer.parameters())
        weights = {_dtype_name(p) for p in self._model.parameters() if p not in head}
        return {
            "weights_dtype": "+".join(sorted(weights)),
            "activations_dtype": self._first.activations_dtype,
            "head_dtype": _dtype_name(self._head_layer.weight),
        }

    def _attention(self) -> SwitchValues:
        return {
            "attention_kernel": self._first.attention_kernel,
            "attention_kernel_padded": self._first.attention_kernel_padded,
            "attn_implementation": self._model.config._attn_implementation,  # noqa: SLF001 - read back
        }


def _refuse_other_pooling(spec: VerifierSpec) -> None:
    """Raise ConfigError where a model that pools its first token is asked for another."""
    if spec.overflow is Overflow.KEEP_END:
        message = "keep_end would drop the first token, which this model pools; use error"
        raise ConfigError(f"overflow: {message}")
    if isinstance(spec.head, ProcessReward):
        raise ConfigError("head.source: this model has no step scores; use a token classifier")


def _refuse_absent(device: Device) -> None:
    import torch  # noqa: PLC0415 - not on the planner's side

    if device is Device.CUDA and not torch.cuda.is_available():
        raise UnsupportedConditionError("device cuda: none is here; set verifier.device: cpu")


def _num_labels(model: Any, spec: VerifierSpec) -> int:
    return int(model.config.num_labels) if model_task(spec.head) != "causal_lm" else 0


def _token_limit(model: Any, spec: VerifierSpec) -> TokenLimit:
    own = getattr(model.config, "max_position_embeddings", None)
    if spec.max_tokens is not None and own is not None and spec.max_tokens > own:
        message = f"max_tokens: {spec.max_tokens} is more than the model's context, {own}"
        raise ConfigError(message)
    limit = spec.max_tokens or own
    if limit is None:
        raise ConfigError("max_tokens: this model states no limit; give one")
    return TokenLimit(max_tokens=limit, overflow=spec.overflow)


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
