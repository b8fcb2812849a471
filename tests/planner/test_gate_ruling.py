"""The pure core: records in, ruling out."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidRecordError
from harness.planner import Branch, BranchVerdict, Found, RefusalReason, Step, StepKind, rule
from harness.planner.branch import reads_of
from harness.planner.ruling import union_of_reads
from tests.planner.gate_examples import a_version

FOUR, FIVE = a_version("4", 4), a_version("5", 5)


def branch(name: str = "a", **fields: Any) -> Branch:
    return Branch(branch_id=name, decision_id="d", **fields)


def found(version: Any, written_by: str = "") -> dict[str, Found]:
    return {"r": Found(version=version, written_by=written_by)}


READ = branch(read_set={"r": FOUR})
WRITE = branch(read_set={"r": FOUR}, write_set={"r": b"x"})
STALE = {
    "another token": found(a_version("5", 4)),
    "another generation": found(a_version("4", 5), "b"),
    "an older generation": found(a_version("4", 3)),
}


def test_what_is_current_commits() -> None:
    assert rule(READ, [], found(FOUR)).commits
    assert rule(WRITE, [], found(FOUR)).commits


@pytest.mark.parametrize("now", STALE.values(), ids=STALE)
def test_a_stale_read(now: Mapping[str, Found]) -> None:
    held, refused = rule(READ, [], now), rule(WRITE, [], now)
    assert not held.commits
    assert not refused.commits
    assert [read.resource for read in held.stale] == ["r"]
    assert held.refusal is None
    assert refused.refusal is not None
    assert refused.refusal.reason is RefusalReason.STALE_WRITE


@pytest.mark.parametrize(("seen", "now"), [(None, FOUR), (FOUR, None), (None, None)])
@pytest.mark.parametrize("writes", [{}, {"r": b"x"}])
def test_no_version(seen: Any, now: Any, writes: Any) -> None:
    refusal = rule(branch(read_set={"r": seen}, write_set=writes), [], found(now)).refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.UNVERSIONED


def test_the_writer_is_named_only_if_it_wrote_since() -> None:
    (since,) = rule(READ, [], found(FIVE, "b")).stale
    (before,) = rule(READ, [], found(a_version("x", 4), "b")).stale
    assert (since.written_by, before.written_by) == ("b", "")
    assert "branch 'b' wrote it" in str(since)
    assert "writer unknown" in str(before)


def test_a_branch_that_saw_the_world_move_is_stale() -> None:
    """Whichever of its two versions is current, the other is not."""
    later = Step(kind=StepKind.TOOL_RESULT, text="again", reads={"r": FIVE})
    both = branch(read_set={"r": FOUR}, steps=(later,))
    for now in (FOUR, FIVE):
        assert len(rule(both, [], found(now)).stale) == 1
    assert len(list(reads_of(both))) == 2


def test_a_refusal_comes_before_a_hold() -> None:
    both = branch(read_set={"r": FOUR, "s": FOUR}, write_set={"s": b"x"})
    now = {"r": Found(version=FIVE), "s": Found(version=FIVE)}
    refusal = rule(both, [], now).refusal
    assert refusal is not None
    assert [read.resource for read in refusal.reads] == ["s"]


versions = st.one_of(st.none(), st.builds(a_version, st.sampled_from("45"), st.integers(0, 2)))
read_sets = st.dictionaries(st.sampled_from("rst"), versions)
branches = st.builds(
    branch,
    st.sampled_from("abc"),
    read_set=read_sets,
    write_set=st.dictionaries(st.sampled_from("rst"), st.binary(max_size=1)),
)


@given(branches, st.lists(branches, max_size=2), st.data())
def test_it_commits_exactly_when_everything_is_current(
    mine: Branch, siblings: list[Branch], data: st.DataObject
) -> None:
    now = {name: data.draw(versions) for name in union_of_reads([mine, *siblings])}
    ruling = rule(mine, siblings, {name: Found(version=v) for name, v in now.items()})
    current = all(
        seen is not None and seen == now[name]
        for each in (mine, *siblings)
        for name, seen in each.read_set.items()
    )
    assert ruling.commits is (current and mine.write_set.keys() <= mine.read_set.keys())
    if ruling.stale:
        assert not {read.resource for read in ruling.stale} & mine.write_set.keys()


BAD_RECORDS: dict[str, tuple[Any, str]] = {
    "an empty token": (lambda: a_version("", 0), "use None"),
    "a negative generation": (lambda: a_version("x", -1), "below 0"),
    "no branch id": (lambda: branch(""), "needs a branch_id"),
    "a score that is not finite": (
        lambda: BranchVerdict(accepted=True, score=float("nan")),
        "not a finite number",
    ),
    "a thought that reads": (
        lambda: Step(kind=StepKind.THOUGHT, text="", reads={"r": FOUR}),
        "pin its tool result",
    ),
}


@pytest.mark.parametrize(("make", "why"), BAD_RECORDS.values(), ids=list(BAD_RECORDS))
def test_a_record_that_breaks_a_rule(make: Any, why: str) -> None:
    with pytest.raises(InvalidRecordError, match=why):
        make()
