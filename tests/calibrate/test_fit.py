from typing import Any

import msgspec
import numpy as np
import pytest

from calibrate.fit import FitInput, fit_tolerance
from calibrate.guards import neighbours
from calibrate.sensitivity import Pair, Scores, axis_finding
from calibrate.strata import RowSizes
from harness.errors import (
    GuardRefusalError,
    InsufficientEvidenceError,
    InvalidRecordError,
)
from harness.records import (
    AxisFinding,
    AxisSearch,
    CoveredBatches,
    Equivalence,
    GuardFinding,
    PaddingSide,
    PrecisionMode,
    PrecisionName,
    ReductionOrder,
    Switch,
)
from harness.records.switches import SwitchValues

NUM_DECISIONS = 100
DECISION_OF_ROW = np.repeat(np.arange(NUM_DECISIONS), 3)
NUM_ROWS = DECISION_OF_ROW.size
SCORES = np.random.default_rng(0).normal(0, 5, NUM_ROWS)
MEMBERSHIP_AXES = ("num_rows", "padded_width", "companions", "row_position", "row_order")
AXES = (*MEMBERSHIP_AXES, "repeat_same_process", "repeat_fresh_process")
REQUIRED = ("rounding", "live_head", "distinct_arms", "finite", "canary")
SWITCHES: SwitchValues = {"weights_dtype": "bfloat16"}


def moved_by(*distances: float) -> Scores:
    """One composition a distance, in which the first row of decision 5 has moved that far."""
    scores = np.tile(SCORES, (len(distances), 1))
    scores[:, 15] += distances
    return scores


def pair(distance: float = 0.0) -> Pair:
    return SCORES.copy(), moved_by(distance)[0]


def axis(name: str, *pairs: Pair, num_rows: int = NUM_ROWS) -> AxisFinding:
    some = [(left[:num_rows], right[:num_rows]) for left, right in pairs]
    return axis_finding(name, some, DECISION_OF_ROW[:num_rows], ["1 against 3"], 0.95)


def invariant_axes(*changed: AxisFinding) -> tuple[AxisFinding, ...]:
    table = {finding.axis: finding for finding in changed}
    return tuple(table.get(name) or axis(name, pair()) for name in AXES)


def guards(**passed: bool) -> tuple[GuardFinding, ...]:
    table = dict.fromkeys(REQUIRED, True) | passed
    return tuple(GuardFinding(guard=g, passed=p, evidence=f"seen by {g}") for g, p in table.items())


def fit_input(**changes: Any) -> FitInput:
    healthy = FitInput(
        precision_mode=PrecisionMode(
            name=PrecisionName.BFLOAT16, requested=SWITCHES, resolved=SWITCHES
        ),
        reduction_order=ReductionOrder(name="vendor", requested={}, resolved={}),
        batches=CoveredBatches(
            mode="padded", max_rows=32, max_width=96, sides=(PaddingSide.RIGHT,)
        ),
        decision_of_row=DECISION_OF_ROW,
        compositions=moved_by(0, 0, 0),
        repeats=(moved_by(0, 0, 0),),
        axes=invariant_axes(),
        required_axes=MEMBERSHIP_AXES,
        neighbours=neighbours([pair()], DECISION_OF_ROW, [], 0.95),
        guards=guards(),
        coverage=0.95,
        confidence=0.95,
    )
    return msgspec.structs.replace(healthy, **changes)


def test_a_tolerance_holds_all_it_follows_from() -> None:
    given = fit_input(compositions=moved_by(0, 0.5), repeats=(moved_by(0, 0.125, 0.0625),))
    tolerance = fit_tolerance(given)
    assert tolerance.floor.value == 0.0  # the second largest of 100: one decision moved
    assert tolerance.floor.rank == 2
    assert tolerance.floor.num_compositions == 3
    assert tolerance.envelope.num_compositions == 4  # 2, and 2 repeats of one of them
    assert tolerance.envelope.num_decisions == NUM_DECISIONS
    assert tolerance.batches == given.batches
    assert tolerance.axes == given.axes
    assert [finding.guard for finding in tolerance.guards] == [*REQUIRED, "neighbours"]


def test_floor_and_envelope_are_order_statistics_of_decision_ranges() -> None:
    rng = np.random.default_rng(1)
    compositions = SCORES + rng.pareto(1.5, (4, NUM_ROWS))
    repeats = (SCORES + rng.pareto(1.5, (2, NUM_ROWS)) / 8, SCORES + rng.random((3, NUM_ROWS)) / 8)
    tolerance = fit_tolerance(fit_input(compositions=compositions, repeats=repeats))

    def ranges(scores: Scores) -> Scores:
        spread = scores.max(axis=0) - scores.min(axis=0)
        return np.asarray(spread.reshape(NUM_DECISIONS, 3).max(axis=1))

    floor = np.sort(np.maximum(*map(ranges, repeats)))[-2]
    envelope = np.sort(ranges(np.vstack((compositions, *repeats))))[-2]
    assert (tolerance.floor.value, tolerance.envelope.value) == (floor, envelope)
    assert tolerance.floor.num_compositions == 5


def test_the_envelope_holds_the_floor_when_only_repeats_move() -> None:
    repeats = np.tile(SCORES, (2, 1))
    repeats[1] += 0.25
    tolerance = fit_tolerance(fit_input(repeats=(repeats,)))
    assert tolerance.floor.value == tolerance.envelope.value == pytest.approx(0.25)


@pytest.mark.parametrize("guard", [*REQUIRED, "own_error"])
def test_a_failed_guard_gives_no_tolerance(guard: str) -> None:
    with pytest.raises(GuardRefusalError, match=f"- {guard}: seen by {guard}"):
        fit_tolerance(fit_input(guards=guards(**{guard: False})))


@pytest.mark.parametrize("guard", REQUIRED)
def test_a_guard_that_was_not_run_gives_no_tolerance(guard: str) -> None:
    some = tuple(finding for finding in guards() if finding.guard != guard)
    with pytest.raises(GuardRefusalError, match=f"not run: {guard}"):
        fit_tolerance(fit_input(guards=some))


@pytest.mark.parametrize(
    "changes",
    [
        {"compositions": moved_by(0)},
        {"compositions": moved_by()},
        {"repeats": ()},
        {"repeats": (moved_by(0),)},
    ],
    ids=["one composition", "no composition", "no repeats", "one repeat"],
)
def test_nothing_to_compare_gives_no_tolerance(changes: dict[str, Any]) -> None:
    with pytest.raises(InsufficientEvidenceError, match="zero items"):
        fit_tolerance(fit_input(**changes))


def test_too_few_decisions_say_how_many_more() -> None:
    with pytest.raises(InsufficientEvidenceError, match="measure 199 more"):
        fit_tolerance(fit_input(coverage=0.99))


@pytest.mark.parametrize("field", ["compositions", "repeats"])
def test_a_non_finite_score_gives_no_tolerance(field: str) -> None:
    scores = moved_by(0, np.nan)
    value = scores if field == "compositions" else (scores,)
    with pytest.raises(InvalidRecordError, match="not finite"):
        fit_tolerance(fit_input(**{field: value}))


def test_scores_over_other_rows_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="over 300 rows"):
        fit_input(repeats=(np.zeros((2, 299)),))


def searched(*firsts: int) -> AxisSearch:
    """Return what a search says that found switches before these sizes."""
    return AxisSearch(
        axis="num_rows",
        held="slot 0",
        sizes=(1, 2, 3, 4, 32),
        switches=tuple(Switch(last=first - 1, first=first) for first in firsts),
        probe_lengths=(9,),
    )


FEW_ROWS = 58 * 3  # one decision short of the 59 that 0.95 at 0.95 needs
COUPLED = neighbours([pair(0.5)], DECISION_OF_ROW, [], 0.95)
UNEXERCISED = neighbours([], DECISION_OF_ROW, [], 0.95)

EQUIVALENCES: list[tuple[str, dict[str, Any], Equivalence]] = [
    ("nothing moved", {}, Equivalence.ANY),
    (
        "an axis moved",
        {"axes": invariant_axes(axis("num_rows", pair(0.5))), "compositions": moved_by(0, 0.5)},
        Equivalence.SHAPE,
    ),
    (
        "minus zero is a moved bit",
        {"axes": invariant_axes(axis("num_rows", (np.zeros(NUM_ROWS), -np.zeros(NUM_ROWS))))},
        Equivalence.SHAPE,
    ),
    (
        "a required axis was not exercised",
        {"axes": invariant_axes(axis("row_order"))},
        Equivalence.SHAPE,
    ),
    ("a required axis is missing", {"axes": invariant_axes()[1:]}, Equivalence.SHAPE),
    ("no axis is required", {"required_axes": ()}, Equivalence.SHAPE),
    (
        "an axis was exercised on too few decisions",
        {"axes": invariant_axes(axis("num_rows", pair(), num_rows=FEW_ROWS))},
        Equivalence.SHAPE,
    ),
    (
        "an axis that is not required moved",
        {"axes": (*invariant_axes(), axis("padding_side", pair(0.5)))},
        Equivalence.SHAPE,
    ),
    (
        "compositions moved though no pair shows it",
        {"compositions": moved_by(0, 0.5)},
        Equivalence.SHAPE,
    ),
    ("a search found a switch", {"searches": (searched(4),)}, Equivalence.SHAPE),
    ("a search found none", {"searches": (searched(),)}, Equivalence.ANY),
    ("coupled", {"neighbours": COUPLED}, Equivalence.EXACT),
    ("neighbours were not exercised", {"neighbours": UNEXERCISED}, Equivalence.EXACT),
    (
        "neighbours were exercised on too few decisions",
        {
            "neighbours": neighbours(
                [(SCORES[:9], SCORES[:9].copy())], DECISION_OF_ROW[:9], [], 0.95
            )
        },
        Equivalence.EXACT,
    ),
    (
        "a repeat moved",
        {"axes": invariant_axes(axis("repeat_fresh_process", pair(0.5)))},
        Equivalence.EXACT,
    ),
    (
        "repeats were not exercised",
        {"axes": invariant_axes(axis("repeat_same_process"))},
        Equivalence.EXACT,
    ),
    (
        "repeats moved though no pair shows it",
        {"repeats": (moved_by(0, 0.5),)},
        Equivalence.EXACT,
    ),
]


@pytest.mark.parametrize(
    ("changes", "equivalence"),
    [case[1:] for case in EQUIVALENCES],
    ids=[case[0] for case in EQUIVALENCES],
)
def test_memberships_count_as_equal_by_evidence_only(
    changes: dict[str, Any], equivalence: Equivalence
) -> None:
    tolerance = fit_tolerance(fit_input(**changes))
    assert tolerance.equivalence is equivalence
    assert tolerance.companion_coupled == (changes.get("neighbours") is COUPLED)


def test_searches_stand_in_the_tolerance_as_they_were_found() -> None:
    found = searched(4), searched()
    assert fit_tolerance(fit_input(searches=found)).searches == found


def test_movement_by_length_is_looked_for_over_repeats_too() -> None:
    """Every other decision is long, and moves in a repeat alone: the floor moves with it."""
    long_rows = DECISION_OF_ROW % 2 == 1
    noise = np.random.default_rng(2).random(NUM_ROWS) * long_rows
    sizes = RowSizes(
        num_tokens=np.where(long_rows, 90, 10), widths=np.full((3, NUM_ROWS), 96, np.int64)
    )
    moved_again = (np.stack([SCORES, SCORES + noise]),)
    changes = {"sizes": sizes, "coverage": 0.9, "confidence": 0.9}
    tolerance = fit_tolerance(fit_input(repeats=moved_again, **changes))
    (by_length,) = tolerance.strata
    assert (by_length.axis, by_length.p_value <= by_length.level) == ("token_length", True)
    assert [(one.lower, one.upper) for one in by_length.strata] == [(10, 10), (11, 90)]
    assert by_length.strata[0].envelope.value == tolerance.floor.value > 0.5
    assert by_length.strata[0].envelope.lower == 0.0
    assert by_length.strata[1].envelope.value >= tolerance.floor.value
    assert fit_tolerance(fit_input(repeats=moved_again)).strata == ()
