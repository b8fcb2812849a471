"""The training loop: AdamW under a budget of CPU seconds.

Decides the schedules (learning rate, share of drills), both functions of the share of the budget
that is spent. Knows nothing of files or of the terminal.
"""

import math
import time
from collections.abc import Callable, Iterator

import msgspec
import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForSequenceClassification

from scripts.train_tiny_verifier.batches import BatchStream
from scripts.train_tiny_verifier.model import batch_losses

__all__ = ["StepReport", "TrainingReport", "train"]

_BATCH_SIZE = 32
_STREAM_SEED = 1
_PEAK_LEARNING_RATE = 2e-3
_WARM_UP_STEPS = 150
_LAST_RATE_SHARE = 0.02
_WEIGHT_DECAY = 0.05
_LARGEST_GRADIENT_NORM = 1.0
_FIRST_DRILL_SHARE = 0.6
_LAST_DRILL_SHARE = 0.1
_DRILLS_END = 0.6
"""Share of the budget by which drills would fade out, but for the last share kept."""
_SMOOTHING = 0.98


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where training stands after one step; losses are smoothed, in nats."""

    step: int
    spent_share: float
    """Of the budget, 0..1 (the last step may pass 1)."""
    reward_loss: float
    language_loss: float


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run did."""

    num_steps: int
    num_tokens: int
    cpu_seconds: float
    wall_seconds: float
    first: StepReport
    last: StepReport


def train(
    model: Qwen2ForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    *,
    cpu_seconds: float,
    on_step: Callable[[StepReport], None] = lambda _: None,
) -> TrainingReport:
    """Train `model` in place for `cpu_seconds` of this process (at least one step)."""
    cpu_start, wall_start = time.process_time(), time.perf_counter()
    stream = BatchStream(tokenizer, batch_size=_BATCH_SIZE, seed=_STREAM_SEED)
    optimizer, reports, num_tokens = _optimizer(model), list[StepReport](), 0
    model.train()
    for spent_share in _budget(cpu_seconds):
        batch = stream.take(drill_share=drill_share(spent_share))
        num_tokens += batch.num_tokens
        _set_rate(optimizer, learning_rate(len(reports), spent_share))
        losses = batch_losses(model, batch)
        losses.total.backward()  # type: ignore[no-untyped-call]
        _apply(model, optimizer)
        previous = reports[-1] if reports else None
        reports.append(_smooth(previous, losses.reward.item(), losses.language.item(), spent_share))
        on_step(reports[-1])
    return TrainingReport(
        num_steps=len(reports),
        num_tokens=num_tokens,
        cpu_seconds=time.process_time() - cpu_start,
        wall_seconds=time.perf_counter() - wall_start,
        first=reports[0],
        last=reports[-1],
    )


def learning_rate(step: int, spent_share: float) -> float:
    """Return a linear warm-up in steps times a cosine decay in budget spent."""
    warm_up = min(1.0, (step + 1) / _WARM_UP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, spent_share)))
    return _PEAK_LEARNING_RATE * warm_up * (_LAST_RATE_SHARE + (1 - _LAST_RATE_SHARE) * cosine)


def drill_share(spent_share: float) -> float:
    """Return the share of drills to draw: many at first, a few to the end."""
    return max(_LAST_DRILL_SHARE, _FIRST_DRILL_SHARE * (1 - spent_share / _DRILLS_END))


def _budget(cpu_seconds: float) -> Iterator[float]:
    """Yield the share of the budget that is spent, from 0, until all of it is."""
    start, spent_share = time.process_time(), 0.0
    while spent_share < 1:
        yield spent_share
        spent_share = (time.process_time() - start) / cpu_seconds


def _optimizer(model: Qwen2ForSequenceClassification) -> torch.optim.AdamW:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": _WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=_PEAK_LEARNING_RATE, betas=(0.9, 0.98), fused=True)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _apply(model: Qwen2ForSequenceClassification, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _smooth(
    previous: StepReport | None, reward: float, language: float, spent_share: float
) -> StepReport:
    if previous is None:
        return StepReport(
            step=1, spent_share=spent_share, reward_loss=reward, language_loss=language
        )
    fresh = 1 - _SMOOTHING
    return StepReport(
        step=previous.step + 1,
        spent_share=spent_share,
        reward_loss=_SMOOTHING * previous.reward_loss + fresh * reward,
        language_loss=_SMOOTHING * previous.language_loss + fresh * language,
    )
