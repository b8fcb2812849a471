"""What a first, tiny forward shows of a loaded model, since no setting can tell it.

Which attention kernels run (a mask may rule a kernel out), in which dtype activations come out, and
that the position ids given to the model are the ones it would count itself.
"""

from typing import TYPE_CHECKING, Any

from harness.conditions.attention import attention_kernels
from harness.errors import ModelLoadError, UnsupportedConditionError
from harness.records.batching import PaddingSide
from harness.records.document import Record
from harness.verifiers.inputs import first_columns, padded_inputs
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FirstForward", "first_forward"]

NO_KERNEL = "none"
"""In place of a kernel's name: the ones that are switched on refuse such a batch."""


class FirstForward(Record, frozen=True, kw_only=True):
    """Facts that were seen."""

    attention_kernel: str
    """Kernels of a row alone, joined by ``+``."""
    attention_kernel_padded: str
    """Kernels of rows of unequal length, which need a mask."""
    activations_dtype: str
    """Dtype of the last hidden state."""


def first_forward(model: Any, *, padding: int, first_position: int) -> FirstForward:
    """Run `model` on a few tokens under the present switches.

    Raises UnsupportedConditionError when no attention kernel serves it, and ModelLoadError when it
    counts positions otherwise.
    """
    pads = {padding, getattr(model.config, "pad_token_id", None)}  # some models count by it
    token = next(found for found in range(3) if found not in pads)
    short, longer = (_row(token, count) for count in (3, 5))
    probe = _Probe(model, padding, first_position)
    alone, padded = probe.kernels([longer]), probe.kernels([short, longer])
    if probe.hidden is None:
        raise UnsupportedConditionError(f"no attention kernel serves this model: {probe.refusal}")
    probe.check_positions(longer)
    return FirstForward(
        attention_kernel=alone,
        attention_kernel_padded=padded,
        activations_dtype=str(probe.hidden.dtype).removeprefix("torch."),
    )


class _Probe:
    def __init__(self, model: Any, padding: int, first_position: int) -> None:
        self._model, self._padding, self._first_position = model, padding, first_position
        self.hidden: Tensor | None = None
        self.refusal = ""

    def kernels(self, rows: list[EncodedRow]) -> str:
        try:
            with attention_kernels() as kernels:
                self.hidden = self._hidden(self._inputs(rows))
        except RuntimeError as error:
            self.refusal = str(error).partition("\n")[0]
            return NO_KERNEL
        return "+".join(sorted(kernels))

    def check_positions(self, row: EncodedRow) -> None:
        import torch  # noqa: PLC0415 - not on the planner's side

        inputs = self._inputs([row])
        given = self._hidden(inputs)
        del inputs["position_ids"]
        if not torch.equal(given, self._hidden(inputs)):
            kind = type(self._model).__name__
            raise ModelLoadError(f"{kind} counts positions in a way that is not known here")

    def _inputs(self, rows: list[EncodedRow]) -> "dict[str, Tensor]":
        width = max(len(row.token_ids) for row in rows)
        starts = first_columns(rows, width, PaddingSide.RIGHT)
        inputs = padded_inputs(
            rows, starts, width, padding=self._padding, first_position=self._first_position
        )
        return {name: tensor.to(self._model.device) for name, tensor in inputs.items()}

    def _hidden(self, inputs: "dict[str, Tensor]") -> "Tensor":
        import torch  # noqa: PLC0415 - not on the planner's side

        with torch.inference_mode():
            hidden: Tensor = self._model.base_model(**inputs).last_hidden_state
        return hidden


def _row(token: int, num_tokens: int) -> EncodedRow:
    return EncodedRow(token_ids=(token,) * num_tokens, branch_start=1, branch_end=num_tokens)
