"""The network and its loss: a Qwen2 backbone with a reward head and a tied language-model head.

Decides the architecture, the initial weights and how the two losses are weighed. Shape legend:
B rows, T tokens, D hidden size, N labelled positions of the batch.
"""

# ruff: noqa: N803, N806 - tensor names carry shape suffixes

from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn import functional
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

from scripts.train_tiny_verifier.batches import UNLABELLED, Batch
from scripts.train_tiny_verifier.tokenizer import MAX_TOKENS

__all__ = ["Losses", "batch_losses", "build_model", "save_checkpoints"]

_END_WEIGHT = 3.0
"""Weight of the label at `<eos>`, the one position that is scored, against 1 elsewhere."""

_INITIAL_SEED = 0


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Mean losses over one batch, in nats."""

    reward: torch.Tensor
    language: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        """What is minimised: the two count alike."""
        return self.reward + self.language


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForSequenceClassification:
    """Return the untrained network in float32; the global generator is left as it was."""
    maker: Any = Qwen2ForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_INITIAL_SEED)
        model: Qwen2ForSequenceClassification = maker(_config(tokenizer))
    return model


def batch_losses(model: Qwen2ForSequenceClassification, batch: Batch) -> Losses:
    """Run the backbone once and return both losses; products are taken in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden_BTD = model.model(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
        return Losses(
            reward=_reward_loss(model, batch, hidden_BTD),
            language=_language_loss(model, batch, hidden_BTD),
        )


def save_checkpoints(
    model: Qwen2ForSequenceClassification, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write `reward` and `lm` below `directory`, in bfloat16, with equal backbones."""
    maker: Any = Qwen2ForCausalLM
    language_model = maker(model.config)
    language_model.model.load_state_dict(model.model.state_dict())
    language_model.tie_weights()
    networks: dict[str, Any] = {"reward": model, "lm": language_model}
    for name, network in networks.items():
        # Cast in place and saved at once; nothing is scored with the object afterwards.
        network.to(torch.bfloat16).save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)


def _config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    maker: Any = Qwen2Config
    config: Qwen2Config = maker(
        vocab_size=len(tokenizer),
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=512,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        num_labels=1,
        use_sliding_window=False,
        initializer_range=0.02,
    )
    return config


def _reward_loss(
    model: Qwen2ForSequenceClassification, batch: Batch, hidden_BTD: torch.Tensor
) -> torch.Tensor:
    labelled_BT = batch.rewards_BT != UNLABELLED
    logits_N = functional.linear(hidden_BTD[labelled_BT].float(), model.score.weight).squeeze(-1)
    targets_N = batch.rewards_BT[labelled_BT].float()
    end_id: Any = model.config.eos_token_id
    is_end_N = batch.ids_BT[labelled_BT].eq(end_id)
    weights_N = torch.where(is_end_N, _END_WEIGHT, 1.0)
    losses_N = functional.binary_cross_entropy_with_logits(logits_N, targets_N, reduction="none")
    return (losses_N * weights_N).sum() / weights_N.sum()


def _language_loss(
    model: Qwen2ForSequenceClassification, batch: Batch, hidden_BTD: torch.Tensor
) -> torch.Tensor:
    predicted_BT = batch.predicted_BT[:, 1:].bool()
    embedding = model.model.embed_tokens.weight
    logits = functional.linear(hidden_BTD[:, :-1][predicted_BT], embedding)
    return functional.cross_entropy(logits.float(), batch.ids_BT[:, 1:][predicted_BT])
