"""Which batches are run, and what their scores show: pure, from scores to findings.

A few probe rows are scored over and over, each in turn as the probe of the same forwards; only its
surroundings change, one at a time. Settings are grouped by the bits of all probes' scores, so that
a class is a set of settings between which nothing moved, and the first size of a new class is a
boundary.
"""

import random
from collections.abc import Iterator, Sequence
from math import isfinite, nan

from harness.records.batching import PaddingSide
from harness.records.document import Record

__all__ = ["NUM_PROBES", "Finding", "Trial", "finding", "make_rows", "trials"]

ROWS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)
"""Batch sizes, dense around the tiles at which matrix kernels are chosen anew."""
LENGTH, WIDTH = 93, 128
NUM_PROBES = 3
WIDTHS = (93, 94, 96, 100, 104, 112, 127, 128, 129, 160, 192, 256, 257)
REFERENCE_ROWS = 16
LANES = ((16, 128), (8, 256))
"""Fixed shapes: rows, width."""


class Trial(Record, frozen=True, kw_only=True):
    """One forward: the probe among companions."""

    axis: str
    """What varies in the group of trials it belongs to."""
    setting: str
    """Its value."""
    rows: tuple[int, ...]
    """In slot order: 0 is the probe, n the n-th companion, -1 an inert row of one token."""
    width: int
    """Padded width, tokens."""
    side: PaddingSide
    """Side of the padding."""


class Finding(Record, frozen=True, kw_only=True):
    """What one axis did to the probes' scores."""

    axis: str
    """The axis."""
    classes: tuple[tuple[str, ...], ...]
    """Settings with equal bits, in the order they were first seen."""
    max_movement: float
    """Largest range of a probe's score over all settings, in raw logits; NaN when a score is."""
    num_trials: int
    """Forwards compared."""


def make_rows(num_rows: int, vocabulary: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return token ids: the probes first, then companions of mixed lengths."""
    draw = random.Random(seed)  # noqa: S311 - a seeded choice, no secret
    lengths = [LENGTH] * NUM_PROBES
    lengths += [draw.randrange(16, LENGTH + 1) for _ in range(num_rows)]
    return [tuple(draw.randrange(3, vocabulary) for _ in range(n)) for n in lengths]


def trials(max_rows: int) -> Iterator[Trial]:
    """Yield the forwards; `max_rows` bounds the batches."""
    right = PaddingSide.RIGHT
    for size in (size for size in ROWS if size <= max_rows):
        yield _trial("num_rows", str(size), range(size), WIDTH, right)
    for width in WIDTHS:
        yield _trial("padded_width", str(width), range(REFERENCE_ROWS), width, right)
    for side in PaddingSide:
        yield _trial("padding_side", side, range(REFERENCE_ROWS), WIDTH, side)
    for slot in (0, 1, REFERENCE_ROWS // 2, REFERENCE_ROWS - 1):
        order = [*range(1, REFERENCE_ROWS)]
        order.insert(slot, 0)
        yield _trial("row_position", str(slot), order, WIDTH, right)
    for turn in range(3):
        others = range(1 + turn * 5, turn * 5 + REFERENCE_ROWS)
        yield _trial("companions", f"others {turn}", [0, *others], WIDTH, right)
    for turn in range(3):
        yield _trial("repeat", f"time {turn}", range(REFERENCE_ROWS), WIDTH, right)
    for rows, width in LANES:
        for filled in (1, rows // 2, rows):
            order = [*range(filled), *[-1] * (rows - filled)]
            yield _trial(f"lane {rows}x{width}", f"{filled} filled", order, width, right)


def finding(axis: str, settings: Sequence[str], scores: Sequence[Sequence[float]]) -> Finding:
    """Return what the scores of one axis show, `[settings, probes]`; bits decide the classes."""
    classes: dict[tuple[str, ...], list[str]] = {}
    for setting, of_probes in zip(settings, scores, strict=True):
        classes.setdefault(tuple(score.hex() for score in of_probes), []).append(setting)
    finite = all(isfinite(score) for of_probes in scores for score in of_probes)
    return Finding(
        axis=axis,
        classes=tuple(map(tuple, classes.values())),
        max_movement=max(map(_range, zip(*scores, strict=True))) if finite else nan,
        num_trials=len(scores),
    )


def _range(scores: Sequence[float]) -> float:
    return max(scores) - min(scores)


def _trial(axis: str, setting: str, rows: Sequence[int], width: int, side: PaddingSide) -> Trial:
    return Trial(axis=axis, setting=setting, rows=tuple(rows), width=width, side=side)
