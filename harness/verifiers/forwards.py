"""One forward of a transformers model, to the logits at the places where rows are read.

The model's own `forward` is called, so that logit scaling and soft-capping are kept. Only a
decoder's classification layer, which transformers would pool by the pad token's id, is applied by
us, at the columns that the head names.

In a forward of a set shape the shape of every product follows from the inputs' shape: not from how
many places are read, nor from where they are.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import UnsupportedConditionError
from harness.verifiers.heads import ModelTask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Forward", "Reads", "forward_of", "pools_first_column"]

Inputs = Mapping[str, "Tensor"]


class Reads(NamedTuple):
    """Places in a padded batch, row after row."""

    rows: list[int]
    """Row of each place, `[reads]`."""
    columns: list[int]
    """Column of each place, `[reads]`."""
    once: bool = False
    """Whether each row is read at one place, by the nature of the head."""
    set_shape: bool = False
    """Whether the forward is of a set shape."""


class _CausalForward:
    """Logits of a causal LM, computed only at the columns that some row reads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, inputs: Inputs, reads: Reads) -> "Tensor":
        import torch  # noqa: PLC0415 - not on the planner's side

        if reads.set_shape and reads.once:
            return self._row_by_row(inputs, reads)
        if not self._keeps or reads.set_shape:
            return self._logits(inputs)[reads.rows, reads.columns]
        kept = sorted(set(reads.columns))
        at = {column: index for index, column in enumerate(kept)}
        columns = torch.tensor(kept, device=self._model.device)
        logits = self._logits(inputs, logits_to_keep=columns)
        return logits[reads.rows, [at[column] for column in reads.columns]]

    def _row_by_row(self, inputs: Inputs, reads: Reads) -> "Tensor":
        """Return the logits at one column a row: the output layer gets all rows, and only those."""
        import torch  # noqa: PLC0415

        columns = torch.zeros(len(inputs["input_ids"]), dtype=torch.long)
        columns[reads.rows] = torch.tensor(reads.columns)
        columns = columns.to(self._model.device)
        rows = torch.arange(len(columns), device=self._model.device)
        hook = self._model.get_output_embeddings().register_forward_pre_hook(
            lambda _layer, args: (args[0][rows, columns].unsqueeze(1), *args[1:]), prepend=True
        )
        try:
            return self._logits(inputs)[reads.rows, 0]
        finally:
            hook.remove()

    def _logits(self, inputs: Inputs, **options: "Tensor") -> "Tensor":
        logits: Tensor = self._model(**inputs, **options, use_cache=False).logits
        return logits


class _DecoderLabels:
    """Labels of a decoder: its classification layer, applied at the columns that are read."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, inputs: Inputs, reads: Reads) -> "Tensor":
        hidden = self._model.base_model(**inputs, use_cache=False).last_hidden_state
        if reads.set_shape:
            everywhere: Tensor = self._model.score(hidden)
            return everywhere[reads.rows, reads.columns]
        labels: Tensor = self._model.score(hidden[reads.rows, reads.columns])
        return labels


class _EncoderLabels:
    """Labels of an encoder that pools by itself, from its first column."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, inputs: Inputs, reads: Reads) -> "Tensor":
        if not bool(inputs["attention_mask"][:, 0].all()):
            raise UnsupportedConditionError("this model pools column 0: set batching.side: right")
        labels: Tensor = self._model(**inputs).logits
        return labels[reads.rows]


class _TokenLabels:
    """Labels of a token classifier at the columns that are read."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, inputs: Inputs, reads: Reads) -> "Tensor":
        labels: Tensor = self._model(**inputs).logits[reads.rows, reads.columns]
        return labels


Forward = _CausalForward | _DecoderLabels | _EncoderLabels | _TokenLabels
"""Called with a model's inputs and places; returns the logits there, ``[reads, classes]``."""


def forward_of(model: Any, task: ModelTask) -> Forward:
    """Return the forward of a model for one task."""
    if task == "causal_lm":
        return _CausalForward(model)
    if task == "token_classification":
        return _TokenLabels(model)
    return _DecoderLabels(model) if hasattr(model, "score") else _EncoderLabels(model)


def pools_first_column(forward: Forward) -> bool:
    """Return whether rows must start in column 0 with the token that the model pools."""
    return isinstance(forward, _EncoderLabels)
