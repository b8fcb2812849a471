from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.parameters import differing_parameters, not_the_same
from harness.records import (
    BatchMembership,
    Equivalence,
    FixedWidth,
    Invocation,
    MembershipSource,
    PaddingSide,
    PrecisionName,
)
from harness.records.build import CHECKED
from tests.examples import (
    a_build,
    a_membership,
    a_precision,
    a_slot,
    a_step,
    a_verifier,
    an_invocation,
    an_order,
    digest_of,
)


def names(
    replay: Invocation, commit: Invocation | None = None, by: Equivalence = Equivalence.EXACT
) -> list[str]:
    return [one.name for one in differing_parameters(commit or an_invocation(), replay, by)]


def test_an_invocation_equals_itself_under_every_equivalence() -> None:
    for equivalence in Equivalence:
        assert names(an_invocation(), by=equivalence) == []


BUILD_CHANGES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "weights_digest": (
        {"weights_digest": digest_of("f")},
        "weights_digest",
        "sha256:1",
        "sha256:f",
    ),
    "tokenizer_digest": ({"tokenizer_digest": "x"}, "tokenizer_digest", "sha256:2", "x"),
    "prompt_digest": ({"prompt_digest": "x"}, "prompt_digest", "sha256:3", "x"),
    "head_digest": ({"head_digest": "x"}, "head_digest", "sha256:4", "x"),
    "engine": ({"engine": "vllm 1"}, "engine", "transformers 5.24.0", "vllm 1"),
    "libraries": (
        {"libraries": {"torch": "2.12.1", "onednn": "3.11"}},
        "libraries.torch",
        "2.13.0",
        "2.12.1",
    ),
    "parallel_layout": ({"parallel_layout": "tp=2"}, "parallel_layout", "1", "tp=2"),
    "device": ({"device": "cuda"}, "device", "cpu", "cuda"),
    "device_name": ({"device_name": "Other CPU"}, "device_name", "Example CPU", "Other CPU"),
    "device_capability": ({"device_capability": "avx2"}, "device_capability", "avx2 av", "avx2"),
    "kernel_environment": (
        {"kernel_environment": {}},
        "kernel_environment.OMP_PROC_BIND",
        "true",
        "absent",
    ),
}


def test_every_checked_fact_has_its_case() -> None:
    assert set(BUILD_CHANGES) == set(CHECKED)


@pytest.mark.parametrize(("changes", "name", "commit", "replay"), BUILD_CHANGES.values())
def test_one_changed_fact_of_the_build(
    changes: dict[str, Any], name: str, commit: str, replay: str
) -> None:
    (one,) = differing_parameters(an_invocation(), an_invocation(build=a_build(**changes)))
    assert one.name == f"build.{name}"
    assert one.commit.startswith(commit)
    assert one.replay.startswith(replay)
    assert one.commit != one.replay


def test_what_a_build_was_made_from_is_not_compared() -> None:
    verifier = a_verifier().__class__(
        model="/elsewhere", head=a_verifier().head, prompt=a_verifier().prompt
    )
    assert names(an_invocation(build=a_build(verifier=verifier))) == []


def test_what_was_asked_for_is_not_compared() -> None:
    asked: dict[str, Any] = {"requested": {"other": 1}}
    replay = an_invocation(
        precision_mode=a_precision(**asked),
        reduction_order=an_order(**asked),
        batch_membership=a_membership(requested=FixedWidth(width=16)),
        condition={"other": 1},
    )
    assert names(replay) == []


def test_all_differences_are_named_in_the_fixed_order() -> None:
    replay = an_invocation(
        build=a_build(engine="x", device="cuda"),
        batch_membership=a_membership(steps=(a_step(padded_width=32),)),
        precision_mode=a_precision(name=PrecisionName.FLOAT32, resolved={}),
        reduction_order=an_order(name="deterministic", resolved={}, fingerprints={}),
    )
    assert names(replay) == [
        "build.device",
        "build.engine",
        "batch_membership.steps[0].padded_width",
        "precision_mode.name",
        "precision_mode.allow_tf32",
        "precision_mode.reduced_sums",
        "precision_mode.weights_dtype",
        "reduction_order.name",
        "reduction_order.attention",
        "reduction_order.num_threads",
        "reduction_order.onednn",
        "reduction_order.fingerprints.linear[64x64]",
    ]


SWITCHES: dict[str, tuple[dict[str, Any], str, str]] = {
    "other value": ({"num_threads": 1}, "2", "1"),
    "absent": ({"num_threads": ...}, "2", "absent"),
    "not available": ({"num_threads": None}, "2", "not available"),
    "other type": ({"num_threads": True}, "2", "True"),
}


@pytest.mark.parametrize(("change", "commit", "replay"), SWITCHES.values(), ids=SWITCHES)
def test_one_changed_switch(change: dict[str, Any], commit: str, replay: str) -> None:
    resolved = {**an_order().resolved, **change}
    resolved = {name: value for name, value in resolved.items() if value is not ...}
    other = an_invocation(reduction_order=an_order(resolved=resolved))
    (one,) = differing_parameters(an_invocation(), other)
    assert (one.name, one.commit, one.replay) == ("reduction_order.num_threads", commit, replay)


SWITCH_VALUES = st.dictionaries(
    st.sampled_from("xyz"), st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from("01")
)


@given(SWITCH_VALUES, SWITCH_VALUES)
def test_nothing_differs_exactly_when_the_conditions_are_one(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    one = an_invocation(precision_mode=a_precision(resolved=left))
    other = an_invocation(precision_mode=a_precision(resolved=right))
    assert (names(other, one) == []) == (one.condition_id == other.condition_id)


def test_long_values_are_cut_where_they_differ() -> None:
    common = "avx512_vnni " * 40
    one = an_invocation(build=a_build(device_capability=f"{common}amx"))
    other = an_invocation(build=a_build(device_capability=f"{common}avx10"))
    (found,) = differing_parameters(one, other)
    assert found.commit.endswith("amx")
    assert found.replay.endswith("avx10")
    assert len(found.commit) < 60


def with_slots(*slots: Any, **changes: Any) -> BatchMembership:
    return a_membership(steps=(a_step(slots=slots, **changes),))


A, B, C = (a_slot(name) for name in "abc")
F = a_slot("f", companion=True)
OWN_CONTENT = a_slot("b", content_digest=digest_of("e"))
ALL = {"exact", "shape", "any"}

MEMBERSHIPS: dict[str, tuple[BatchMembership, set[str]]] = {
    # name -> (replay's membership, equivalences under which it equals the commit's)
    "other request ids": (
        with_slots(*(a_slot(n, request_id="r") for n in "ab"), F, C),
        ALL,
    ),
    "another companion of the same length": (
        with_slots(A, B, a_slot("g", companion=True), C),
        {"shape", "any"},
    ),
    "a companion of another length": (
        with_slots(A, B, a_slot("g", companion=True, num_tokens=11), C),
        {"any"},
    ),
    "a companion with more computed before": (
        with_slots(A, B, a_slot("f", companion=True, num_computed_tokens=4), C),
        {"any"},
    ),
    "own rows in other places": (with_slots(B, A, F, C), {"any"}),
    "own row and companion change places": (with_slots(A, F, B, C), {"any"}),
    "a companion less": (with_slots(A, B, C), {"any"}),
    "a companion scored as a branch": (
        with_slots(A, B, a_slot("f"), C),
        set(),
    ),
    "wider": (with_slots(A, B, F, C, padded_width=17), {"any"}),
    "unpadded": (with_slots(A, B, F, C, padded_width=None, padding_side=None), {"any"}),
    "padded on the left": (with_slots(A, B, F, C, padding_side=PaddingSide.LEFT), {"any"}),
    "in two steps": (
        a_membership(steps=(a_step(slots=(A, B)), a_step(slots=(F, C)))),
        {"any"},
    ),
    "in an engine's chunks": (
        a_membership(
            steps=(
                a_step(slots=(a_slot("a", num_tokens=8), B, F, C)),
                a_step(slots=(a_slot("a", num_tokens=4, num_computed_tokens=8),)),
            )
        ),
        {"any"},
    ),
    "another content of its own": (with_slots(A, OWN_CONTENT, F, C), set()),
    "a branch less": (with_slots(A, F, C), set()),
    "contents changed between branches": (
        with_slots(a_slot("b", branch_id="a"), a_slot("a", branch_id="b"), F, C),
        set(),
    ),
    "requested, not observed": (a_membership(source=MembershipSource.REQUESTED), {"any"}),
}


@pytest.mark.parametrize(("replay", "equal"), MEMBERSHIPS.values(), ids=MEMBERSHIPS)
def test_memberships(replay: BatchMembership, equal: set[str]) -> None:
    other = an_invocation(batch_membership=replay)
    for by in Equivalence:
        there, back = names(other, by=by), names(an_invocation(), other, by=by)
        assert (there == []) == (by.value in equal), by
        assert (back == []) == (by.value in equal), by
        assert all(name.startswith("batch_membership.") for name in there + back)


def test_a_difference_in_membership_shows_both_sides() -> None:
    replay = an_invocation(batch_membership=with_slots(A, OWN_CONTENT, F, C))
    differing = differing_parameters(an_invocation(), replay)
    assert not_the_same(differing) == (
        "another computation, no evidence about the commit: batch_membership.steps[0].slots[1] was "
        "branch b: bbbbbbbbbbbb, 12 tokens at commit and "
        "branch b: eeeeeeeeeeee, 12 tokens at replay"
    )


def test_two_requested_memberships_are_not_equal_either() -> None:
    requested = an_invocation(batch_membership=a_membership(source=MembershipSource.REQUESTED))
    assert names(requested, requested) == ["batch_membership.source"]
    assert names(requested, requested, Equivalence.SHAPE) == ["batch_membership.source"]
    assert names(requested, requested, Equivalence.ANY) == []
