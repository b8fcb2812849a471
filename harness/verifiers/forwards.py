"""One forward of a transformers model, to the logits at the columns that the rows are read at.

The model's own `forward` is called, so that logit scaling and soft-capping are kept. Only a
decoder's classification layer, which transformers would pool by the pad token's id, is applied by
us, at the columns that the head names.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import UnsupportedConditionError
from harness.verifiers.heads import ModelTask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Forward", "forward_of"]


class _CausalForward:
    """Logits of a causal LM, computed only at the columns that some row reads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self, inputs: Mapping[str, "Tensor"], columns: Sequence[Sequence[int]]
    ) -> list["Tensor"]:
        import torch  # noqa: PLC0415 - not on the planner's side

        wanted = sorted({column for row in columns for column in row})
        if not self._keeps:
            wanted = list(range(inputs["input_ids"].shape[1]))
        keep = {"logits_to_keep": torch.tensor(wanted, device=self._model.device)}
        logits = self._model(**inputs, **(keep if self._keeps else {}), use_cache=False).logits
        at = {column: index for index, column in enumerate(wanted)}
        return [logits[row, [at[c] for c in read]] for row, read in enumerate(columns)]


class _DecoderLabels:
    """Labels of a decoder: its classification layer, applied at the columns that are read."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(
        self, inputs: Mapping[str, "Tensor"], columns: Sequence[Sequence[int]]
    ) -> list["Tensor"]:
        import torch  # noqa: PLC0415 - not on the planner's side

        hidden = self._model.base_model(**inputs, use_cache=False).last_hidden_state
        rows = [row for row, read in enumerate(columns) for _ in read]
        flat = [column for read in columns for column in read]
        logits = self._model.score(hidden[torch.tensor(rows), torch.tensor(flat)])
        return list(logits.split([len(read) for read in columns]))


class _EncoderLabels:
    """Labels of an encoder that pools by itself, from its first column: right padding only."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(
        self, inputs: Mapping[str, "Tensor"], columns: Sequence[Sequence[int]]
    ) -> list["Tensor"]:
        if not bool(inputs["attention_mask"][:, 0].all()):
            raise UnsupportedConditionError("this model pools column 0: use right padding")
        logits = self._model(**inputs).logits
        if any(len(read) > 1 for read in columns):
            raise UnsupportedConditionError("this model has no step scores; use a token classifier")
        return list(logits.split(1))


class _TokenLabels:
    """Labels of a token classifier at the columns that are read."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(
        self, inputs: Mapping[str, "Tensor"], columns: Sequence[Sequence[int]]
    ) -> list["Tensor"]:
        logits = self._model(**inputs).logits
        return [logits[row, list(read)] for row, read in enumerate(columns)]


Forward = _CausalForward | _DecoderLabels | _EncoderLabels | _TokenLabels


def forward_of(model: Any, task: ModelTask) -> Forward:
    """Return the forward of a model for one task."""
    if task == "causal_lm":
        return _CausalForward(model)
    if task == "token_classification":
        return _TokenLabels(model)
    return _DecoderLabels(model) if hasattr(model, "score") else _EncoderLabels(model)
