"""The transformers backend: one model, loaded fresh in one precision, scored batch by batch.

Rules kept here:

* position ids follow the attention mask, so they are the same for either padding side;
* the pooled position is the last real token by count, never by the pad token's id;
* no key-value cache, no dropout, no cast of a loaded model: another precision is another load;
* the model's own `forward` is called, so that logit scaling and soft-capping are kept; only a
  classification layer, which transformers would pool by the pad id, is applied by us.

Whether a kernel treats its rows independently is not known here; calibration measures it.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from harness import machine
from harness.codec import digest
from harness.conditions.condition import Condition, requested_switches, resolved_switches
from harness.conditions.precision import torch_dtype_name
from harness.conditions.reduction_order import attention_kernels, attn_implementation
from harness.conditions.split_k import split_k
from harness.conditions.kernel_environment import kernel_environment
from harness.conditions.switches import applied
from harness.errors import ConfigError
from harness.records.batching import PaddingSide
from harness.records.build import Build
from harness.records.invocation import PrecisionMode, ReductionOrder
from harness.records.verifier import VerifierSpec
from harness.verifiers.checkpoint import find_checkpoint, loaded_digest, weights_digest
from harness.verifiers.forwards import forward_of
from harness.verifiers.heads import model_task, score_head
from harness.verifiers.loading import install_head, load_model, load_tokenizer
from harness.verifiers.prompt import TokenLimit, encode_rows, plain_template
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText

if TYPE_CHECKING:
    from torch import Tensor

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
        spec, condition = self._spec, self._condition
        self._requested = requested_switches(condition, spec.device)
        stack.enter_context(applied(self._requested.precision | self._requested.order))
        self._checkpoint = find_checkpoint(spec.model, spec.revision)
        self._tokenizer = load_tokenizer(self._checkpoint, spec)
        self._model = load_model(
            self._checkpoint,
            spec,
            torch_dtype_name(condition.precision),
            attn_implementation(condition.reduction_order.attention),
        )
        self._head_module = install_head(self._model, self._checkpoint, spec)
        if condition.reduction_order.split_k:
            stack.enter_context(split_k(self._model, condition.reduction_order.split_k))
        self._template = plain_template(spec.prompt, self._tokenizer)
        self._limit = _token_limit(self._model, spec)
        self._head = score_head(spec.head, self._tokenizer, _num_labels(self._model, spec))
        self._forward = forward_of(self._model, model_task(spec.head))
        self._pad = _pad_id(self._tokenizer, self._model)
        self._offset = _position_offset(self._model)
        self._kernels = self._observe_attention()

    def facts(self) -> Build:
        """Return the build."""
        spec, device = self._spec, machine.device_facts(self._spec.device)
        return Build(
            weights_digest=weights_digest(self._checkpoint),
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
        """Return the condition as it turned out."""
        condition, switches = self._condition, resolved_switches(self._spec.device)
        dtypes = {
            "weights_dtype": _dtype_name(next(self._model.parameters())),
            "activations_dtype": _dtype_name(next(self._model.parameters())),
            "head_dtype": _dtype_name(self._head_module.weight),
        }
        kernels = {"attention_kernel": "+".join(sorted(self._kernels))}
        implementation = {"attn_implementation": self._model.config._attn_implementation}  # noqa: SLF001 - read back
        return ResolvedCondition(
            precision_mode=PrecisionMode(
                name=condition.precision,
                requested=self._requested.precision,
                resolved=switches.precision | dtypes,
            ),
            reduction_order=ReductionOrder(
                name=condition.reduction_order.label,
                requested=self._requested.order,
                resolved=switches.order | kernels | implementation,
            ),
            loaded_digest=loaded_digest(self._model),
        )

    def encode(self, texts: Sequence[RowText]) -> list[EncodedRow]:
        """Turn texts into rows."""
        rows = encode_rows(self._template, texts, self._tokenizer, self._limit)
        for row in rows:
            self._head.positions(row)  # refuses a row that the head cannot read
        return rows

    def score(
        self, rows: Sequence[EncodedRow], width: int, side: PaddingSide | None
    ) -> list[float]:
        """Run one forward over `rows`, padded to `width` on `side`; one float64 score a row."""
        import torch  # noqa: PLC0415 - not on the planner's side

        starts = [width - len(row.token_ids) if side is PaddingSide.LEFT else 0 for row in rows]
        positions = [self._head.positions(row) for row in rows]
        columns = [
            [start + at for at in read] for start, read in zip(starts, positions, strict=True)
        ]
        with torch.inference_mode():
            logits = self._forward(self._inputs(rows, width, starts), columns)
            return [
                self._head.score(row, read.double()) for row, read in zip(rows, logits, strict=True)
            ]

    def close(self) -> None:
        """Free the model and restore every switch."""
        self._undo.close()
        del self._model, self._head_module, self._forward

    def _inputs(
        self, rows: Sequence[EncodedRow], width: int, starts: Sequence[int]
    ) -> dict[str, "Tensor"]:
        import torch  # noqa: PLC0415 - not on the planner's side

        ids = torch.full((len(rows), width), self._pad)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for at, (row, start) in enumerate(zip(rows, starts, strict=True)):
            end = start + len(row.token_ids)
            ids[at, start:end] = torch.tensor(row.token_ids)
            mask[at, start:end] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0) + self._offset
        device = self._model.device
        return {
            "input_ids": ids.to(device),
            "attention_mask": mask.to(device),
            "position_ids": positions.to(device),
        }

    def _observe_attention(self) -> set[str]:
        """Run two short rows of unequal length and see which attention kernels are called."""
        import torch  # noqa: PLC0415 - not on the planner's side

        rows = [
            EncodedRow(token_ids=(self._pad,) * count, branch_start=1, branch_end=count)
            for count in (2, 3)
        ]
        with attention_kernels() as kernels, torch.inference_mode():
            self._forward(self._inputs(rows, 3, [0, 0]), [[1], [2]])
        return kernels


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


def _pad_id(tokenizer: Any, model: Any) -> int:
    """Return any valid id: padding is masked, and nothing is found by its id."""
    candidates = (tokenizer.pad_token_id, model.config.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(found) for found in candidates if found is not None)


def _position_offset(model: Any) -> int:
    """Return the first position id: 0, but padding index + 1 for the RoBERTa family."""
    embeddings = getattr(model.base_model, "embeddings", None)
    if hasattr(embeddings, "create_position_ids_from_input_ids"):
        return int(embeddings.padding_idx) + 1
    return 0


def _dtype_name(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")
