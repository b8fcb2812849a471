import math
import sys

import msgspec
import numpy as np
import pytest

from calibrate.guards import (
    Arm,
    CanaryEvidence,
    RoundingEvidence,
    canary,
    decisions_beyond,
    detection_limit,
)
from calibrate.sensitivity import Scores, decision_magnitudes, decision_ranges
from harness.errors import InvalidRecordError
from harness.records import GuardFinding, PrecisionMode, PrecisionName

NUM_DECISIONS = 30
OWNERS = np.repeat(np.arange(NUM_DECISIONS), 3)
TRUTH = np.random.default_rng(0).normal(0, 3, OWNERS.size)


def mode(name: PrecisionName) -> PrecisionMode:
    return PrecisionMode(name=name, requested={}, resolved={"weights_dtype": str(name)})


def noisy(size: float, seed: int) -> Scores:
    return np.asarray(TRUTH + size * np.random.default_rng(seed).normal(0, 1, (6, TRUTH.size)))


def evidence(low: Scores, reference: Scores) -> CanaryEvidence:
    movements = RoundingEvidence(
        low=PrecisionName.BFLOAT16,
        reference=PrecisionName.FLOAT32,
        low_movements=decision_ranges(low, OWNERS),
        reference_movements=decision_ranges(reference, OWNERS),
        magnitudes=decision_magnitudes(reference[0], OWNERS),
        names=tuple(f"d{at}" for at in range(NUM_DECISIONS)),
    )
    arms = (
        Arm(name=name, precision=mode(precision), scores=scores[0].copy())
        for name, precision, scores in (
            ("measured", PrecisionName.BFLOAT16, low),
            ("reference", PrecisionName.FLOAT32, reference),
        )
    )
    measured, finer = arms
    return CanaryEvidence(
        movements=movements,
        low_scores=low,
        reference_scores=reference,
        decision_of_row=OWNERS,
        measured=measured,
        reference=finer,
    )


HEALTHY = evidence(noisy(0.02, 1), noisy(1e-6, 2))


def test_planted_faults_are_caught_in_healthy_scores_and_the_limit_is_told() -> None:
    found = canary(HEALTHY)
    limit = detection_limit(HEALTHY)
    assert found.passed
    assert found.guard == "canary"
    assert f"caught from {limit.every:.3g} (" in found.evidence
    assert f"in every decision, from {limit.half:.3g} in half of them" in found.evidence
    assert 1e-6 < limit.half <= limit.every < 0.01 * HEALTHY.spread


def refused_when_shifted(by: float, at: int) -> bool:
    low, reference = noisy(0.02, 1), noisy(1e-6, 2)
    for scores in (low, reference):
        scores[-1, 3 * at] += by
    return at in decisions_beyond(evidence(low, reference).movements)


def test_the_limit_is_what_the_guard_really_catches() -> None:
    limit = detection_limit(HEALTHY)
    assert all(refused_when_shifted(limit.every, at) for at in range(NUM_DECISIONS))
    caught = [refused_when_shifted(limit.every / 4, at) for at in range(NUM_DECISIONS)]
    assert not all(caught)
    assert sum(refused_when_shifted(limit.half, at) for at in range(NUM_DECISIONS)) >= 15


def test_scores_lost_in_their_own_movement_are_not_blessed() -> None:
    """Movement of the low precision is 30 x the spread: any fault would hide in it."""
    found = canary(evidence(noisy(100.0, 1), noisy(1e-6, 2)))
    assert not found.passed
    assert "planted and not caught by rounding: a shift by" in found.evidence
    assert math.isfinite(detection_limit(evidence(noisy(100.0, 1), noisy(1e-6, 2))).every)


def test_scores_that_do_not_differ_leave_nothing_to_plant() -> None:
    same = np.ones((2, TRUTH.size))
    found = canary(evidence(same, same))
    assert not found.passed
    assert "nothing to plant" in found.evidence


def passing(*_: object, **__: object) -> GuardFinding:
    return GuardFinding(guard="any", passed=True, evidence="")


def test_a_blind_guard_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["calibrate.guards.canary"]  # the function has the package's name of it
    with monkeypatch.context() as patched:
        patched.setattr(module, "decisions_beyond", lambda _: np.zeros(0, np.int64))
        found = canary(HEALTHY)
    assert "not caught by rounding: two rows exchanged, decision 'd" in found.evidence
    assert "not caught by rounding: a shift by" in found.evidence
    with monkeypatch.context() as patched:
        patched.setattr(module, "distinct_arms", passing)
        found = canary(HEALTHY)
    assert not found.passed
    assert "the measured scores as their own reference" in found.evidence


def test_decisions_that_an_appeal_has_acquitted_are_planted_in_too() -> None:
    """Else a routing flip would count as the planted fault that was caught."""
    reference = noisy(1e-6, 2)
    reference[1, ::3] += 1.0
    found = evidence(noisy(0.02, 1), reference)
    assert decisions_beyond(found.movements).size == NUM_DECISIONS
    assert canary(found).passed
    assert detection_limit(found).every < 0.01 * found.spread


def test_no_rows_and_other_rows_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="scores are"):
        msgspec.structs.replace(HEALTHY, low_scores=np.zeros((2, 3)))
    nothing = np.zeros((2, 0))
    empty = RoundingEvidence(
        low=PrecisionName.BFLOAT16,
        reference=PrecisionName.FLOAT32,
        low_movements=nothing[0],
        reference_movements=nothing[0],
        magnitudes=nothing[0],
    )
    found = canary(
        msgspec.structs.replace(
            HEALTHY,
            movements=empty,
            low_scores=nothing,
            reference_scores=nothing,
            decision_of_row=np.zeros(0, np.int64),
        )
    )
    assert not found.passed
    assert "zero items" in found.evidence
