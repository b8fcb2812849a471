"""Whether a model's tokens see only what stands before them, by trying it.

A class name or a config's flag is a promise; here a later token is changed and every bit of the
earlier ones is compared, at one shape. A model that is not causal, or not the same twice, moves.

What it does not know: a model that looks ahead only in rows longer than the ones tried.
"""

from typing import TYPE_CHECKING, Any

from harness.verifiers.inputs import padded_inputs
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["is_causal"]

KEPT, CHANGED = 8, 8


def is_causal(model: Any, *, padding: int, first_position: int) -> bool:
    """Return whether no bit of the first tokens' last hidden state follows from later tokens."""
    import torch  # noqa: PLC0415 - not on the planner's side

    def hidden(token: int) -> "Tensor":
        tokens = (2,) * KEPT + (token,) * CHANGED
        row = EncodedRow(token_ids=tokens, branch_start=0, branch_end=1)
        inputs = padded_inputs(
            [row], [0], len(tokens), padding=padding, first_position=first_position
        )
        on_device = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        state: Tensor = model.base_model(**on_device).last_hidden_state[0]
        return state

    with torch.inference_mode():
        one, other = hidden(0), hidden(1)
    return torch.equal(one[:KEPT], other[:KEPT]) and not torch.equal(one, other)
