"""The tokenizer: byte-level BPE, digits one by one, trained on generated problems.

Decides the vocabulary (447 entries: the merges run out before the limit) and the special tokens.
Solutions come out one token a character, which the dense labels rely on.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.train_tiny_verifier.candidates import draw_candidate

__all__ = ["MAX_TOKENS", "SOLUTION", "encode", "input_text", "train_tokenizer"]

MAX_TOKENS = 256
"""Longest input in tokens; the longest generated one has fewer than 100."""

PAD, BOS, EOS, SOLUTION = "<pad>", "<bos>", "<eos>", "<sol>"

_VOCABULARY_LIMIT = 768
_NUM_TEXTS = 6000
_SEED = 5


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer; every call gives the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(_texts(), _trainer())
    wrapper: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = wrapper(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        # Never produced by byte-level text; named so that AutoTokenizer's Qwen2 class does not
        # add an unknown token of its own beyond the last row of the embedding.
        unk_token=PAD,
        additional_special_tokens=[SOLUTION],
        padding_side="right",
        model_max_length=MAX_TOKENS,
    )
    return wrapped


def input_text(context: str, solution: str) -> str:
    """Return the model's input, special tokens written out."""
    return f"{BOS}{context}{SOLUTION}{solution}{EOS}"


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text, adding nothing to it."""
    encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def _trainer() -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=_VOCABULARY_LIMIT,
        special_tokens=[PAD, BOS, EOS, SOLUTION],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _texts() -> Iterator[str]:
    rng = Random(_SEED)  # noqa: S311 - reproducible data, not a secret
    for _ in range(_NUM_TEXTS):
        candidate = draw_candidate(rng)
        yield candidate.context
        yield candidate.text
