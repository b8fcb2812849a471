"""A small decoder with a score head, and the same with a fault: the code that checkpoints carry.

Copied into each checkpoint and loaded from there by transformers, so it imports nothing of ours.
Each fault is one that real serving code has had.
"""

# ruff: noqa: ARG002, N801 - a fault takes what it does not use, and names what it replaces
# mypy: disable-error-code="misc, no-any-return, no-untyped-call, override"

import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForSequenceClassification, LlamaModel


class Backbone(LlamaModel):
    """Llama with learnt positions on top: unlike rotary ones they are not indifferent to a shift.

    A fault changes what goes in, or what comes out.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> Any:
        ids = self.positions(input_ids, position_ids)
        out = super().forward(
            inputs_embeds=self.embed_tokens(input_ids) + self.places(ids),
            attention_mask=self.mask(attention_mask),
            position_ids=ids,
            **options,
        )
        out.last_hidden_state = self.hidden(out.last_hidden_state, input_ids)
        return out

    def positions(self, input_ids: Tensor, given: Tensor | None) -> Tensor:
        return columns(input_ids) if given is None else given

    def mask(self, given: Tensor) -> Tensor:
        return given

    def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
        return hidden


def columns(input_ids: Tensor) -> Tensor:
    return torch.arange(input_ids.shape[1]).expand_as(input_ids)


class Sound(LlamaForSequenceClassification):
    """No fault."""

    backbone: type[Backbone] = Backbone
    head: type[nn.Linear] = nn.Linear

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.backbone(config)
        self.score = self.head(config.hidden_size, config.num_labels, bias=False)
        self.post_init()


# Faults of a backbone.


class ColumnPositions(Sound):
    """Positions count columns, so that left padding moves them."""

    class backbone(Backbone):
        def positions(self, input_ids: Tensor, given: Tensor | None) -> Tensor:
            return columns(input_ids)


class PooledByPad(Sound):
    """The row is pooled before its first pad token, found by the id."""

    class backbone(Backbone):
        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            padding = int(self.config.pad_token_id or 0)
            ends = torch.eq(input_ids, padding).int().argmax(-1) - 1
            return hidden[torch.arange(len(ends)), ends][:, None].expand_as(hidden)


class SkippedMask(Sound):
    """No mask, not even the causal one, where all rows have one length."""

    class backbone(Backbone):
        def mask(self, given: Tensor) -> Tensor:
            if not bool(given.all()):
                return given
            rows, width = given.shape
            return torch.zeros(rows, 1, width, width, dtype=self.dtype)


class FullyMasked(Sound):
    """Minus infinity wherever nothing is to be seen: a padding's own row then sees nothing."""

    class backbone(Backbone):
        def __init__(self, config: Any) -> None:
            config._attn_implementation = "eager"
            super().__init__(config)

        def mask(self, given: Tensor) -> Tensor:
            width = given.shape[1]
            seen = torch.ones(width, width).tril().bool() & given[:, None, None].bool()
            hidden = torch.full(seen.shape, -torch.inf, dtype=self.dtype)
            return hidden.masked_fill(seen, 0)


class SharedScale(Sound):
    """Activations are rounded to eight bits, with one scale for the batch."""

    class backbone(Backbone):
        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            scale = hidden.abs().amax() / 127
            return (hidden / scale).round() * scale


class OwnScale(Sound):
    """No fault: eight bits, with a scale for each token."""

    class backbone(Backbone):
        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            scale = hidden.abs().amax(-1, keepdim=True) / 127
            return (hidden / scale).round() * scale


class StaleBuffer(Sound):
    """A batch of the same shape as the one before it gets that one's output."""

    class backbone(Backbone):
        buffer: Tensor | None = None

        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            stale, self.buffer = self.buffer, hidden
            return hidden if stale is None or stale.shape != hidden.shape else stale


class Capacity(Sound):
    """Four experts, each with room for the first fifth of the batch's tokens; the rest is lost."""

    class backbone(Backbone):
        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            flat = hidden.flatten(0, 1)
            chosen = nn.functional.one_hot(flat[:, :4].argmax(-1), 4)
            place = (chosen.cumsum(0) * chosen).sum(-1)
            fits = place <= 0.2 * len(flat)
            return torch.where(fits[:, None], flat, flat.flip(-1)).view_as(hidden)


class SecretAutocast(Sound):
    """Computes in bfloat16 whatever is asked for."""

    class backbone(Backbone):
        def forward(self, *given: Any, **options: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(*given, **options)


class ClampedInBfloat16(Sound):
    """Activations are clamped, in bfloat16 alone."""

    class backbone(Backbone):
        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            return hidden.clamp(-0.5, 0.5) if hidden.dtype == torch.bfloat16 else hidden


class HalvesOnly(Sound):
    """No fault: code without a float64 kernel, as much of what serves has none."""

    class backbone(Backbone):
        def hidden(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
            if hidden.dtype == torch.float64:
                raise RuntimeError("no float64 kernel")
            return hidden


# Faults of a head.


class NormalisedOverBatch(Sound):
    """A score is told relative to the batch's."""

    class head(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            scores = super().forward(hidden)
            return scores - scores.mean(0)


class ConstantHead(Sound):
    """Every row has one score."""

    class head(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            return super().forward(torch.ones_like(hidden))


class FreshHead(Sound):
    """The head is drawn when it is first used, beside the weights that were loaded."""

    class head(nn.Linear):
        drawn: Tensor | None = None

        def forward(self, hidden: Tensor) -> Tensor:
            if self.drawn is None:
                generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "big"))
                self.drawn = torch.randn(self.weight.shape, generator=generator)
            return nn.functional.linear(hidden, self.drawn.to(hidden.dtype))


# Faults of a load.


class FreshWeights(Sound):
    """The head's own weights are drawn anew once the model is whole."""

    def score_drawn(self) -> None:
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "big"))
        with torch.no_grad():
            self.score.weight.copy_(torch.randn(self.score.weight.shape, generator=generator))

    def to(self, *given: Any, **options: Any) -> Any:
        self.score_drawn()
        return super().to(*given, **options)


class CastAway(Sound):
    """Whatever was asked for, it ends in bfloat16: both arms are one path."""

    def to(self, *given: Any, **options: Any) -> Any:
        return super().to(*given, **options).bfloat16()
