import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from harness.errors import InvalidRecordError
from harness.records import (
    BatchMembership,
    Branch,
    Decision,
    Equivalence,
    FixedWidth,
    GuardFinding,
    Padded,
    PaddingSide,
    Step,
    VerifierSpec,
)
from harness.records.build import CHECKED, differing_facts
from harness.records.commit import commit_id_of
from harness.records.switches import differing_switches
from harness.records.verifier import Message, ProcessReward, Prompt, StepReduction, StepSource
from tests.examples import (
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
    a_verifier,
    an_invocation,
    an_order,
)

STEP_SCORES = {
    "source": StepSource.SEQUENCE_CLASSIFICATION,
    "separator": ".",
    "reduce": StepReduction.MIN,
}

BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "a slot without tokens": (lambda: a_slot("a", num_tokens=0), "at least one token"),
    "a slot before its start": (lambda: a_slot("a", num_computed_tokens=-1), "before the first"),
    "a step without slots": (lambda: Step(slots=()), "computes nothing"),
    "a step narrower than a row": (lambda: a_step(padded_width=11), "less than the longest row"),
    "a membership without steps": (lambda: BatchMembership(steps=()), "computes nothing"),
    "padded without rows": (lambda: Padded(max_rows=0), "max_rows must be at least 1"),
    "fixed without width": (lambda: FixedWidth(width=0), "width must be at least 1"),
    "a branch without a name": (lambda: Branch(branch_id="", text="x"), "branch_id is empty"),
    "a decision without a name": (
        lambda: Decision(decision_id="", context="", branches=(Branch(branch_id="a", text=""),)),
        "decision_id is empty",
    ),
    "a decision without branches": (
        lambda: Decision(decision_id="d", context="", branches=()),
        "'d' has no branches",
    ),
    "a branch twice": (
        lambda: Decision(
            decision_id="d", context="", branches=(Branch(branch_id="a", text=""),) * 2
        ),
        "'d' has branch 'a' twice",
    ),
    "a bound that is not a number": (lambda: a_bound(math.nan), "finite number >= 0"),
    "an infinite bound": (lambda: a_bound(math.inf), "finite number >= 0"),
    "a negative bound": (lambda: a_bound(-1e-9), "finite number >= 0"),
    "a coverage of 1": (lambda: a_bound(1.0, coverage=1.0), "strictly between 0 and 1"),
    "a confidence of nan": (lambda: a_bound(1.0, confidence=math.nan), "strictly between"),
    "a rank beyond the decisions": (lambda: a_bound(1.0, rank=401), "between 1 and num_decisions"),
    "an envelope below the floor": (
        lambda: a_tolerance(envelope=a_bound(0.0)),
        "envelope is below the floor",
    ),
    "coupled rows interchanged": (
        lambda: a_tolerance(companion_coupled=True, equivalence=Equivalence.SHAPE),
        "companion-coupled",
    ),
    "a guard that failed": (
        lambda: a_tolerance(guards=(GuardFinding(guard="g", passed=False, evidence=""),)),
        "guard 'g' did not pass",
    ),
    "no scores": (lambda: a_commit(scores={}), "score vector is empty"),
    "a score of nan": (lambda: a_commit(scores={**SCORES, "b": math.nan}), "'b' is not finite"),
    "a score of inf": (lambda: a_commit(scores={**SCORES, "b": math.inf}), "'b' is not finite"),
    "a score of -inf": (lambda: a_commit(scores={**SCORES, "b": -math.inf}), "'b' is not finite"),
    "a score that is true": (lambda: a_commit(scores={**SCORES, "b": True}), "'b' is not a number"),
    "a score that is text": (lambda: a_commit(scores={**SCORES, "b": "1"}), "'b' is not a number"),
    "a score beyond floats": (lambda: a_commit(scores={**SCORES, "b": 10**400}), "too large"),
    "a branch id that is a number": (lambda: a_commit(scores={**SCORES, 1: 1.0}), "is a string"),
    "a winner from elsewhere": (lambda: a_commit(winner="z"), "winner 'z' is not among"),
    "a branch without a score": (lambda: a_commit(scores={"a": 1.0, "b": 0.0}), "'c' was computed"),
    "a replayed score that is text": (lambda: a_replay(scores={"a": "1.0"}), "not a number"),
    "a replayed score that is true": (lambda: a_replay(scores={"a": True}), "not a number"),
    "a prompt of two forms": (
        lambda: Prompt(template="{branch}", chat=(Message(role="user", content="{branch}"),)),
        "either `template` or `chat`",
    ),
    "a prompt without a branch": (lambda: Prompt(template="{context}"), "{branch} once"),
    "step tokens without their source": (
        lambda: ProcessReward(**STEP_SCORES, yes=("+",), no=("-",)),  # type: ignore[arg-type]
        "only for it",
    ),
    "rows of no token": (
        lambda: replace(a_verifier(), max_tokens=0),
        "max_tokens must be at least 1",
    ),
}


@pytest.mark.parametrize(("make", "why"), BROKEN.values(), ids=BROKEN)
def test_a_record_that_breaks_a_rule_is_never_made(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("{", r"\{")):
        make()


SCORE_RULES = [name for name in BROKEN if "score" in name or "winner" in name]


@pytest.mark.parametrize("name", SCORE_RULES)
def test_a_score_that_cannot_be_recorded_is_bad_evidence(name: str) -> None:
    with pytest.raises(InvalidRecordError):
        BROKEN[name][0]()


RECORDS = {
    "build": a_build(),
    "slot": a_slot("a"),
    "step": a_step(),
    "membership": a_membership(),
    "invocation": an_invocation(),
    "commit": a_commit(),
    "replay": a_replay(),
    "tolerance": a_tolerance(),
    "tolerance file": a_tolerance_file(),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_records_are_frozen(record: msgspec.Struct) -> None:
    for field in msgspec.structs.fields(record):
        with pytest.raises(AttributeError):
            setattr(record, field.name, None)


def test_scores_become_plain_floats_of_their_own() -> None:
    given: dict[str, Any] = {"a": np.float64(1.5), "b": 1, "c": -0.0}
    commit, replay = a_commit(scores=given), a_replay(scores=given)
    given["a"] = math.nan
    for scores in (commit.scores, replay.scores):
        assert scores == {"a": 1.5, "b": 1.0, "c": 0.0}
        assert {type(score) for score in scores.values()} == {float}
        assert str(scores["c"]) == "-0.0"


def test_a_replay_keeps_non_finite_scores_as_words() -> None:
    scores: dict[str, Any] = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}
    replay = a_replay(scores=scores)
    assert replay.scores == {"a": "nan", "b": "inf", "c": "-inf", "d": 1.0}
    numbers = replay.numeric_scores()
    assert math.isnan(numbers["a"])
    assert [numbers[b] for b in "bcd"] == [math.inf, -math.inf, 1.0]


@pytest.mark.parametrize("name", CHECKED)
def test_every_checked_fact_changes_the_build_id(name: str) -> None:
    value: Any = {"x": "y"} if isinstance(getattr(a_build(), name), dict) else "other"
    other = a_build(**{name: value})
    assert other.build_id != a_build().build_id
    assert {fact.partition(".")[0] for fact in differing_facts(a_build(), other)} == {name}


def test_every_fact_is_checked_unless_there_is_a_reason() -> None:
    """A new field of a build must be added to `CHECKED`, or here."""
    fields = {field.name for field in msgspec.structs.fields(a_build())}
    assert fields - set(CHECKED) == {"verifier"}


def test_the_spec_does_not_change_the_build_id() -> None:
    verifier: VerifierSpec = replace(a_verifier(), model="/another/folder")
    assert a_build(verifier=verifier).build_id == a_build().build_id


def test_a_condition_is_its_resolved_values() -> None:
    condition = an_invocation().condition_id
    for same in (
        an_invocation(batch_membership=a_membership(requested=None)),
        an_invocation(precision_mode=a_precision(requested={})),
        an_invocation(reduction_order=an_order(requested={})),
        an_invocation(condition={"x": 1}),
    ):
        assert same.condition_id == condition
    for other in (
        an_invocation(build=a_build(engine="x")),
        an_invocation(precision_mode=a_precision(resolved={})),
        an_invocation(reduction_order=an_order(name="x")),
        an_invocation(reduction_order=an_order(resolved={})),
        an_invocation(reduction_order=an_order(fingerprints={})),
    ):
        assert other.condition_id != condition


def test_switches_of_another_type_differ() -> None:
    assert differing_switches({"a": 1, "b": None, "c": "x"}, {"a": True, "c": "x"}) == ("a", "b")
    assert differing_switches({"a": False}, {"a": 0}) == ("a",)
    assert differing_switches({"a": True, "b": 2}, {"b": 2, "a": True}) == ()


def test_a_commit_id_is_its_content() -> None:
    one = commit_id_of("d1", SCORES, an_invocation())
    numpy_scores: Any = {branch: np.float64(score) for branch, score in SCORES.items()}
    assert commit_id_of("d1", numpy_scores, an_invocation()) == one
    assert commit_id_of("d2", SCORES, an_invocation()) != one
    assert commit_id_of("d1", {**SCORES, "a": 1.25}, an_invocation()) != one
    assert commit_id_of("d1", SCORES, an_invocation(build=a_build(engine="x"))) != one


def test_batches_cover_what_was_measured_and_no_more() -> None:
    batches = a_tolerance().batches
    assert batches.covers(a_membership())
    assert batches.covers(a_membership(steps=(a_step(padded_width=64),)))
    assert batches.covers(a_membership(steps=(Step(slots=(a_slot("a"),)),)))
    for step in (
        a_step(padded_width=65),
        a_step(padding_side=PaddingSide.LEFT),
        Step(slots=(a_slot("a", num_tokens=65),)),
        Step(slots=(a_slot("a"),) * 9),
    ):
        assert not batches.covers(a_membership(steps=(a_step(), step)))
