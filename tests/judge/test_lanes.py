"""Judging commits of lanes: `any` reaches from one filling of a lane to another, and no further."""

from typing import Any

import pytest
from msgspec.structs import replace

from harness.judge.classify import judge
from harness.judge.parameters import differing_parameters
from harness.judge.tolerances import NoTolerance, Tolerances
from harness.records import (
    BatchMembership,
    CommitRecord,
    CoveredBatches,
    Equivalence,
    Lane,
    Lanes,
    Padded,
    PaddingSide,
    ReplayRecord,
    Step,
    VerdictKind,
)
from tests.examples import (
    a_bound,
    a_commit,
    a_replay,
    a_slot,
    a_step,
    a_tolerance,
    a_tolerance_file,
    an_invocation,
    moved,
)

TABLE = (Lane(rows=8, width=16), Lane(rows=8, width=32))
A, B, C = (a_slot(name) for name in "abc")
F, G = (a_slot(name, companion=True) for name in "fg")


def in_lane(*slots: Any, rows: int = 8, width: int = 16, **changes: Any) -> Step:
    return a_step(slots=slots, padded_rows=rows, padded_width=width, **changes)


def membership(*steps: Step, table: tuple[Lane, ...] = TABLE) -> BatchMembership:
    return BatchMembership(steps=steps, requested=Lanes(lanes=table))


HERE = membership(in_lane(A, B, F, C))


def file_of(lanes: tuple[Lane, ...] = TABLE, **changes: Any) -> Any:
    covered = CoveredBatches(
        mode="lanes", max_rows=8, max_width=32, sides=(PaddingSide.RIGHT,), lanes=lanes
    )
    zero = a_bound(0.0)
    tolerance = a_tolerance(
        batches=covered, equivalence=Equivalence.ANY, floor=zero, envelope=zero, **changes
    )
    return a_tolerance_file(tolerances=(tolerance,))


def commit(found: BatchMembership = HERE) -> CommitRecord:
    return a_commit(invocation=an_invocation(batch_membership=found))


def replayed(found: BatchMembership, replay: ReplayRecord | None = None) -> ReplayRecord:
    return replace(replay or a_replay(), invocation=an_invocation(batch_membership=found))


def verdict(replay: ReplayRecord, *files: Any, of: CommitRecord | None = None) -> VerdictKind:
    return judge(of or commit(), replay, Tolerances(files=files or (file_of(),))).kind


SAME = {
    "other companions": membership(in_lane(G, C, A, B)),
    "part-full": membership(in_lane(A, B, C)),
    "each alone": membership(in_lane(A), in_lane(B), in_lane(C)),
}
OTHER = {
    "in a wider lane": membership(in_lane(A, B, F, C, width=32)),
    "in more rows": membership(in_lane(A, B, F, C, rows=9)),
    "unpadded": BatchMembership(steps=(a_step(),), requested=Padded()),
    "as wide, without inert rows": membership(a_step()),
    "one of them elsewhere": membership(in_lane(A, B), in_lane(C, width=32)),
}


@pytest.mark.parametrize("found", SAME.values(), ids=SAME)
def test_any_filling_of_the_lane_is_the_same_computation(found: BatchMembership) -> None:
    assert verdict(replayed(found)) is VerdictKind.EXACT
    assert verdict(replayed(found, moved(2.0**-20))) is VerdictKind.DIVERGENCE


@pytest.mark.parametrize("found", OTHER.values(), ids=OTHER)
def test_another_shape_is_another_computation(found: BatchMembership) -> None:
    assert verdict(replayed(found)) is VerdictKind.RECONSTRUCTION


def test_without_the_certificate_other_companions_are_another_computation() -> None:
    plain = a_tolerance_file(
        tolerances=(replace(file_of().tolerances[0], equivalence=Equivalence.EXACT),)
    )
    assert verdict(replayed(SAME["other companions"]), plain) is VerdictKind.RECONSTRUCTION
    assert verdict(replayed(HERE), plain) is VerdictKind.EXACT


def test_a_commit_of_another_lane_table_is_unjudged_and_says_why() -> None:
    other = membership(in_lane(A, B, F, C, width=24), table=(Lane(rows=8, width=24),))
    assert verdict(replayed(other), of=commit(other)) is VerdictKind.UNJUDGED
    found = Tolerances(files=(file_of(),)).lookup(commit(other), None)
    assert isinstance(found, NoTolerance)
    assert found.reason == (
        "the batch (lanes, up to 8 rows of 24 tokens, padded right, in lanes 8x24) lies outside "
        "what was measured (lanes, up to 8 rows of 32 tokens, padded right, in lanes 8x16, 8x32); "
        "calibrate such batches"
    )


def test_files_of_two_lane_tables_go_together_and_of_one_do_not() -> None:
    other = file_of((Lane(rows=8, width=24),))
    assert verdict(replayed(HERE), file_of(), other) is VerdictKind.EXACT
    later = replace(file_of(), created_at="2026-02-02T00:00:00+00:00")
    with pytest.raises(ValueError, match="different tolerances"):
        Tolerances(files=(file_of(), later))


@pytest.mark.parametrize("by", [Equivalence.EXACT, Equivalence.SHAPE])
def test_inert_rows_are_part_of_the_shape(by: Equivalence) -> None:
    plain, here = (
        an_invocation(batch_membership=one)
        for one in (membership(a_step(slots=(A, B, F, C))), HERE)
    )
    names = [one.name for one in differing_parameters(here, plain, by)]
    assert names == ["batch_membership.steps[0].padded_rows"]
