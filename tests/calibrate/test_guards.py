from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.random import Generator

from calibrate.guards import (
    Appeal,
    Arm,
    GuardName,
    HeadEvidence,
    Reading,
    RoundingEvidence,
    allowed_movements,
    distinct_arms,
    finite,
    live_head,
    neighbours,
    refuse_if_failed,
    rounding,
    shrink_estimate,
)
from calibrate.sensitivity import Scores, decision_magnitudes, decision_ranges
from harness.conditions.precision import unit_roundoff
from harness.errors import ConfigError, GuardRefusalError, InvalidRecordError
from harness.records import GuardFinding, PrecisionMode, PrecisionName

BF16, FP16, FP32, FP64 = (
    PrecisionName.BFLOAT16,
    PrecisionName.FLOAT16,
    PrecisionName.FLOAT32,
    PrecisionName.FLOAT64,
)
NUM_DECISIONS = 100
DECISION_OF_ROW = np.repeat(np.arange(NUM_DECISIONS), 4)
NUM_ROWS = DECISION_OF_ROW.size
AS_MEASURED = 0.3  # amplification that gives the movements of the trained demo verifier


# Rounding: two arms with the same true scores and the same amplification of each row.


def on_lattice(scores: Scores, u: float) -> Scores:
    step = 2 * u * 2.0 ** np.floor(np.log2(np.abs(scores) + 1e-300))
    return np.asarray(np.round(scores / step) * step)


def arm(rng: Generator, truth: Scores, amplification: Scores, precision: PrecisionName) -> Scores:
    u = unit_roundoff(precision)
    noise = rng.standard_normal((6, truth.size)) * (rng.random((6, truth.size)) < 0.4)
    return on_lattice(truth + noise * amplification * u * np.abs(truth).mean(), u)


def arms(
    seed: int, low: PrecisionName = BF16, reference: PrecisionName = FP32, amplify: float = 1.0
) -> tuple[Scores, Scores]:
    """Healthy noise: heavy-tailed amplification, exact zeros, a coarse lattice."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 5, NUM_ROWS)
    amplification = amplify * (1 + rng.pareto(2, NUM_ROWS))
    return arm(rng, truth, amplification, low), arm(rng, truth, amplification, reference)


def evidence(
    low_scores: Scores,
    reference_scores: Scores,
    low: PrecisionName = BF16,
    reference: PrecisionName = FP32,
) -> RoundingEvidence:
    return RoundingEvidence(
        low=low,
        reference=reference,
        low_movements=decision_ranges(low_scores, DECISION_OF_ROW),
        reference_movements=decision_ranges(reference_scores, DECISION_OF_ROW),
        magnitudes=decision_magnitudes(reference_scores[0], DECISION_OF_ROW),
        names=tuple(f"d{i}" for i in range(NUM_DECISIONS)),
    )


@pytest.mark.parametrize("amplify", [0.05, 1.0, 30.0])
@pytest.mark.parametrize(
    ("low", "reference"), [(BF16, FP32), (FP16, FP32), (FP32, FP64), (BF16, FP64)]
)
def test_healthy_rounding_passes_at_every_seed(
    low: PrecisionName, reference: PrecisionName, amplify: float
) -> None:
    refused = [
        (seed, finding.evidence)
        for seed in range(60)
        if not (
            finding := rounding(
                evidence(*arms(seed, low, reference, amplify), low, reference), seed=0
            )
        ).passed
    ]
    assert not refused


@pytest.mark.parametrize("size", [1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize(
    ("low", "reference"), [(BF16, FP32), (FP16, FP32), (FP32, FP64), (BF16, FP64)]
)
def test_a_bug_in_one_of_a_hundred_decisions_is_refused_by_name(
    size: float, low: PrecisionName, reference: PrecisionName
) -> None:
    for seed in range(60):
        low_scores, reference_scores = arms(seed, low, reference, AS_MEASURED)
        for scores, precision in ((low_scores, low), (reference_scores, reference)):
            scores[3, 42 * 4] = on_lattice(scores[3, 42 * 4] + size, unit_roundoff(precision))
        finding = rounding(evidence(low_scores, reference_scores, low, reference), seed=0)
        assert not finding.passed, (seed, finding.evidence)
        assert finding.guard == "rounding"
        assert "1 of 100 decisions, decision 'd42'" in finding.evidence
        assert low in finding.evidence


def test_a_bug_in_every_decision_is_refused() -> None:
    low_scores, reference_scores = arms(0)
    for scores in (low_scores, reference_scores):
        scores[1:] += 0.25  # as position ids one off in every padded batch would
    finding = rounding(evidence(low_scores, reference_scores), seed=0)
    assert not finding.passed
    assert "100 of 100 decisions" in finding.evidence
    assert "and 97 more" in finding.evidence


def test_a_bug_in_the_blind_spot_passes_and_the_evidence_gives_its_size() -> None:
    """One that moves scores far less than the decision's own rounding in the low precision."""
    low_scores, reference_scores = arms(1)
    low_scores[2, 8] += 2.0
    reference_scores[3, 8] += 5e-4
    finding = rounding(evidence(low_scores, reference_scores), seed=0)
    assert finding.passed
    assert "a movement in float32 below" in finding.evidence


def test_one_heavy_low_movement_does_not_hide_a_bug_elsewhere_or_in_itself() -> None:
    low_scores, reference_scores = arms(1)
    low_scores[2, 8] += 0.5  # rounding of decision 2, far in the tail
    reference_scores[3, 8] += 2e-3
    assert not rounding(evidence(low_scores, reference_scores), seed=0).passed


def test_flips_of_near_ties_in_the_low_precision_pass() -> None:
    low_scores, reference_scores = arms(2)
    low_scores[2, ::40] += 3.0  # another expert, in 10 of 100 decisions
    assert rounding(evidence(low_scores, reference_scores), seed=0).passed


def test_float32_sums_in_both_arms_pass_though_nothing_shrinks() -> None:
    """A shallow model, whose head keeps float32: its movement is that of float32 in both arms."""
    scores = arms(3)[1]
    found = evidence(scores, arms(4)[1])
    estimate = shrink_estimate(found, seed=0)
    assert estimate is not None
    assert estimate.lower > 2**-8
    assert rounding(found, seed=0).passed


@pytest.mark.parametrize("low", [BF16, FP32])
def test_islands_of_float32_in_a_float64_reference_pass(low: PrecisionName) -> None:
    """Measured on 16 random layers of 512: 3 of 120 rows move in float64, by 1.8e-7 at most."""
    low_scores, reference_scores = arms(5, low, FP64)
    reference_scores[1, [40, 160, 240]] += 1.8e-7
    assert rounding(evidence(low_scores, reference_scores, low, FP64), seed=0).passed
    reference_scores[1, 40] += 1e-4
    finding = rounding(evidence(low_scores, reference_scores, low, FP64), seed=0)
    assert "1 of 100 decisions, decision 'd10'" in finding.evidence


def test_measured_movements_of_a_trained_verifier_pass() -> None:
    """A reward model of 2.45M parameters, 400 decisions, 6 compositions: quantiles as measured."""
    low = np.repeat([0.0, 0.0234375, 0.0625, 0.09375, 0.265625], [59, 241, 60, 38, 2])
    reference = np.repeat([4.8e-7, 2.4e-6, 4.8e-6, 8.6e-6, 1.53e-5], [59, 241, 60, 38, 2])
    found = RoundingEvidence(
        low=BF16,
        reference=FP32,
        low_movements=low,
        reference_movements=reference[::-1],  # even the largest where bfloat16 moved 0
        magnitudes=np.full(400, 6.2),
    )
    assert rounding(found, seed=0).passed


@pytest.mark.parametrize("num", [1, 2, 3])
def test_few_items_pass_or_fail_on_their_own_merits(num: int) -> None:
    def few(low: float, reference: float) -> GuardFinding:
        return rounding(
            RoundingEvidence(
                low=BF16,
                reference=FP32,
                low_movements=np.full(num, low),
                reference_movements=np.full(num, reference),
                magnitudes=np.full(num, 3.0),
            ),
            seed=0,
        )

    assert few(0.0, 0.0).passed
    assert few(0.0, 1e-5).passed
    assert few(0.25, 1e-5).passed
    assert not few(0.0, 1e-3).passed
    assert not few(0.25, 0.25).passed


def test_zero_decisions_are_refused() -> None:
    nothing = np.zeros(0)
    finding = rounding(
        RoundingEvidence(
            low=BF16,
            reference=FP32,
            low_movements=nothing,
            reference_movements=nothing,
            magnitudes=nothing,
        ),
        seed=0,
    )
    assert not finding.passed
    assert "zero items" in finding.evidence


@pytest.mark.parametrize("field", ["low_movements", "reference_movements", "magnitudes"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_movements_that_are_no_distances_fail_the_guard(field: str, wrong: float) -> None:
    found = evidence(*arms(0))
    broken = getattr(found, field).copy()
    broken[7] = wrong
    assert not rounding(msgspec.structs.replace(found, **{field: broken}), seed=0).passed


def test_all_scores_zero_and_a_movement_is_refused() -> None:
    found = evidence(np.zeros((2, NUM_ROWS)), np.zeros((2, NUM_ROWS)))
    assert rounding(found, seed=0).passed
    moved = found.reference_movements.copy()
    moved[3] = 1e-30
    assert not rounding(msgspec.structs.replace(found, reference_movements=moved), seed=0).passed


@pytest.mark.parametrize(("low", "reference"), [(FP32, FP32), (FP32, BF16), (BF16, BF16)])
def test_the_reference_must_be_finer(low: PrecisionName, reference: PrecisionName) -> None:
    with pytest.raises(ConfigError, match="no reference"):
        evidence(*arms(0), low=low, reference=reference)


def test_arrays_over_other_decisions_are_refused() -> None:
    found = evidence(*arms(0))
    with pytest.raises(InvalidRecordError, match="not all"):
        msgspec.structs.replace(found, magnitudes=np.ones(99))
    with pytest.raises(InvalidRecordError, match="another length"):
        msgspec.structs.replace(found, names=("d0",))


def test_estimate_is_near_the_ratio_of_roundoffs_and_holds_it_in_most_runs() -> None:
    held = 0
    for seed in range(40):
        estimate = shrink_estimate(evidence(*arms(seed)), seed=seed)
        assert estimate is not None
        assert 2**-18 < estimate.ratio < 2**-14
        assert estimate.lower <= estimate.ratio <= estimate.upper
        held += estimate.lower <= estimate.predicted <= estimate.upper
    assert held >= 30  # nominal 38; a percentile bootstrap of a heavy tail falls short


def test_estimate_depends_on_the_seed_passed_in_only() -> None:
    found = evidence(*arms(0))
    assert shrink_estimate(found, seed=1) == shrink_estimate(found, seed=1)
    assert shrink_estimate(found, seed=1) != shrink_estimate(found, seed=2)


def test_estimate_says_it_in_powers_of_two() -> None:
    text = rounding(evidence(*arms(0)), seed=0).evidence
    assert "rounding of every operation predicts 2^-16.0, logic 2^0" in text
    assert "passes unseen" in text


def test_no_estimate_without_movement_in_the_low_precision() -> None:
    found = evidence(np.ones((2, NUM_ROWS)), arms(0)[1][:2])
    assert shrink_estimate(found, seed=0) is None
    assert "nothing moved in bfloat16" in rounding(found, seed=0).evidence


def few_moved(num: int, reference: float) -> RoundingEvidence:
    rng = np.random.default_rng(num)
    low = 0.03 * (1 + rng.random(num))
    return RoundingEvidence(
        low=BF16,
        reference=FP32,
        low_movements=low,
        reference_movements=reference * low,
        magnitudes=np.full(num, 4.0),
    )


@pytest.mark.parametrize(
    ("num", "reference", "reading"),
    [
        (1, 2**-16, Reading.OPEN),
        (20, 2**-16, Reading.ROUNDING),
        (20, 2**-12, Reading.ROUNDING),
        (20, 2**-3, Reading.NOT_SHRINKING),
        (20, 1.0, Reading.NOT_SHRINKING),
        (1, 1.0, Reading.OPEN),
    ],
)
def test_the_interval_is_read_and_one_decision_has_none(
    num: int, reference: float, reading: Reading
) -> None:
    estimate = shrink_estimate(few_moved(num, reference), seed=0)
    assert estimate is not None
    assert estimate.reading is reading
    assert f"which reads as {reading}" in str(estimate)
    assert (estimate.upper == np.inf) == (num == 1)


def test_an_interval_that_holds_the_midpoint_is_open() -> None:
    found = few_moved(4, 2**-16)
    one_moves = found.reference_movements.copy()
    one_moves[0] = 0.03
    estimate = shrink_estimate(
        msgspec.structs.replace(found, reference_movements=one_moves), seed=0
    )
    assert estimate is not None
    assert estimate.reading is Reading.OPEN


@pytest.mark.parametrize("num", [5, 10, 30])
def test_intervals_of_few_decisions_hold_the_truth_about_as_often_as_they_say(num: int) -> None:
    held = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        found = RoundingEvidence(
            low=BF16,
            reference=FP32,
            low_movements=rng.exponential(1.0, num),
            reference_movements=2**-16 * rng.exponential(1.0, num),
            magnitudes=np.full(num, 4.0),
        )
        estimate = shrink_estimate(found, seed=seed)
        assert estimate is not None
        held += estimate.lower <= 2**-16 <= estimate.upper
    assert held >= 0.9 * 300  # nominal 0.95; not expanded, five decisions hold it in 0.85


# Appeals.


def flipped() -> RoundingEvidence:
    """Two decisions that jump in float32 as they do in bfloat16."""
    low_scores, reference_scores = arms(2)
    low_scores[2, ::40] += 3.0
    reference_scores[2, [40, 160]] += 3.0
    return evidence(low_scores, reference_scores)


def heard(movements: list[float], distances: list[float]) -> Appeal:
    decisions = np.array([10, 40, 50])[: len(movements)]
    return Appeal(decisions=decisions, movements=np.array(movements), distances=np.array(distances))


def test_what_float64_does_not_move_is_acquitted_and_needs_an_appeal() -> None:
    found = flipped()
    refused = rounding(found, seed=0)
    assert not refused.passed
    assert "2 of 100 decisions, decision 'd" in refused.evidence
    assert "no appeal was heard" in refused.evidence
    acquitted = rounding(found, seed=0, appeal=heard([0.0, 1e-9], [1e-6, 1e-6]))
    assert acquitted.passed
    assert "appeal: 2 decisions are beyond that in float32 ('d" in acquitted.evidence
    assert "'d10' by 3" in acquitted.evidence


@pytest.mark.parametrize(
    ("appeal", "message"),
    [
        (heard([3.0, 0.0], [1e-6, 1e-6]), "of 2 heard, 1 still move in float64, by up to 3"),
        (heard([3.0, 3.0], [1e-6, 1e-6]), "of 2 heard, 2 still move in float64"),
        (heard([1e-3, 0.0], [1e-6, 1e-6]), "1 still move in float64, by up to 0.001"),
        (heard([np.nan, 0.0], [1e-6, 1e-6]), "1 still move in float64"),
        (heard([0.0, 0.0], [1e-6, 0.5]), "1 do not, but float32 is nowhere nearer to float64"),
        (heard([0.0], [1e-6]), "1 others were not heard"),
    ],
)
def test_what_is_not_acquitted_stays_refused(appeal: Appeal, message: str) -> None:
    finding = rounding(flipped(), seed=0, appeal=appeal)
    assert not finding.passed
    assert message in finding.evidence


def test_float32_islands_in_float64_are_acquitted_and_a_little_more_is_not() -> None:
    found = flipped()
    step = 2**-16 / 2**-8 * allowed_movements(found)[[10, 40]].min()
    assert rounding(found, seed=0, appeal=heard([0.99 * step, 0.0], [0, 0])).passed
    assert not rounding(found, seed=0, appeal=heard([2.01 * step, 2.01 * step], [0, 0])).passed


def test_an_appeal_that_holds_other_decisions_acquits_nobody() -> None:
    other = Appeal(decisions=np.array([1, 2]), movements=np.zeros(2), distances=np.zeros(2))
    assert not rounding(flipped(), seed=0, appeal=other).passed
    with pytest.raises(InvalidRecordError, match="not all"):
        heard([0.0, 0.0], [1e-6])


def test_movement_with_the_neighbours_is_said_to_be_so() -> None:
    found = flipped()
    coupled = np.zeros(NUM_DECISIONS)
    coupled[[10, 90]] = 2.5
    told = rounding(msgspec.structs.replace(found, companion_movements=coupled), seed=0).evidence
    assert "1 of them by up to 2.5 when only their neighbours' content changes" in told
    assert "routing with a capacity" in told
    assert "neighbours" not in rounding(found, seed=0).evidence


# Neighbours.


def test_neighbours_that_move_nothing_are_not_coupled() -> None:
    scores = arms(0)[0][0]
    found = neighbours([(scores, scores.copy())], DECISION_OF_ROW, ["a against b"], 0.95)
    assert found.guard.passed
    assert not found.coupled
    assert "no bit moved in 400 scores of 100 decisions" in found.guard.evidence


def test_one_bit_marks_the_build_as_coupled_and_refuses_nothing() -> None:
    scores = arms(0)[0][0]
    other = scores.copy()
    other[17] = np.nextafter(other[17], np.inf)
    found = neighbours([(scores, other)], DECISION_OF_ROW, [], 0.95)
    assert found.guard.passed
    assert found.coupled
    assert "companion-coupled: 1 of 400 scores, 1 of 100 decisions" in found.guard.evidence


def test_neighbours_not_exercised_are_said_to_be_so() -> None:
    found = neighbours([], DECISION_OF_ROW, [], 0.95)
    assert found.guard.passed
    assert not found.coupled
    assert "not exercised" in found.guard.evidence


def test_neighbours_refuse_one_array_as_both_sides() -> None:
    scores = arms(0)[0][0]
    with pytest.raises(GuardRefusalError, match="same path"):
        neighbours([(scores, scores)], DECISION_OF_ROW, [], 0.95)


# Live head.


def head(seed: int = 0, **changes: Any) -> HeadEvidence:
    scores = arms(seed)[0][0]
    healthy = HeadEvidence(
        precision=BF16,
        scores=scores,
        fresh_scores=(scores.copy(),),
        decision_of_row=DECISION_OF_ROW,
        weights_digests=("sha256:a", "sha256:a", "sha256:a"),
    )
    return msgspec.structs.replace(healthy, **changes)


def test_a_live_head_passes() -> None:
    finding = live_head(head())
    assert finding.passed
    assert "3 loads with equal weights" in finding.evidence


@pytest.mark.parametrize("precision", [BF16, FP16, FP32])
def test_a_fresh_load_that_moves_by_rounding_passes(precision: PrecisionName) -> None:
    for seed in range(60):
        scores, fresh = arms(seed, precision)[0][:2]
        finding = live_head(head(precision=precision, scores=scores, fresh_scores=(fresh,)))
        assert finding.passed, (seed, finding.evidence)


@pytest.mark.parametrize("precision", [BF16, FP16, FP32, FP64])
def test_a_head_initialised_at_each_load_is_refused(precision: PrecisionName) -> None:
    for seed in range(60):
        fresh = np.random.default_rng(seed).normal(0, 0.5, NUM_ROWS)
        finding = live_head(head(precision=precision, fresh_scores=(fresh,)))
        assert not finding.passed
        assert "fresh load 1 differs" in finding.evidence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": np.full(NUM_ROWS, 0.5)}, "the head is constant: 0.5"),
        ({"scores": np.repeat(np.arange(100.0), 4)}, "the branch does not matter"),
        ({"weights_digests": ("sha256:a", "sha256:b")}, "weights differ between loads"),
        ({"weights_digests": ()}, "weights"),
        ({"fresh_scores": ()}, "no fresh load was scored"),
        ({"scores": np.r_[np.nan, np.arange(399.0)]}, "non-finite"),
        ({"fresh_scores": (np.r_[np.inf, np.arange(399.0)],)}, "non-finite"),
    ],
)
def test_a_dead_head_is_refused(changes: dict[str, Any], message: str) -> None:
    finding = live_head(head(**changes))
    assert not finding.passed
    assert message in finding.evidence
    assert finding.guard == "live_head"


def test_decisions_that_do_not_read_their_branch_are_refused_by_name() -> None:
    fine = arms(0)[1][0].copy()
    fine[20:24] = fine[20]
    names = tuple(f"d{at}" for at in range(NUM_DECISIONS))
    finding = live_head(head(fine_scores=fine[:200], names=names))
    assert not finding.passed
    assert "the branch does not matter in 1 of 50 decisions: " in finding.evidence
    assert "('d5')" in finding.evidence


def tied(fine: Scores) -> Scores:
    fine = fine.copy()
    fine[20:24] = fine[20]
    return fine


@pytest.mark.parametrize(
    ("fine", "contents"),
    [
        (arms(0)[1][0], ()),
        (
            tied(arms(0)[1][0]),
            tuple(str(at if at not in range(20, 24) else 20) for at in range(400)),
        ),
        (np.round(tied(arms(0)[1][0])), ()),
        (np.zeros(0), ()),
    ],
    ids=["no ties", "equal branches", "a lattice so coarse that decisions tie", "not asked"],
)
def test_branches_that_may_tie_pass(fine: Scores, contents: tuple[str, ...]) -> None:
    assert live_head(head(fine_scores=fine, contents=contents)).passed


def test_decisions_of_one_branch_need_not_vary_within() -> None:
    assert live_head(head(decision_of_row=np.arange(NUM_ROWS))).passed


def test_a_head_without_rows_is_refused() -> None:
    nothing = np.zeros(0)
    finding = live_head(
        head(scores=nothing, fresh_scores=(nothing.copy(),), decision_of_row=np.zeros(0, np.int64))
    )
    assert not finding.passed
    assert "zero items" in finding.evidence


def test_a_fresh_load_over_other_rows_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="found"):
        head(fresh_scores=(np.zeros(3),))


# Distinct arms.


def precision_arm(name: PrecisionName, dtype: str, scores: Scores) -> Arm:
    mode = PrecisionMode(
        name=name, requested={"weights_dtype": name}, resolved={"weights_dtype": dtype}
    )
    return Arm(name=f"{name} arm", precision=mode, scores=scores)


def test_two_arms_that_differ_pass() -> None:
    low, reference = arms(0)
    finding = distinct_arms(
        precision_arm(BF16, "bfloat16", low), precision_arm(FP32, "float32", reference)
    )
    assert finding.passed
    assert "weights_dtype" in finding.evidence


SCORES = arms(0)[0]


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((BF16, "bfloat16", SCORES), (FP32, "float32", SCORES.copy()), "both are the same path"),
        ((BF16, "bfloat16", SCORES), (FP32, "float32", SCORES), "are the same array"),
        ((BF16, "bfloat16", SCORES), (FP32, "bfloat16", arms(0)[1]), "the same dtypes"),
        ((FP32, "bfloat16", SCORES), (FP32, "float32", arms(0)[1]), "both claim float32"),
        ((BF16, "bfloat16", SCORES[:0]), (FP32, "float32", SCORES[:0]), "zero items"),
        ((BF16, "bfloat16", SCORES), (FP32, "float32", SCORES[:2]), "zero items"),
    ],
)
def test_arms_that_are_secretly_one_are_refused(
    left: tuple[PrecisionName, str, Scores],
    right: tuple[PrecisionName, str, Scores],
    message: str,
) -> None:
    finding = distinct_arms(precision_arm(*left), precision_arm(*right))
    assert not finding.passed
    assert message in finding.evidence
    assert finding.guard == "distinct_arms"


# Finite.


def test_finite_scores_pass() -> None:
    finding = finite({"bfloat16 solo": SCORES[0], "float32 solo": arms(0)[1][0]})
    assert finding.passed
    assert "800 scores in 2 score vectors" in finding.evidence


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_non_finite_score_is_refused_and_its_row_named(wrong: float) -> None:
    scores = SCORES[0].copy()
    scores[7] = wrong
    names = [f"d{i // 4}/b{i % 4}" for i in range(NUM_ROWS)]
    finding = finite({"float32 solo": SCORES[1], "bfloat16 left": scores}, names)
    assert not finding.passed
    assert f"1 of 400 scores are not finite in bfloat16 left: row 'd1/b3' ({wrong})" in (
        finding.evidence
    )


def test_many_non_finite_rows_are_counted() -> None:
    finding = finite({"solo": np.full(10, np.nan)})
    assert "10 of 10" in finding.evidence
    assert "row 0 (nan), row 1 (nan), row 2 (nan) and 7 more" in finding.evidence


@pytest.mark.parametrize("arms_given", [{}, {"solo": np.zeros(0)}])
def test_no_scores_are_refused(arms_given: dict[str, Scores]) -> None:
    finding = finite(arms_given)
    assert not finding.passed
    assert "zero items" in finding.evidence


# Refusal.


def guard_finding(guard: str, *, passed: bool) -> GuardFinding:
    return GuardFinding(guard=guard, passed=passed, evidence=f"evidence of {guard}")


def test_refusal_lists_every_failed_guard_with_advice_and_no_other() -> None:
    findings = [
        guard_finding("rounding", passed=False),
        guard_finding("live_head", passed=True),
        guard_finding("finite", passed=False),
        guard_finding("of_tomorrow", passed=False),
    ]
    with pytest.raises(GuardRefusalError) as caught:
        refuse_if_failed(findings)
    text = str(caught.value)
    assert "3 guard(s) failed" in text
    assert "- rounding: evidence of rounding\n  usual causes: position ids" in text
    assert "- finite: evidence of finite\n  usual causes: a fully masked row" in text
    assert "- of_tomorrow: evidence" in text
    assert "live_head" not in text


@pytest.mark.parametrize("guard", GuardName)
def test_every_guard_has_advice(guard: GuardName) -> None:
    with pytest.raises(GuardRefusalError, match="what to do"):
        refuse_if_failed([guard_finding(guard, passed=False)])


def test_no_refusal_when_all_passed() -> None:
    refuse_if_failed([guard_finding("rounding", passed=True)])
