"""Training batches: token ids with a target for both heads at each position.

Decides what is learnt where. The reward head learns at every character of a solution whether the
line is right so far, at the newline whether the line is right, at `<eos>` whether all of it is. The
language-model head learns right solutions only, and of a drill only the results of right lines.

Batches of similar length are cut from a larger draw and shuffled. Shape legend: B rows, T tokens.
"""

# ruff: noqa: N815 - tensor names carry shape suffixes

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import torch
from transformers import PreTrainedTokenizerFast

from scripts.train_tiny_verifier.candidates import Candidate, draw_candidate, draw_drill
from scripts.train_tiny_verifier.tokenizer import SOLUTION, encode, input_text

__all__ = ["UNLABELLED", "Batch", "BatchStream", "Example", "encode_candidates"]

UNLABELLED = -1
"""Reward target of a position that teaches the reward head nothing."""

_BATCHES_PER_DRAW = 16


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One encoded candidate; the three lists have equal length, [T]."""

    ids: list[int]
    rewards: list[int]
    """1 right, 0 wrong, UNLABELLED."""
    predicted: list[int]
    """1 where the language-model head must predict this token."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Right-padded examples."""

    ids_BT: torch.Tensor
    rewards_BT: torch.Tensor
    predicted_BT: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.ids_BT.numel()


class BatchStream:
    """An endless stream of batches, fixed by its seed and the drill shares asked for."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, batch_size: int, seed: int) -> None:
        """Start a stream; nothing is drawn yet."""
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._rng = Random(seed)  # noqa: S311 - reproducible data, not a secret
        self._waiting: list[list[Example]] = []

    def take(self, *, drill_share: float) -> Batch:
        """Return the next batch; `drill_share` counts when the stream draws anew."""
        if not self._waiting:
            self._waiting = self._draw(drill_share)
        return self._collate(self._waiting.pop())

    def _draw(self, drill_share: float) -> list[list[Example]]:
        rng, size = self._rng, self._batch_size
        candidates = [
            draw_drill(rng) if rng.random() < drill_share else draw_candidate(rng)
            for _ in range(size * _BATCHES_PER_DRAW)
        ]
        examples = encode_candidates(self._tokenizer, candidates)
        examples.sort(key=lambda example: len(example.ids))
        batches = [examples[at : at + size] for at in range(0, len(examples), size)]
        rng.shuffle(batches)
        return batches

    def _collate(self, examples: Sequence[Example]) -> Batch:
        return Batch(
            ids_BT=_pad([item.ids for item in examples], self._tokenizer.pad_token_id),
            rewards_BT=_pad([item.rewards for item in examples], UNLABELLED),
            predicted_BT=_pad([item.predicted for item in examples], 0),
        )


def encode_candidates(
    tokenizer: PreTrainedTokenizerFast, candidates: Sequence[Candidate]
) -> list[Example]:
    """Encode candidates with their targets.

    Raises ValueError where a solution is not one token a character: the targets would be shifted.
    """
    solution_id: Any = tokenizer.convert_tokens_to_ids(SOLUTION)
    texts = [input_text(item.context, item.text) for item in candidates]
    return [
        _label(candidate, ids, ids.index(solution_id) + 1)
        for candidate, ids in zip(candidates, encode(tokenizer, texts), strict=True)
    ]


def _label(candidate: Candidate, ids: list[int], begin: int) -> Example:
    rewards, predicted = _solution_targets(candidate)
    if begin + len(rewards) + 1 != len(ids):
        num_tokens = len(ids) - begin - 1
        raise ValueError(f"not one token a character: {candidate.text!r} has {num_tokens} tokens")
    last_reward, last_predicted = _end_targets(candidate)
    return Example(
        ids=ids,
        rewards=[UNLABELLED] * begin + rewards + [last_reward],
        predicted=[0] * begin + predicted + [last_predicted],
    )


def _end_targets(candidate: Candidate) -> tuple[int, int]:
    if candidate.is_drill:
        return UNLABELLED, 0
    return int(candidate.is_right), int(candidate.is_right)


def _solution_targets(candidate: Candidate) -> tuple[list[int], list[int]]:
    rewards: list[int] = []
    predicted: list[int] = []
    lines = candidate.text.splitlines(keepends=True)
    for line, true_line in zip(lines, candidate.true_lines, strict=True):
        rewards += _line_rewards(line, true_line, is_drill=candidate.is_drill)
        predicted += _line_predicted(line, true_line, candidate)
    return rewards, predicted


def _line_rewards(line: str, true_line: str, *, is_drill: bool) -> list[int]:
    """Say for each character whether the line is right so far; a drill states its left side."""
    full_line = true_line + "\n"
    targets = [int(full_line.startswith(line[: end + 1])) for end in range(len(line))]
    if is_drill:
        given = line.find("=") + 1
        targets[:given] = [UNLABELLED] * given
    return targets


def _line_predicted(line: str, true_line: str, candidate: Candidate) -> list[int]:
    if not candidate.is_drill:
        return [int(candidate.is_right)] * len(line)
    given = line.find("=") + 1
    right = int(line.rstrip("\n") == true_line)
    return [0] * given + [right] * (len(line) - given)


def _pad(rows: list[list[int]], fill: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])
