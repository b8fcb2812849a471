"""Memberships only asked for: no fault can rest on them, unless the build is invariant."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ReconstructionMismatchError
from harness.judge.classify import classify_replay, judge
from harness.judge.tolerances import Tolerances
from harness.records import CommitRecord, Equivalence, ReplayRecord, VerdictKind
from harness.records.membership import MembershipSource
from harness.records.scores import to_wire
from harness.records.verdict import Policy
from tests.examples import (
    ENVELOPE,
    SCORES,
    a_commit,
    a_membership,
    a_replay,
    a_tolerance,
    a_tolerance_file,
    an_invocation,
)

OBSERVED, REQUESTED = MembershipSource
SOURCES = {
    "observed twice": (OBSERVED, OBSERVED),
    "the commit requested": (REQUESTED, OBSERVED),
    "the replay requested": (OBSERVED, REQUESTED),
    "requested twice": (REQUESTED, REQUESTED),
}
JUDGED = {"observed twice": set(Equivalence)}
"""Equivalences under which a replay of such sources is evidence about its commit."""


def certifying(equivalence: Equivalence) -> Tolerances:
    return Tolerances(files=(a_tolerance_file(tolerances=(a_tolerance(equivalence=equivalence),)),))


def committed(source: MembershipSource) -> CommitRecord:
    return a_commit(invocation=an_invocation(batch_membership=a_membership(source=source)))


def replayed(source: MembershipSource, **scores: float) -> ReplayRecord:
    return a_replay(
        invocation=an_invocation(batch_membership=a_membership(source=source)),
        scores=to_wire(SCORES | scores),
    )


@pytest.mark.parametrize("equivalence", Equivalence)
@pytest.mark.parametrize("name", SOURCES)
def test_a_planted_fault_is_one_only_where_it_can_be_known(
    name: str, equivalence: Equivalence
) -> None:
    commit, replay = SOURCES[name]
    tolerances = certifying(equivalence)
    verdict = judge(committed(commit), replayed(replay, b=SCORES["b"] + 8 * ENVELOPE), tolerances)
    if equivalence in JUDGED.get(name, {Equivalence.ANY}):
        assert (verdict.kind, verdict.fault) == (VerdictKind.DIVERGENCE, True)
    else:
        assert (verdict.kind, verdict.fault) == (VerdictKind.RECONSTRUCTION, False)
        assert [one.name for one in verdict.differing] == ["batch_membership.source"]


def test_the_reason_says_what_is_not_known() -> None:
    exact = certifying(Equivalence.EXACT)
    verdict = judge(committed(REQUESTED), replayed(REQUESTED), exact)
    assert verdict.reason == (
        "not known to be the same computation, no evidence about the commit: who was computed "
        "together was requested at commit and requested at replay, and this build is not certified "
        "invariant"
    )


@pytest.mark.parametrize("name", SOURCES)
def test_the_raising_form_knows_no_certificate(name: str) -> None:
    commit, replay = SOURCES[name]
    if OBSERVED is commit is replay:
        assert classify_replay(committed(commit), replayed(replay), 0.0) == "replay_consistent"
        return
    with pytest.raises(ReconstructionMismatchError, match="requested"):
        classify_replay(committed(commit), replayed(replay), 0.0)


SCORE = st.floats(allow_nan=True, allow_infinity=True)


@given(
    source=st.sampled_from([pair for pair in SOURCES.values() if REQUESTED in pair]),
    equivalence=st.sampled_from([Equivalence.EXACT, Equivalence.SHAPE]),
    policy=st.sampled_from(Policy),
    scores=st.dictionaries(st.sampled_from("abcd"), SCORE, min_size=1),
)
def test_no_scores_make_a_fault_of_a_requested_membership(
    source: tuple[MembershipSource, MembershipSource],
    equivalence: Equivalence,
    policy: Policy,
    scores: dict[str, float],
) -> None:
    commit, replay = source
    wrong = a_replay(
        invocation=an_invocation(batch_membership=a_membership(source=replay)),
        scores=to_wire(scores),
    )
    verdict = judge(committed(commit), wrong, certifying(equivalence), policy=policy)
    assert (verdict.kind, verdict.fault) == (VerdictKind.RECONSTRUCTION, False)


@given(score=SCORE.filter(lambda s: not math.isclose(s, SCORES["b"], abs_tol=1.0)))
def test_under_a_certificate_the_same_scores_do(score: float) -> None:
    """Negative control of the property above."""
    verdict = judge(committed(REQUESTED), replayed(REQUESTED, b=score), certifying(Equivalence.ANY))
    assert (verdict.kind, verdict.fault) == (VerdictKind.DIVERGENCE, True)
