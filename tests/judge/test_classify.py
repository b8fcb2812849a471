import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from harness.codec import decode, encode, parse
from harness.errors import (
    InvalidRecordError,
    InvalidToleranceError,
    ReconstructionMismatchError,
    ReplayDivergenceError,
)
from harness.judge.classify import classify_replay, judge
from harness.judge.tolerances import Tolerances
from harness.records import (
    CommitRecord,
    Equivalence,
    Invocation,
    Policy,
    PrecisionName,
    ReplayRecord,
    Strata,
    Stratum,
    StratumAxis,
    Verdict,
    VerdictKind,
)
from harness.records.build import CHECKED
from harness.records.scores import to_wire
from tests.examples import (
    ENVELOPE,
    FLOOR,
    LATER,
    SCORES,
    a_bound,
    a_build,
    a_commit,
    a_membership,
    a_precision,
    a_replay,
    a_slot,
    a_step,
    a_tolerance,
    a_tolerance_file,
    a_withdrawal,
    an_invocation,
    an_order,
    moved,
)

TOLERANCES = Tolerances(files=(a_tolerance_file(),))
NONE = Tolerances(files=())
NON_FINITE = [math.nan, math.inf, -math.inf]
OTHER = an_invocation(precision_mode=a_precision(name=PrecisionName.FLOAT32))


def verdict(replay: ReplayRecord, commit: CommitRecord | None = None, **how: Any) -> Verdict:
    return judge(commit or a_commit(), replay, how.pop("tolerances", TOLERANCES), **how)


SEVEN: dict[str, tuple[CommitRecord, ReplayRecord, Tolerances, VerdictKind, bool, str]] = {
    # name -> (commit, replay, tolerances, verdict, fault, how its reason begins)
    "speculative": (
        a_commit(committed=False),
        moved(9.0),
        TOLERANCES,
        VerdictKind.PLAN_NOISE,
        False,
        "the commit never crossed the boundary",
    ),
    "parameterised differently": (
        a_commit(),
        a_replay(invocation=OTHER),
        TOLERANCES,
        VerdictKind.RECONSTRUCTION,
        False,
        "another computation, no evidence about the commit: precision_mode.name was bfloat16",
    ),
    "no tolerance": (
        a_commit(),
        a_replay(),
        NONE,
        VerdictKind.UNJUDGED,
        False,
        "no tolerance file is given; calibrate build",
    ),
    "the same bits": (
        a_commit(),
        a_replay(),
        TOLERANCES,
        VerdictKind.EXACT,
        False,
        "every score has the same bits",
    ),
    "within the floor": (
        a_commit(),
        moved(FLOOR / 2),
        TOLERANCES,
        VerdictKind.CONSISTENT,
        False,
        "branch 'b' moved by 0.00048828125, within the floor of 0.0009765625",
    ),
    "within the envelope": (
        a_commit(),
        moved(-ENVELOPE / 2, "c"),
        TOLERANCES,
        VerdictKind.DRIFT,
        False,
        "branch 'c' moved by 0.03125, beyond the floor of 0.0009765625",
    ),
    "beyond the envelope": (
        a_commit(),
        moved(ENVELOPE * 2),
        TOLERANCES,
        VerdictKind.DIVERGENCE,
        True,
        "branch 'b' moved by 0.125, beyond the envelope of 0.0625",
    ),
}


@pytest.mark.parametrize(
    ("commit", "replay", "tolerances", "kind", "fault", "why"), SEVEN.values(), ids=SEVEN
)
def test_the_seven_verdicts(  # noqa: PLR0917 - one row of the table
    commit: CommitRecord,
    replay: ReplayRecord,
    tolerances: Tolerances,
    kind: VerdictKind,
    fault: bool,  # noqa: FBT001
    why: str,
) -> None:
    found = judge(commit, replay, tolerances)
    assert (found.kind, found.fault) == (kind, fault)
    assert found.reason.startswith(why)
    assert (found.commit_id, found.decision_id, found.replica) == ("c1", "d1", "replica-0")
    assert decode(Verdict, parse(encode(found), "verdict"), "verdict") == found


def test_the_table_holds_all_seven() -> None:
    assert {row[3] for row in SEVEN.values()} == set(VerdictKind)


def test_a_verdict_carries_what_it_rests_on() -> None:
    found = verdict(moved(-2.0, "a"))
    assert found.delta == 2.0
    assert found.worst_branch == "a"
    assert (found.floor, found.envelope) == (FLOOR, ENVELOPE)
    assert found.tolerance_id == a_tolerance_file().tolerance_id(a_tolerance())
    assert found.impact is not None
    assert (found.impact.top1_changed, found.impact.order_inversions) == (True, 1)
    assert not found.impact.within_tie
    exact = verdict(a_replay())
    assert (exact.delta, exact.worst_branch) == (0.0, None)
    assert exact.impact is not None
    assert not exact.impact.top1_changed


def test_the_whole_vector_counts_not_its_winner() -> None:
    found = verdict(moved(-5.0, "c"))
    assert found.kind is VerdictKind.DIVERGENCE
    assert found.impact is not None
    assert not found.impact.top1_changed


@pytest.mark.parametrize(
    ("floor_times", "kind"),
    [
        (0.5, VerdictKind.CONSISTENT),
        (1.0, VerdictKind.CONSISTENT),
        (math.nextafter(1, 2), VerdictKind.DRIFT),
        (4.0, VerdictKind.DRIFT),
        (math.nextafter(4, 5), VerdictKind.DIVERGENCE),
    ],
)
def test_a_movement_equal_to_a_bound_is_within_it(floor_times: float, kind: VerdictKind) -> None:
    floor, envelope = 0.25, 1.0
    tolerance = a_tolerance(floor=a_bound(floor), envelope=a_bound(envelope))
    tolerances = Tolerances(files=(a_tolerance_file(tolerances=(tolerance,)),))
    zero = a_commit(scores={"a": 0.0, "b": 0.0, "c": 0.0})
    replay = a_replay(scores={"a": 0.0, "b": floor * floor_times, "c": 0.0})
    assert judge(zero, replay, tolerances).kind is kind


def test_minus_zero_is_consistent_but_not_exact() -> None:
    zero = a_commit(scores={"a": 0.0, "b": 0.0, "c": 0.0})
    found = verdict(a_replay(scores={"a": -0.0, "b": 0.0, "c": 0.0}), zero)
    assert (found.kind, found.delta) == (VerdictKind.CONSISTENT, 0.0)


def test_equal_movements_name_the_first_branch() -> None:
    zero = a_commit(scores={"c": 0.0, "b": 0.0, "a": 0.0})
    assert verdict(a_replay(scores={"c": 1.0, "b": -1.0, "a": 0.5}), zero).worst_branch == "b"


def test_where_movement_depends_on_a_size_the_commits_own_envelope_judges() -> None:
    """The same movement: beyond the envelope of its own length, within that of all."""
    stratum = Stratum(lower=1, upper=12, envelope=a_bound(2 * FLOOR))
    by_length = Strata(
        axis=StratumAxis.TOKEN_LENGTH, p_value=0.001, level=0.005, num_missing=0, strata=(stratum,)
    )
    split = Tolerances(files=(a_tolerance_file(tolerances=(a_tolerance(strata=(by_length,)),)),))
    found = verdict(moved(4 * FLOOR), tolerances=split)
    assert (found.kind, found.envelope, found.floor) == (
        VerdictKind.DIVERGENCE,
        2 * FLOOR,
        FLOOR,
    )
    assert found.reason.endswith(
        f"beyond the envelope of {2 * FLOOR!r} for a token_length of 1 to 12"
    )
    assert verdict(moved(4 * FLOOR)).kind is VerdictKind.DRIFT
    assert verdict(moved(2 * FLOOR), tolerances=split).kind is VerdictKind.DRIFT
    assert verdict(moved(FLOOR / 2), tolerances=split).kind is VerdictKind.CONSISTENT


def test_a_withdrawn_tolerance_leaves_a_replay_unjudged() -> None:
    file = a_tolerance_file(digest="sha256:mine")
    gone = a_withdrawal(file_digest="sha256:mine", tolerance_id=file.tolerance_id(a_tolerance()))
    found = verdict(moved(9.0), tolerances=Tolerances(files=(file,), withdrawals=(gone,)))
    assert (found.kind, found.fault) == (VerdictKind.UNJUDGED, False)
    assert "raised the drift alarm with commit 'c1'" in found.reason
    assert verdict(a_replay(invocation=OTHER), tolerances=Tolerances(
        files=(file,), withdrawals=(gone,))).kind is VerdictKind.RECONSTRUCTION  # fmt: skip


def test_strict_policy_makes_drift_a_fault_and_nothing_else() -> None:
    for commit, replay, tolerances, kind, fault, _ in SEVEN.values():
        found = judge(commit, replay, tolerances, policy=Policy.STRICT)
        assert found.kind is kind
        assert found.fault == (fault or kind is VerdictKind.DRIFT)


@pytest.mark.parametrize("score", NON_FINITE)
def test_a_non_finite_replay_score_never_passes(score: float) -> None:
    found = verdict(a_replay(scores={**SCORES, "b": score}))
    assert (found.kind, found.fault) == (VerdictKind.DIVERGENCE, True)
    assert (found.delta, found.worst_branch, found.impact) == (None, "b", None)
    assert found.reason == f"the replayed score of branch 'b' is {score}"


BRANCH_SETS: dict[str, tuple[dict[str, float], str]] = {
    "none": ({}, "it lacks 'a', 'b', 'c'"),
    "one less": ({"a": 1.5, "b": 0.25}, "it lacks 'c'"),
    "one more": ({**SCORES, "d": 0.0}, "it adds 'd'"),
    "one renamed": ({"a": 1.5, "b": 0.25, "C": -2.0}, "it lacks 'c' and adds 'C'"),
    "one less and one not finite": ({"a": math.nan, "b": 0.25}, "it lacks 'c'"),
}


@pytest.mark.parametrize(("scores", "why"), BRANCH_SETS.values(), ids=BRANCH_SETS)
def test_another_branch_set_is_a_divergence(scores: dict[str, float], why: str) -> None:
    found = verdict(a_replay(scores=to_wire(scores), invocation=an_invocation()))
    assert (found.kind, found.fault) == (VerdictKind.DIVERGENCE, True)
    assert why in found.reason


def test_a_movement_beyond_the_largest_float_is_a_divergence_that_can_be_written() -> None:
    huge = a_commit(scores={"a": 1.7e308, "b": 0.0, "c": 0.0})
    found = verdict(a_replay(scores={"a": -1.7e308, "b": 0.0, "c": 0.0}), huge)
    assert (found.kind, found.delta, found.worst_branch) == (VerdictKind.DIVERGENCE, None, "a")
    assert "moved by inf" in found.reason
    encode(found)


@pytest.mark.parametrize("score", [*NON_FINITE, True, "1"])
def test_a_commit_that_became_unusable_is_never_judged(score: Any) -> None:
    for tolerances in (TOLERANCES, NONE):
        for committed in (True, False):
            commit = a_commit(committed=committed)
            commit.scores["a"] = score
            with pytest.raises(InvalidRecordError, match="'a'"):
                judge(commit, a_replay(), tolerances)


@pytest.mark.parametrize("field", ["commit_id", "decision_id"])
def test_a_replay_of_something_else_is_an_error(field: str) -> None:
    for commit in (a_commit(), a_commit(committed=False)):
        with pytest.raises(InvalidRecordError, match=f"the replay is of {field} 'other'"):
            judge(commit, a_replay(**{field: "other"}), TOLERANCES)


ONE_CHANGE: dict[str, Callable[[], Invocation]] = {
    **{
        f"build.{name}": lambda name=name: an_invocation(  # type: ignore[misc]
            build=a_build(
                **{name: {"x": "y"} if name in ("libraries", "kernel_environment") else "other"}
            )
        )
        for name in CHECKED
    },
    "batch_membership": lambda: an_invocation(
        batch_membership=a_membership(steps=(a_step(padded_width=17),))
    ),
    "precision_mode.name": lambda: an_invocation(
        precision_mode=a_precision(name=PrecisionName.FLOAT16)
    ),
    "precision_mode.": lambda: an_invocation(precision_mode=a_precision(resolved={"a": 1})),
    "reduction_order.name": lambda: an_invocation(reduction_order=an_order(name="split_k:2")),
    "reduction_order.": lambda: an_invocation(reduction_order=an_order(resolved={"a": 1})),
    "reduction_order.fingerprints": lambda: an_invocation(
        reduction_order=an_order(fingerprints={})
    ),
}


@pytest.mark.parametrize(("name", "change"), ONE_CHANGE.items(), ids=ONE_CHANGE)
@pytest.mark.parametrize("by", [0.0, 9.0, math.nan])
def test_one_changed_parameter_is_a_reconstruction_whatever_the_scores(
    name: str, change: Callable[[], Invocation], by: float
) -> None:
    scores = to_wire({**SCORES, "b": SCORES["b"] + by})
    for tolerances in (TOLERANCES, NONE):
        found = verdict(a_replay(invocation=change(), scores=scores), tolerances=tolerances)
        assert (found.kind, found.fault) == (VerdictKind.RECONSTRUCTION, False)
        assert all(one.name.startswith(name) for one in found.differing)
        assert found.differing
        assert (found.delta, found.impact, found.tolerance_id) == (None, None, None)


@pytest.mark.parametrize(("name", "change"), ONE_CHANGE.items(), ids=ONE_CHANGE)
def test_the_same_change_on_both_sides_finds_no_tolerance(
    name: str, change: Callable[[], Invocation]
) -> None:
    found = verdict(a_replay(invocation=change()), a_commit(invocation=change()))
    expected = VerdictKind.EXACT if name == "batch_membership" else VerdictKind.UNJUDGED
    assert found.kind is expected
    assert not found.fault


def test_replay_scores_are_not_looked_at_before_the_parameters() -> None:
    class Unseen(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError(key)

        items = values = keys = __iter__ = __getitem__  # type: ignore[assignment]

    replay = a_replay(invocation=OTHER)
    force_setattr(replay, "scores", Unseen(a=1.0))
    assert verdict(replay).kind is VerdictKind.RECONSTRUCTION
    with pytest.raises(ReconstructionMismatchError):
        classify_replay(a_commit(), replay, 0.1)
    plain = {**PLAIN, "precision_mode": "fp32", "scores": Unseen(a=1.0)}
    with pytest.raises(ReconstructionMismatchError):
        classify_replay(PLAIN, plain, 0.1)


@pytest.mark.parametrize("equivalence", Equivalence)
def test_membership_counts_as_equal_only_as_certified(equivalence: Equivalence) -> None:
    slots = a_slot("a"), a_slot("b"), a_slot("g", companion=True), a_slot("c")
    other_companion = an_invocation(batch_membership=a_membership(steps=(a_step(slots=slots),)))
    certified = a_tolerance_file(tolerances=(a_tolerance(equivalence=equivalence),))
    found = judge(a_commit(), a_replay(invocation=other_companion), Tolerances(files=(certified,)))
    exact_only = equivalence is Equivalence.EXACT
    assert found.kind is (VerdictKind.RECONSTRUCTION if exact_only else VerdictKind.EXACT)
    lapsed = a_tolerance_file(tolerances=certified.tolerances, expires_at=LATER)
    stale = judge(
        a_commit(),
        a_replay(invocation=other_companion),
        Tolerances(files=(lapsed,)),
        now=LATER,
    )
    assert stale.kind is VerdictKind.RECONSTRUCTION


PLAIN: dict[str, Any] = {
    "batch_membership": frozenset({"r1", "r2"}),
    "precision_mode": "bf16",
    "reduction_order": "vendor",
    "scores": {"a": 1.0, "b": 0.0},
}


def plain(**changes: Any) -> dict[str, Any]:
    return {**PLAIN, **changes}


def test_a_plain_replay_within_tolerance_is_consistent() -> None:
    assert classify_replay(PLAIN, plain(), 0.0) == "replay_consistent"
    near = plain(scores={"b": 0.25, "a": 1})
    assert classify_replay(PLAIN, near, 0.25) == "replay_consistent"
    assert classify_replay(plain(more=1), plain(batch_membership={"r2", "r1"}), 0) is not None


def test_a_plain_movement_beyond_tolerance_is_a_divergence() -> None:
    message = r"branch 'b' moved by 0\.25, beyond the tolerance of 0\.2"
    with pytest.raises(ReplayDivergenceError, match=message):
        classify_replay(PLAIN, plain(scores={"a": 1.125, "b": -0.25}), 0.2)
    with pytest.raises(ReplayDivergenceError):
        classify_replay(PLAIN, plain(scores={"a": 1.0, "b": 0.25}), math.nextafter(0.25, 0))


PLAIN_DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "membership": (
        {"batch_membership": frozenset({"r1"})},
        r"batch_membership was \['r1', 'r2'\] at commit and \['r1'\] at replay",
    ),
    "precision": (
        {"precision_mode": "fp32"},
        r"precision_mode was 'bf16' at commit and 'fp32' at replay",
    ),
    "order": (
        {"reduction_order": "split_k:2"},
        r"reduction_order was 'vendor' at commit and 'split_k:2' at replay",
    ),
    "all, in order": (
        {"reduction_order": "x", "precision_mode": "y", "batch_membership": frozenset()},
        r"batch_membership was .*; precision_mode was .*; reduction_order was",
    ),
}


@pytest.mark.parametrize(("changes", "message"), PLAIN_DIFFERENCES.values(), ids=PLAIN_DIFFERENCES)
@pytest.mark.parametrize("scores", [PLAIN["scores"], {"a": math.nan}, {}, {"a": "x"}], ids=repr)
def test_a_plain_parameter_that_differs_is_told_before_scores(
    changes: dict[str, Any], message: str, scores: dict[str, Any]
) -> None:
    with pytest.raises(ReconstructionMismatchError, match=message):
        classify_replay(PLAIN, plain(**changes, scores=scores), 0.1)


NO_RECORDS: dict[str, Any] = {
    "None": None,
    "a list": [PLAIN],
    "a string": "commit",
    "empty": {},
    **{f"no {key}": {k: v for k, v in PLAIN.items() if k != key} for key in PLAIN},
    "membership a list": plain(batch_membership=["r1", "r2"]),
    "membership a string": plain(batch_membership="r1"),
    "membership of numbers": plain(batch_membership=frozenset({1, 2})),
    "precision None": plain(precision_mode=None),
    "order a number": plain(reduction_order=1),
    "scores a list": plain(scores=[1.0, 0.0]),
    "scores None": plain(scores=None),
}

NO_SCORES: dict[str, Any] = {
    "a word": {"a": "1.0", "b": 0.0},
    "None": {"a": None, "b": 0.0},
    "a bool": {"a": True, "b": 0.0},
    "a complex number": {"a": 1j, "b": 0.0},
    "a branch that is no string": {1: 1.0, "b": 0.0},
    "an integer beyond floats": {"a": 10**400, "b": 0.0},
}


@pytest.mark.parametrize("record", NO_RECORDS.values(), ids=NO_RECORDS)
def test_a_mapping_that_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(InvalidRecordError, match="the commit record"):
        classify_replay(record, PLAIN, 0.1)
    with pytest.raises(InvalidRecordError, match="the replay record"):
        classify_replay(PLAIN, record, 0.1)


@pytest.mark.parametrize("scores", NO_SCORES.values(), ids=NO_SCORES)
def test_scores_that_are_no_numbers_are_refused(scores: Any) -> None:
    with pytest.raises(InvalidRecordError):
        classify_replay(plain(scores=scores), PLAIN, 0.1)
    with pytest.raises(InvalidRecordError):
        classify_replay(PLAIN, plain(scores=scores), 0.1)


@pytest.mark.parametrize("score", NON_FINITE)
def test_non_finite_plain_scores(score: float) -> None:
    bad = plain(scores={"a": score, "b": 0.0})
    with pytest.raises(InvalidRecordError, match="branch 'a' is not finite"):
        classify_replay(bad, bad, 0.1)
    with pytest.raises(ReplayDivergenceError, match=f"branch 'a' is {score}"):
        classify_replay(PLAIN, bad, 1e308)


def test_empty_scores() -> None:
    with pytest.raises(InvalidRecordError, match="empty"):
        classify_replay(plain(scores={}), plain(scores={}), 0.1)
    with pytest.raises(ReplayDivergenceError, match="lacks 'a', 'b'"):
        classify_replay(PLAIN, plain(scores={}), 0.1)


@pytest.mark.parametrize(
    "tolerance", [*NON_FINITE, -0.001, True, False, None, "0.1", 10**400, [0.1]], ids=repr
)
def test_a_tolerance_that_is_none_is_refused(tolerance: Any) -> None:
    with pytest.raises(InvalidToleranceError):
        classify_replay(PLAIN, PLAIN, tolerance)
    with pytest.raises(InvalidToleranceError):
        classify_replay(a_commit(), a_replay(), tolerance)


def test_records_go_the_same_way() -> None:
    assert classify_replay(a_commit(), moved(0.01), 0.02) == "replay_consistent"
    with pytest.raises(ReplayDivergenceError, match=r"branch 'b' moved by 0\.03"):
        classify_replay(a_commit(), moved(0.03), 0.02)
    with pytest.raises(ReplayDivergenceError, match="branch 'b' is nan"):
        classify_replay(a_commit(), moved(math.nan), 0.02)
    with pytest.raises(ReconstructionMismatchError, match=r"precision_mode\.name was bfloat16"):
        classify_replay(a_commit(), a_replay(invocation=OTHER), 0.02)
    with pytest.raises(InvalidRecordError, match="commit_id 'other'"):
        classify_replay(a_commit(), a_replay(commit_id="other"), 0.02)
    with pytest.raises(InvalidRecordError, match="never crossed the boundary"):
        classify_replay(a_commit(committed=False), a_replay(), 0.02)


def test_a_record_and_a_mapping_do_not_go_together() -> None:
    pairs: list[tuple[Any, Any]] = [(a_commit(), PLAIN), (PLAIN, a_replay()), (a_replay(),) * 2]
    for commit, replay in pairs:
        with pytest.raises(InvalidRecordError, match="is a mapping, found"):
            classify_replay(commit, replay, 0.1)


ANY_FLOAT = st.floats() | st.sampled_from([0.0, -0.0, 1.0])


@given(st.dictionaries(st.sampled_from("ab"), ANY_FLOAT), ANY_FLOAT)
def test_consistent_means_every_score_is_within_tolerance(
    replayed: Mapping[str, float], tolerance: float
) -> None:
    """The rule, stated once more in the plainest way, over all floats."""
    within = (
        replayed.keys() == PLAIN["scores"].keys()
        and math.isfinite(tolerance)
        and tolerance >= 0
        and all(abs(replayed[b] - PLAIN["scores"][b]) <= tolerance for b in replayed)
    )
    try:
        result = classify_replay(PLAIN, plain(scores=replayed), tolerance)
    except (ReplayDivergenceError, InvalidToleranceError):
        assert not within
    else:
        assert within
        assert result == "replay_consistent"
