"""Lanes in records: what is refused, and what a tolerance of lanes speaks for."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from harness.records import CoveredBatches, Lane, Lanes, PaddingSide, Step
from harness.records.batching import Batching
from tests.examples import a_membership, a_slot, a_step

NARROW, WIDE = Lane(rows=8, width=16), Lane(rows=8, width=32)
COVERED = CoveredBatches(
    mode="lanes", max_rows=8, max_width=32, sides=(PaddingSide.RIGHT,), lanes=(NARROW, WIDE)
)

BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "no lanes": (lambda: Lanes(lanes=()), "at least one"),
    "a lane twice": (lambda: Lanes(lanes=(WIDE, WIDE)), "found 32 after 32"),
    "lanes that narrow": (lambda: Lanes(lanes=(WIDE, NARROW)), "found 16 after 32"),
    "no rows": (lambda: Lane(rows=0, width=16), "rows must be at least 1"),
    "no room for padding": (lambda: Lane(rows=1, width=1), "at least 2 tokens wide"),
    "no real rows": (lambda: Lanes(lanes=(WIDE,), max_rows=0), "max_rows must be at least 1"),
    "fewer rows than slots": (lambda: a_step(padded_rows=3), "3 is less than 4 slots"),
    "a set shape without a width": (
        lambda: a_step(padded_rows=8, padded_width=None),
        "found width None and a row of 12",
    ),
    "a row that fills the shape": (
        lambda: a_step(padded_rows=8, padded_width=12),
        "found width 12 and a row of 12",
    ),
}


@pytest.mark.parametrize(("make", "why"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_a_rule_is_never_made(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_lanes_come_back_as_they_were_written() -> None:
    batching = Lanes(lanes=(NARROW, WIDE), side=PaddingSide.LEFT, max_rows=3)
    assert msgspec.json.decode(msgspec.json.encode(batching), type=Batching) == batching


def test_inert_rows_count_as_rows() -> None:
    assert a_membership().max_rows == 4
    assert a_membership(steps=(a_step(), a_step(padded_rows=8))).max_rows == 8


def a_lane_step(**changes: Any) -> Step:
    return replace(a_step(padded_rows=8), **changes)


LONG = a_slot("a", num_tokens=16)
STEPS: dict[str, tuple[Step, bool]] = {
    "in the narrow lane": (a_lane_step(), True),
    "part-full": (a_lane_step(slots=(a_slot("a"),)), True),
    "in the wide lane": (a_lane_step(slots=(LONG,), padded_width=32), True),
    "in a lane that is wider than it must be": (a_lane_step(padded_width=32), False),
    "a row of another lane among its own": (
        a_lane_step(slots=(LONG, a_slot("b")), padded_width=32),
        False,
    ),
    "with other inert rows": (a_lane_step(padded_rows=7), False),
    "without inert rows": (a_step(), False),
    "on the other side": (a_lane_step(padding_side=PaddingSide.LEFT), False),
    "longer than any lane": (
        a_lane_step(slots=(a_slot("a", num_tokens=32),), padded_width=40),
        False,
    ),
}


@pytest.mark.parametrize(("step", "covered"), STEPS.values(), ids=STEPS)
def test_a_tolerance_speaks_for_its_lanes_only(step: Step, covered: bool) -> None:  # noqa: FBT001
    assert COVERED.covers(a_membership(steps=(step,))) is covered
    assert not COVERED.covers(a_membership(steps=(step, a_lane_step(padded_width=17))))


def test_a_tolerance_of_other_batches_speaks_for_no_lane() -> None:
    padded = replace(COVERED, mode="padded", lanes=())
    assert padded.covers(a_membership())
    assert not padded.covers(a_membership(steps=(a_lane_step(),)))


def test_lanes_of_which_none_was_measured_speak_for_nothing() -> None:
    nothing = replace(COVERED, lanes=())
    assert not nothing.covers(a_membership())
    assert not nothing.covers(a_membership(steps=(a_lane_step(),)))
