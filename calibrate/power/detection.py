"""Counts: how often a rule calls a fault, and how many replays the drift alarm needs.

Rules kept here:

* every rate stands with its exact 95 % interval;
* a decision counts once in a stream, since one that leaves the floor does so each time;
* a stream in which nothing was raised has no delay: it counts as longer than any that has one.

Orders shuffle the same verdicts. They show what the order does to a delay; they are not as many
independent streams, so an interval over them says nothing about other decisions.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from calibrate.statistics import Rate, rate_interval
from harness.judge.alarm import DriftAlarm, observe
from harness.records.document import Record

__all__ = [
    "CONFIDENCE",
    "Delay",
    "Until",
    "delay_over",
    "first_fault",
    "rate",
    "rate_if_any",
    "until_alarm",
]

CONFIDENCE = 0.95
"""Of every interval."""

Until = Callable[[tuple[bool, ...]], int | None]
"""From a stream of exceedances to the number of the replay at which it was raised, from 1."""


class Delay(Record, frozen=True, kw_only=True):
    """How many replays it takes until something is raised, over orders of the same replays."""

    num_streams: int
    """Orders."""
    num_raised: int
    """Orders in which it was raised at all."""
    median: int | None
    """Replays in half of the orders, at most; None when it is raised in fewer."""
    most: int | None
    """Replays in 95 % of the orders, at most; None when it is raised in fewer."""
    longest: int | None
    """Replays in the slowest order; None when there is one in which it is never raised."""


def rate(flags: Iterable[bool]) -> Rate:
    """Return how often `flags` are set; raise InsufficientEvidenceError when there are none."""
    known = tuple(flags)
    return rate_interval(sum(known), len(known), CONFIDENCE)


def rate_if_any(flags: Iterable[bool]) -> Rate | None:
    """Return how often `flags` are set; None when there are none."""
    known = tuple(flags)
    return rate(known) if known else None


def delay_over(exceeded: Sequence[bool], num_orders: int, seed: int, until: Until) -> Delay:
    """Return how long `until` takes over `num_orders` shuffles of `exceeded`."""
    raised = cache(until)
    generator = random.Random(seed)  # noqa: S311 - seeded permutations, no secret
    found = sorted(
        math.inf if (after := raised(order)) is None else after
        for order in _orders(exceeded, num_orders, generator)
    )
    return Delay(
        num_streams=num_orders,
        num_raised=sum(map(math.isfinite, found)),
        median=_within(found, 0.5),
        most=_within(found, 0.95),
        longest=_within(found, 1.0),
    )


def until_alarm(exceedance_rate: float, alpha: float) -> Until:
    """Return a watch that says at which replay the drift alarm is raised."""

    def watch(exceeded: tuple[bool, ...]) -> int | None:
        alarm = DriftAlarm(rate=exceedance_rate, alpha=alpha)
        for one in exceeded:
            alarm = observe(alarm, one)
            if alarm.raised:
                break
        return alarm.alarmed_at

    return watch


def first_fault(faults: tuple[bool, ...]) -> int | None:
    """Return at which replay the first fault is called."""
    return faults.index(True) + 1 if True in faults else None


def _orders(
    exceeded: Sequence[bool], num_orders: int, generator: random.Random
) -> Iterable[tuple[bool, ...]]:
    for _ in range(num_orders):
        yield tuple(generator.sample(exceeded, len(exceeded)))


def _within(sorted_delays: Sequence[float], share: float) -> int | None:
    """Return the smallest delay that `share` of the streams do not pass."""
    found = sorted_delays[math.ceil(share * len(sorted_delays)) - 1]
    return int(found) if math.isfinite(found) else None
