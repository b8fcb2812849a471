"""Memberships of batches that ran: forwards as planned, flights as the engine told them."""

import pytest

from harness.conditions.batching import Batch
from harness.conditions.flight import EngineStep, Flight, StepSlot
from harness.memberships import SlotLabel, row_digest, source_of, steps_of
from harness.messages import Scored
from harness.records.batching import PaddingSide
from harness.records.membership import MembershipSource
from harness.serving.content import prompt_digest, sequence_digest
from harness.verifiers import EncodedRow

ROWS = [
    EncodedRow(token_ids=tuple(range(5, 5 + length)), branch_start=2, branch_end=length)
    for length in (4, 6, 3)
]
OWN = SlotLabel(request_id="d0/b0", branch_id="b0")
OTHER = SlotLabel(request_id="d1/b0", branch_id=None)
FLIGHT = Batch(rows=(1, 0), width=6, side=None, flight=Flight())


def engine_step(*slots: tuple[int, int, int]) -> EngineStep:
    return EngineStep(
        slots=tuple(
            StepSlot(request=request, num_tokens=num_tokens, num_computed_tokens=computed)
            for request, num_tokens, computed in slots
        )
    )


def test_a_forward_is_the_step_that_was_planned() -> None:
    batch = Batch(rows=(2, 0), width=8, side=PaddingSide.LEFT, num_rows=4)
    (step,) = steps_of(batch, Scored(scores=(1.0, 2.0)), ROWS, [OWN, OTHER])
    assert (step.padded_width, step.padding_side, step.padded_rows) == (8, PaddingSide.LEFT, 4)
    assert [slot.content_digest for slot in step.slots] == [
        ROWS[2].content_digest,
        ROWS[0].content_digest,
    ]
    assert [slot.branch_id for slot in step.slots] == ["b0", None]


def test_a_flight_is_what_its_engine_told() -> None:
    scored = Scored(
        scores=(1.0, 2.0),
        steps=(
            engine_step((1, 4, 0)),  # only the companion
            engine_step((1, 1, 4), (0, 5, 0)),
            engine_step((0, 1, 5), (1, 1, 5)),
            engine_step((0, 1, 6)),
        ),
        generated=((90, 91), (80, 81, 82)),
    )
    steps = steps_of(FLIGHT, scored, ROWS, [OWN, OTHER])
    assert [[slot.request_id for slot in step.slots] for step in steps] == [
        ["d1/b0", "d0/b0"],
        ["d0/b0", "d1/b0"],
        ["d0/b0"],
    ]
    own, other = (prompt_digest(ROWS[at].token_ids) for at in (1, 0))
    assert [slot.content_digest for slot in steps[0].slots] == [sequence_digest(other, [80]), own]
    assert [slot.content_digest for slot in steps[1].slots] == [
        own,
        sequence_digest(other, [80, 81]),
    ]
    assert steps[2].slots[0].content_digest == sequence_digest(own, [90])
    assert all(step.padded_width is None for step in steps)


def test_a_flight_that_nobody_saw_is_all_that_was_asked_for() -> None:
    unseen = Scored(scores=(1.0, 2.0))
    (step,) = steps_of(FLIGHT, unseen, ROWS, [OWN, OTHER])
    assert [slot.num_tokens for slot in step.slots] == [6, 4]
    assert step.padded_width is None
    assert source_of([(FLIGHT, unseen)]) is MembershipSource.REQUESTED


@pytest.mark.parametrize("seen", [True, False])
def test_one_unseen_flight_makes_a_membership_requested(*, seen: bool) -> None:
    told = Scored(scores=(1.0, 2.0), steps=(engine_step((0, 6, 0), (1, 4, 0)),), generated=((), ()))
    forward = (Batch(rows=(0,), width=4, side=None), Scored(scores=(1.0,)))
    ran = [forward, (FLIGHT, told if seen else Scored(scores=(1.0, 2.0)))]
    expected = MembershipSource.OBSERVED if seen else MembershipSource.REQUESTED
    assert source_of(ran) is expected


def test_an_engine_does_not_know_which_tokens_are_the_branch() -> None:
    row = ROWS[0]
    moved = EncodedRow(token_ids=row.token_ids, branch_start=1, branch_end=3)
    forward = Batch(rows=(0,), width=4, side=None)
    assert row_digest(row, FLIGHT) == row_digest(moved, FLIGHT)
    assert row_digest(row, forward) != row_digest(moved, forward)
