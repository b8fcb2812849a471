from typing import Any

import pytest

from harness.errors import ConfigError, InvalidRecordError
from harness.judge.tolerances import NoTolerance, Tolerances, UsableTolerance
from harness.records import (
    CoveredBatches,
    Equivalence,
    FixedWidth,
    Invocation,
    PaddingSide,
    PrecisionName,
    ScoreUnit,
    Solo,
    Step,
    Strata,
    Stratum,
    StratumAxis,
    Tolerance,
)
from tests.examples import (
    LATER,
    a_bound,
    a_build,
    a_commit,
    a_membership,
    a_precision,
    a_slot,
    a_step,
    a_tolerance,
    a_tolerance_file,
    an_invocation,
)

NOW = "2026-03-01T12:00:00Z"


def covered(mode: str = "padded", max_rows: int = 8, max_width: int = 64) -> CoveredBatches:
    return CoveredBatches(
        mode=mode, max_rows=max_rows, max_width=max_width, sides=(PaddingSide.RIGHT,)
    )


def of(*files: Any) -> Tolerances:
    return Tolerances(files=files)


def reason(tolerances: Tolerances, invocation: Invocation, now: str | None = NOW) -> str:
    found = tolerances.lookup(a_commit(invocation=invocation), now)
    assert isinstance(found, NoTolerance)
    return found.reason


def test_the_tolerance_of_the_build_and_condition_is_found() -> None:
    file = a_tolerance_file()
    found = of(a_tolerance_file(build=a_build(device="cuda")), file).lookup(a_commit(), NOW)
    assert isinstance(found, UsableTolerance)
    assert found.tolerance == a_tolerance()
    assert found.tolerance_id == file.tolerance_id(a_tolerance())


def test_no_file_at_all() -> None:
    assert reason(of(), an_invocation()).startswith("no tolerance file is given; calibrate build ")


def test_a_cpu_file_never_counts_for_a_gpu_record() -> None:
    gpu = an_invocation(build=a_build(device="cuda"))
    why = reason(of(a_tolerance_file()), gpu)
    assert "for cpu builds and this is a cuda record" in why
    assert "calibrate build" in why


def test_another_build_is_named_with_what_differs() -> None:
    near = a_tolerance_file(build=a_build(libraries={"torch": "2.12.1", "onednn": "3.11"}))
    far = a_tolerance_file(build=a_build(engine="x", device_name="y", prompt_digest="z"))
    other_device = a_tolerance_file(build=a_build(device="cuda"))
    why = reason(of(far, other_device, near), an_invocation())
    assert f"the nearest calibrated build, {near.build.build_id[7:19]}, differs in" in why
    assert "build.libraries.torch (2.13.0 here, 2.12.1 there)" in why
    assert why.endswith("calibrate this build")


def test_another_condition_is_named_with_what_differs() -> None:
    single = an_invocation(
        precision_mode=a_precision(name=PrecisionName.FLOAT32, resolved=a_precision().resolved)
    )
    assert reason(of(a_tolerance_file()), single) == (
        "this build is calibrated, but not for float32 with order vendor; the nearest condition "
        "differs in precision_mode.name (float32 here, bfloat16 there); calibrate that condition"
    )


OUTSIDE: dict[str, dict[str, Any]] = {
    "wider": {"steps": (a_step(padded_width=65),)},
    "more rows": {"steps": (Step(slots=tuple(a_slot("a") for _ in range(9)), padded_width=12),)},
    "the other side": {"steps": (a_step(padding_side=PaddingSide.LEFT),)},
    "only the second step": {"steps": (a_step(), a_step(padded_width=65))},
    "another mode": {"requested": FixedWidth(width=16)},
    "solo": {"requested": Solo()},
}


@pytest.mark.parametrize("changes", OUTSIDE.values(), ids=OUTSIDE)
def test_batches_that_were_not_measured(changes: dict[str, Any]) -> None:
    outside = an_invocation(batch_membership=a_membership(**changes))
    why = reason(of(a_tolerance_file()), outside)
    assert "lies outside what was measured (padded, up to 8 rows of 64 tokens, padded right)" in why


def test_an_engines_batch_has_no_mode_to_match() -> None:
    engine = a_commit(invocation=an_invocation(batch_membership=a_membership(requested=None)))
    assert isinstance(of(a_tolerance_file()).lookup(engine, NOW), UsableTolerance)


def test_of_several_the_one_of_the_smallest_batches_is_used() -> None:
    sizes = [covered(max_rows=32), covered(max_rows=4), covered(max_rows=8), covered(max_rows=3)]
    tolerances = tuple(a_tolerance(batches=batches) for batches in sizes)
    for order in (tolerances, tolerances[::-1]):
        found = of(a_tolerance_file(tolerances=order)).lookup(a_commit(), NOW)
        assert isinstance(found, UsableTolerance)
        assert found.tolerance.batches.max_rows == 4


@pytest.mark.parametrize(
    ("expires_at", "now", "usable"),
    [
        (None, None, True),
        (None, NOW, True),
        (LATER, NOW, True),
        (LATER, LATER, False),
        (LATER, "2026-06-01T00:00:01Z", False),
        (LATER, "2026-05-31T23:59:59+00:00", True),
        (LATER, "2026-06-01T01:30:00+02:00", True),
        (LATER, "2026-06-01T00:00:00", False),
        (LATER, None, False),
    ],
)
def test_expiry(expires_at: str | None, now: str | None, usable: bool) -> None:  # noqa: FBT001
    found = of(a_tolerance_file(expires_at=expires_at)).lookup(a_commit(), now)
    assert isinstance(found, UsableTolerance) == usable
    if isinstance(found, NoTolerance):
        assert LATER in found.reason


def test_dates_that_cannot_be_read() -> None:
    with pytest.raises(InvalidRecordError, match=r"tolerance file 1.*expires_at is no ISO 8601"):
        of(a_tolerance_file(), a_tolerance_file(expires_at="next year"))
    with pytest.raises(ConfigError, match="`now` is an ISO 8601 time, found 'today'"):
        of(a_tolerance_file(expires_at=LATER)).lookup(a_commit(), "today")


def test_another_score_unit() -> None:
    why = reason(of(a_tolerance_file(score_unit=ScoreUnit.GRADE)), an_invocation())
    assert why.startswith("the tolerance is in grade and the commit is in logit")


def test_files_that_contradict_each_other_are_refused_by_name() -> None:
    wider = a_tolerance_file(tolerances=(a_tolerance(envelope=a_bound(0.5)),))
    newer = a_tolerance_file(created_at="2026-02-02T00:00:00+00:00")
    for other in (wider, newer):
        with pytest.raises(InvalidRecordError, match="one and two hold different tolerances"):
            Tolerances(files=(a_tolerance_file(), other), names=("one", "two"))


def test_files_for_other_modes_or_builds_go_together() -> None:
    solo = a_tolerance_file(tolerances=(a_tolerance(batches=covered("solo", max_rows=1)),))
    other = a_tolerance_file(build=a_build(engine="x"))
    together = of(a_tolerance_file(), solo, other, a_tolerance_file())
    found = together.lookup(a_commit(), NOW)
    assert isinstance(found, UsableTolerance)
    assert found.tolerance.batches.mode == "padded"


def test_an_equivalence_reaches_no_further_than_what_was_measured() -> None:
    certified = a_tolerance_file(tolerances=(a_tolerance(equivalence=Equivalence.ANY),))
    found = of(certified).lookup(a_commit(), NOW)
    assert found.equivalence_for(a_membership()) is Equivalence.ANY
    wide = a_membership(steps=(a_step(padded_width=65),))
    assert found.equivalence_for(wide) is Equivalence.EXACT
    assert of().lookup(a_commit(), NOW).equivalence_for(a_membership()) is Equivalence.EXACT


def by_size(axis: StratumAxis, *edges: tuple[int, int, float]) -> Tolerance:
    """Return a tolerance with an envelope a stratum: lower, upper, value."""
    strata = (Stratum(lower=a, upper=b, envelope=a_bound(value)) for a, b, value in edges)
    found = Strata(axis=axis, p_value=0.001, level=0.005, num_missing=0, strata=tuple(strata))
    other = next(one for one in StratumAxis if one is not axis)
    return a_tolerance(strata=(found, Strata(axis=other, p_value=0.5, level=0.005, num_missing=0)))


def envelope(tolerance: Tolerance, **changes: Any) -> float:
    commit = a_commit(invocation=an_invocation(batch_membership=a_membership(**changes)))
    found = of(a_tolerance_file(tolerances=(tolerance,))).lookup(commit, NOW)
    assert isinstance(found, UsableTolerance)
    return found.envelope


LONG = a_slot("c", num_tokens=9, num_computed_tokens=21)  # 30 tokens, in parts
SIZES: list[tuple[str, dict[str, Any], float]] = [
    ("length in the first", {}, 0.01),
    ("at its upper edge", {"steps": (a_step(slots=(a_slot("a", num_tokens=16),)),)}, 0.01),
    ("at the next lower edge", {"steps": (a_step(slots=(a_slot("a", num_tokens=17),),
                                                 padded_width=17),)}, 0.5),
    ("the longest branch counts", {"steps": (a_step(slots=(a_slot("a"), LONG)),)}, 0.5),
    ("a companion does not", {"steps": (a_step(slots=(
        a_slot("a"), a_slot("f", companion=True, num_tokens=40)), padded_width=40),)}, 0.01),
    ("beyond all", {"steps": (a_step(slots=(a_slot("a", num_tokens=41),), padded_width=41),)},
     2.0**-4),
    ("below all", {"steps": (a_step(slots=(a_slot("a", num_tokens=7),)),)}, 2.0**-4),
    ("no branch is named", {"steps": (a_step(slots=(a_slot("f", companion=True),)),)}, 2.0**-4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "value"), [case[1:] for case in SIZES], ids=[case[0] for case in SIZES]
)
def test_the_envelope_is_that_of_the_commits_own_length(
    changes: dict[str, Any], value: float
) -> None:
    lengths = by_size(StratumAxis.TOKEN_LENGTH, (8, 16, 0.01), (17, 40, 0.5))
    assert envelope(lengths, **changes) == value


@pytest.mark.parametrize(("width", "value"), [(15, 2.0**-4), (16, 0.01), (20, 0.01), (21, 0.5)])
def test_the_envelope_is_that_of_the_commits_own_width(width: int, value: float) -> None:
    widths = by_size(StratumAxis.PADDED_WIDTH, (16, 20, 0.01), (21, 64, 0.5))
    steps = (a_step(padded_width=12), a_step(padded_width=width))
    assert envelope(widths, steps=steps) == value


@pytest.mark.parametrize(
    "edges",
    [((8, 16, 0.01), (16, 40, 0.5)), ((17, 40, 0.5), (8, 16, 0.01)), ((16, 8, 0.01),)],
    ids=["overlapping", "descending", "inverted"],
)
def test_strata_ascend_and_do_not_overlap(edges: tuple[tuple[int, int, float], ...]) -> None:
    with pytest.raises(ValueError, match="ascend and do not overlap"):
        by_size(StratumAxis.TOKEN_LENGTH, *edges)


def test_no_stratum_shrinks_below_the_floor() -> None:
    with pytest.raises(ValueError, match="the envelope is below the floor"):
        by_size(StratumAxis.TOKEN_LENGTH, (8, 16, 2.0**-11))


def test_envelopes_by_two_sizes_are_refused() -> None:
    lengths = by_size(StratumAxis.TOKEN_LENGTH, (8, 16, 0.01)).strata[0]
    widths = by_size(StratumAxis.PADDED_WIDTH, (8, 16, 0.01)).strata[0]
    with pytest.raises(ValueError, match="by more than one size"):
        a_tolerance(strata=(lengths, widths))


def test_the_holders_of_a_tolerance_are_named() -> None:
    file = a_tolerance_file()
    other = a_tolerance_file(build=a_build(engine="x"))
    together = Tolerances(files=(file, other, file), names=("one", "two", "three"))
    assert together.holders(file.tolerance_id(a_tolerance())) == {"one": file, "three": file}
    assert together.holders("unknown") == {}


def test_exceedance_rates_are_those_of_the_floors() -> None:
    tolerance = a_tolerance(floor=a_bound(0.001, exceedance_rate_upper=0.0625))
    file = a_tolerance_file(tolerances=(tolerance,))
    assert of(file).exceedance_rates() == {file.tolerance_id(tolerance): 0.0625}
