from typing import Any

import msgspec
import numpy as np
import pytest

from calibrate.guards import OwnErrorEvidence, own_error, own_error_of
from calibrate.sensitivity import Scores
from harness.conditions.precision import unit_roundoff
from harness.errors import InvalidRecordError
from harness.records import PrecisionName

BF16, FP16, FP32 = PrecisionName.BFLOAT16, PrecisionName.FLOAT16, PrecisionName.FLOAT32
NUM = 20
AS_MEASURED = 0.3  # of the prediction, since float32 keeps a low precision's sums
AMPLIFICATION = 8.0


def distances(seed: int, u: float) -> Scores:
    return np.asarray(np.abs(np.random.default_rng(seed).normal(0, u * AMPLIFICATION, NUM)))


def healthy(seed: int = 0, low: PrecisionName = BF16, **changes: Any) -> OwnErrorEvidence:
    u = unit_roundoff(low)
    found = OwnErrorEvidence(
        low=low,
        low_errors=AS_MEASURED * distances(seed, u),
        low_movements=AS_MEASURED * distances(seed + 1000, u) * (np.arange(NUM) % 3 > 0),
        magnitudes=np.full(NUM, 4.0),
        reference=FP32,
        reference_errors=distances(seed + 2000, unit_roundoff(FP32)),
        names=tuple(f"d{at}" for at in range(NUM)),
    )
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize("low", [BF16, FP16])
def test_what_rounding_gives_passes_at_every_seed(low: PrecisionName) -> None:
    refused = [
        (seed, found.evidence)
        for seed in range(100)
        if not (found := own_error(healthy(seed, low))).passed
    ]
    assert not refused


@pytest.mark.parametrize("low", [BF16, FP16])
def test_a_fault_of_the_low_precision_alone_is_refused(low: PrecisionName) -> None:
    """It moves nothing from one batch to another."""
    for seed in range(30):
        found = healthy(seed, low)
        shifted = found.low_errors + 2000 * unit_roundoff(low)
        finding = own_error(msgspec.structs.replace(found, low_errors=shifted))
        assert not finding.passed, (seed, finding.evidence)
        assert f"20 of 20 decisions are further from float64 in {low} than" in finding.evidence
        assert "(decision 'd0' by " in finding.evidence
        assert "at 95% confidence that is more than 86% of all" in finding.evidence


def test_a_fault_in_fewer_than_half_of_the_decisions_passes_and_the_evidence_says_so() -> None:
    errors = healthy().low_errors.copy()
    errors[:10] += 8.0
    finding = own_error(healthy(low_errors=errors))
    assert finding.passed
    assert "fewer than half of the decisions, passes unseen" in finding.evidence
    errors[10:16] += 8.0
    assert not own_error(healthy(low_errors=errors)).passed


def test_routing_that_the_low_precision_flips_passes() -> None:
    """It goes far from float64 in most decisions, and from one batch to another in a few."""
    found = healthy()
    movements = found.low_movements.copy()
    movements[:3] += 1.5
    flipped = msgspec.structs.replace(
        found, low_errors=found.low_errors + 2.0, low_movements=movements
    )
    assert own_error(flipped).passed
    assert not own_error(msgspec.structs.replace(flipped, low_movements=found.low_movements)).passed


def test_a_build_that_no_batch_moves_is_not_judged_but_its_reference_is() -> None:
    still = np.zeros(NUM)
    found = own_error(healthy(low_movements=still, low_errors=np.full(NUM, 3.0)))
    assert found.passed
    assert "a fault and flipped routing look alike" in found.evidence
    coarse = healthy(low_movements=still, reference_errors=healthy().low_errors + 0.01)
    assert not own_error(coarse).passed


def test_a_reference_that_is_secretly_the_low_precision_is_refused() -> None:
    for seed in range(30):
        finding = own_error(healthy(seed, reference_errors=healthy(seed + 1).low_errors + 1e-3))
        assert not finding.passed, (seed, finding.evidence)
        assert "decisions are further from float64 in float32 than rounding" in finding.evidence


def test_scores_that_float32_hits_are_given_one_rounding() -> None:
    exact = healthy(reference_errors=np.zeros(NUM), low_errors=np.full(NUM, 2.0**-8 * 4))
    assert own_error(exact).passed


@pytest.mark.parametrize("num", [1, 4])
def test_too_few_decisions_refuse_nothing(num: int) -> None:
    def cut(values: Scores) -> Scores:
        return values[:num]

    found = healthy()
    few = msgspec.structs.replace(
        found,
        low_errors=cut(found.low_errors) + 100.0,
        low_movements=np.full(num, 1e-3),
        magnitudes=cut(found.magnitudes),
        reference_errors=cut(found.reference_errors),
        names=found.names[:num],
    )
    assert own_error(few).passed
    assert own_error_of(few).median > 99


def test_float32_has_nothing_to_scale_from() -> None:
    alone = healthy(low=FP32, reference=None, reference_errors=np.zeros(0))
    finding = own_error(alone)
    assert finding.passed
    assert "nothing lies between float32 and float64 to scale from: not judged" in finding.evidence


def test_the_record_holds_quantiles_and_says_how_large_batch_movement_is() -> None:
    found = healthy(low_errors=np.arange(1.0, 21.0), low_movements=np.full(NUM, 5.0))
    record = own_error_of(found)
    assert (record.num_decisions, record.median, record.p99, record.largest) == (20, 10, 20, 20)
    assert record.movement_ratio == 0.5
    assert own_error_of(healthy(low_errors=np.zeros(NUM))).movement_ratio is None
    assert "batches move them by 5, 0.5 x that" in own_error(found).evidence


def test_no_decisions_and_other_decisions_are_refused() -> None:
    nothing = np.zeros(0)
    empty = OwnErrorEvidence(
        low=BF16,
        low_errors=nothing,
        low_movements=nothing,
        magnitudes=nothing,
        reference=FP32,
        reference_errors=nothing,
    )
    finding = own_error(empty)
    assert not finding.passed
    assert "zero items" in finding.evidence
    with pytest.raises(InvalidRecordError, match="not all"):
        healthy(magnitudes=np.ones(3))
