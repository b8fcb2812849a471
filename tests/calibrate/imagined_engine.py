"""An engine of a few lines that packs flights into steps, for tests without vLLM.

First come, first served: what runs goes first, each prompt gets what is left of the step's budget.
"""

from collections.abc import Sequence

from harness.conditions.batching import Batch
from harness.conditions.flight import EngineStep, StepSlot

__all__ = ["imagined_steps"]


def imagined_steps(
    batch: Batch, num_tokens: Sequence[int], *, num_reasoning: int = 0, cached: int = 0
) -> tuple[EngineStep, ...]:
    """Return the steps of `batch`; `num_tokens` are all rows' prompts, `cached` a warm prefix."""
    flight = batch.flight
    assert flight is not None
    prompts = [num_tokens[at] for at in batch.rows]
    ends = [length + num_reasoning + flight.extra_tokens for length in prompts]
    arrivals = list(flight.arrivals or (0,) * len(prompts))
    start = [min(cached, length - 1) if flight.is_warm else 0 for length in prompts]
    done, begun, steps = list(start), [False] * len(prompts), []
    number = 0
    while any(have < end for have, end in zip(done, ends, strict=True)):
        if number == flight.preempt_before:
            done = [s if h < e else h for s, h, e in zip(start, done, ends, strict=True)]
        left = flight.token_budget or sum(ends)
        order = sorted(range(len(prompts)), key=lambda at: not begun[at])
        slots = []
        for at in order:
            if arrivals[at] > number or done[at] >= ends[at] or not left:
                continue
            count = min(prompts[at] - done[at], left) if done[at] < prompts[at] else 1
            slots.append(StepSlot(request=at, num_tokens=count, num_computed_tokens=done[at]))
            begun[at], left = True, left - count
        for slot in slots:
            done[slot.request] += slot.num_tokens
        if slots:
            steps.append(EngineStep(slots=tuple(slots)))
        number += 1
    return tuple(steps)
