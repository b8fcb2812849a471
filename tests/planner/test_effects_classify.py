from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.errors import InvalidRecordError
from harness.planner.effects import (
    Auditability,
    AuditabilityClass,
    MemoryEffectStore,
    SideEffectStep,
    StepReason,
    classify_trajectory,
)
from harness.planner.effects.verification import RULES
from tests.planner.effects_examples import (
    LATER,
    NOW,
    a_read,
    a_step,
    a_store,
    a_trajectory,
    unrecorded,
    untokened,
)


def classified(*steps: SideEffectStep, store: MemoryEffectStore | None = None) -> Auditability:
    held = a_store(*steps) if store is None else store
    return classify_trajectory(a_trajectory(*steps), held, now=NOW)


def reason(step: SideEffectStep, store: MemoryEffectStore) -> StepReason:
    return classified(step, store=store).findings[0].reason


def retired(*, superseded_by: str | None = None) -> MemoryEffectStore:
    store = a_store(a_step("a"))
    store.retire("token-a", superseded_by=superseded_by)
    return store


A = a_step("a")
CASES: dict[str, tuple[StepReason, SideEffectStep, MemoryEffectStore]] = {
    "held": (StepReason.VERIFIED, A, a_store(A)),
    "held, not expired yet": (
        StepReason.VERIFIED,
        a_step("a", expires_at=LATER),
        a_store(a_step("a", expires_at=LATER)),
    ),
    "a failed call whose token is held": (
        StepReason.VERIFIED,
        a_step("a", payload={"error": "declined"}),
        a_store(a_step("a", payload={"error": "declined"})),
    ),
    "a read": (StepReason.READ_ONLY, a_read("a"), a_store()),
    "a read whose response was lost": (
        StepReason.READ_NOT_RECORDED,
        unrecorded(a_read("a")),
        a_store(),
    ),
    "no token": (StepReason.TOKEN_NOT_RECORDED, untokened(A), a_store(A)),
    "no response": (StepReason.RESPONSE_NOT_RECORDED, unrecorded(A), a_store(A)),
    "never seen": (StepReason.TOKEN_UNKNOWN, A, a_store(a_step("b"))),
    "evicted": (StepReason.EVICTED, A, retired()),
    "superseded": (StepReason.SUPERSEDED, A, retired(superseded_by="token-b")),
    "expired by the step": (StepReason.EXPIRED, a_step("a", expires_at=NOW), a_store(A)),
    "expired by the store": (StepReason.EXPIRED, A, a_store(a_step("a", expires_at=NOW))),
    "expired, written with another offset": (
        StepReason.EXPIRED,
        a_step("a", expires_at="2026-01-01T01:00:00+02:00"),
        a_store(A),
    ),
    "held for other arguments": (StepReason.REQUEST_CHANGED, A, a_store(a_step("a", arguments=1))),
    "held for another tool": (StepReason.REQUEST_CHANGED, A, a_store(a_step("a", tool="put"))),
    "held with another response": (
        StepReason.PAYLOAD_CHANGED,
        A,
        a_store(a_step("a", payload={"id": "other"})),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_reason_is_found(name: str) -> None:
    expected, step, store = CASES[name]
    assert reason(step, store) is expected
    audit = classified(a_read("first"), step, store=store)
    assert audit.boundary_index == (1 if expected.is_boundary else None)


def test_every_reason_has_a_case_and_a_rule() -> None:
    assert {case[0] for case in CASES.values()} == set(StepReason)
    assert [rule.reason for rule in RULES] == [
        r for r in StepReason if r is not StepReason.VERIFIED
    ]


R = AuditabilityClass
CLASSES: dict[str, tuple[AuditabilityClass, tuple[SideEffectStep, ...]]] = {
    "nothing called": (R.EFFECT_FREE, ()),
    "reads": (R.EFFECT_FREE, (a_read("r"), a_read("s"))),
    "verified": (R.EFFECT_REPLAYABLE, (a_read("r"), A)),
    "a boundary behind a verified step": (R.PREFIX_REPLAYABLE, (A, untokened(a_step("b")))),
    "a boundary behind a read": (R.PREFIX_REPLAYABLE, (a_read("r"), untokened(A))),
    "a read that was lost, no boundary": (R.PREFIX_REPLAYABLE, (A, unrecorded(a_read("r")))),
    "reads, one of them lost": (R.PREFIX_REPLAYABLE, (a_read("r"), unrecorded(a_read("s")))),
    "a boundary first": (R.STATE_REPLAYABLE, (untokened(A), a_step("b"))),
    "a boundary first, a response lost": (
        R.NOT_REPLAYABLE,
        (untokened(A), unrecorded(a_read("r"))),
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_given(name: str) -> None:
    expected, steps = CLASSES[name]
    assert classified(*steps).auditability is expected


def test_every_class_has_a_case() -> None:
    assert {case[0] for case in CLASSES.values()} == set(AuditabilityClass)


def test_the_boundary_is_neither_the_first_error_nor_the_first_divergence() -> None:
    failed = a_step("failed", payload={"error": "declined"})
    changed = a_step("last", payload="another than the store's")
    steps = (failed, untokened(a_step("b")), changed)
    audit = classified(*steps, store=a_store(failed, a_step("last")))
    assert [finding.reason for finding in audit.findings] == [
        StepReason.VERIFIED,
        StepReason.TOKEN_NOT_RECORDED,
        StepReason.PAYLOAD_CHANGED,
    ]
    assert audit.boundary_index == 1


def test_a_retry_under_the_same_token_is_verified_and_a_second_call_under_it_is_not() -> None:
    retry = replace(A, step_id="retry")
    assert classified(A, retry, store=a_store(A)).boundary_index is None
    other = a_step("other", token=A.token)
    assert classified(A, other, store=a_store(A)).boundary_index == 1


def test_a_time_without_an_offset_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="now '2026-01-01' has no offset"):
        classify_trajectory(a_trajectory(A), a_store(), now="2026-01-01")


def test_admitting_a_divergence() -> None:
    steps = (a_read("r"), A, unrecorded(a_read("lost")), a_step("c"), untokened(a_step("d")))
    audit = classified(*steps)
    assert [audit.admits_divergence_at(at) for at in range(5)] == [True, True, True, False, False]
    mended = classified(*steps[:2], a_read("found"), *steps[3:])
    assert [mended.admits_divergence_at(at) for at in range(5)] == [True] * 4 + [False]


KINDS: dict[str, Callable[[str], SideEffectStep]] = {
    "verified": a_step,
    "read": a_read,
    "no token": lambda name: untokened(a_step(name)),
    "lost": lambda name: unrecorded(a_step(name)),
    "lost read": lambda name: unrecorded(a_read(name)),
    "expired": lambda name: a_step(name, expires_at=NOW),
}
TRAJECTORIES = st.lists(st.sampled_from(sorted(KINDS)), max_size=12).map(
    lambda kinds: [KINDS[kind](f"s{at}") for at, kind in enumerate(kinds)]
)


def boundary(audit: Auditability, num_steps: int) -> int:
    return num_steps if audit.boundary_index is None else audit.boundary_index


@given(steps=TRAJECTORIES, data=st.data())
def test_removing_a_token_moves_the_boundary_earlier_or_not_at_all(
    steps: list[SideEffectStep], data: st.DataObject
) -> None:
    store = a_store(*steps)
    before = boundary(classified(*steps, store=store), len(steps))
    at = data.draw(st.integers(0, len(steps) - 1)) if steps else 0
    fewer = [untokened(step) if index == at else step for index, step in enumerate(steps)]
    after = boundary(classified(*fewer, store=store), len(steps))
    assert after <= before
    if steps and steps[at].is_side_effect:
        assert after == min(before, at)


@given(steps=TRAJECTORIES, data=st.data())
def test_evicting_a_token_moves_the_boundary_earlier_or_not_at_all(
    steps: list[SideEffectStep], data: st.DataObject
) -> None:
    store = a_store(*steps)
    before = boundary(classified(*steps, store=store), len(steps))
    held = [step.token for step in steps if step.token is not None and step.is_recorded]
    if held:
        store.retire(data.draw(st.sampled_from(held)))
    assert boundary(classified(*steps, store=store), len(steps)) <= before


@given(steps=TRAJECTORIES)
def test_classifying_again_finds_the_same(steps: list[SideEffectStep]) -> None:
    store = a_store(*steps)
    assert classified(*steps, store=store) == classified(*steps, store=store)


@given(steps=TRAJECTORIES, more=TRAJECTORIES)
def test_what_comes_later_does_not_move_a_boundary(
    steps: list[SideEffectStep], more: list[SideEffectStep]
) -> None:
    store = a_store(*steps)
    audit = classified(*steps, store=store)
    renamed = [replace(step, step_id=f"more-{step.step_id}") for step in more]
    longer = classified(*steps, *renamed, store=store)
    if audit.boundary_index is not None:
        assert longer.boundary_index == audit.boundary_index


def test_the_properties_see_a_boundary_that_moves() -> None:
    """With a step that is verifiable only without its token, monotonicity would not hold."""
    steps = [a_step("s0"), untokened(a_step("s1"))]
    assert boundary(classified(*steps), 2) == 1
    assert boundary(classified(a_step("s0"), a_step("s1")), 2) == 2
