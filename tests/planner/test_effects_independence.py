import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.planner.effects import SideEffectStep
from harness.planner.effects.independence import Dependence, Taint
from tests.planner.effects_examples import a_step

RECORDED = a_step(
    "d",
    arguments={"account": "acct-17", "limit": 5},
    payload={"order": "ord-4711", "status": "created", "ok": True, "note": None, "fee": 12.5},
)
POSED = a_step(
    "d",
    arguments={"account": "acct-17", "limit": 5},
    payload={"order": "ord-8844", "status": "refused", "ok": True, "note": None, "fee": 12.5},
    token=None,
)

ARGUMENTS: dict[str, tuple[Any, Dependence | None]] = {
    "nothing in common": ({"to": "carol", "amount": 77}, None),
    "the recorded value": ({"order": "ord-4711"}, Dependence.ARGUMENTS),
    "the posed value": ({"order": "ord-8844"}, Dependence.ARGUMENTS),
    "inside a text": ({"text": "about ORD-4711."}, Dependence.ARGUMENTS),
    "in another case": ({"text": "CREATED"}, Dependence.ARGUMENTS),
    "inside a word": ({"path": "/data4711.txt"}, Dependence.ARGUMENTS),
    "as a number": ({"order": 4711}, Dependence.ARGUMENTS),
    "as a field's name": ({"4711": 1}, Dependence.ARGUMENTS),
    "deep": ({"a": [{"b": ["x", {"c": "4711"}]}]}, Dependence.ARGUMENTS),
    "in full-width digits": ({"order": "\uff14\uff17\uff11\uff11"}, Dependence.ARGUMENTS),
    "a value that did not change": ({"fee": 12.5}, Dependence.ARGUMENTS),
    "the same resource": ({"account": "acct-17"}, Dependence.ARGUMENTS),
    "a small number of its arguments": ({"count": 5}, Dependence.ARGUMENTS),
    "a field's name of the payload as a value": ({"show": "status"}, Dependence.ARGUMENTS),
    "the same field's name": ({"status": "shipped"}, None),
    "a mark that did not change": ({"force": True, "note": None, "by": ""}, None),
    "a longer number": ({"n": 99}, None),
    "a short word inside another": ({"x": "x5x"}, None),
}


def reached(step: SideEffectStep) -> Dependence | None:
    return Taint(RECORDED, POSED).reaches(step)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_arguments_mention(name: str) -> None:
    arguments, expected = ARGUMENTS[name]
    assert reached(a_step("later", arguments=arguments)) is expected


@pytest.mark.parametrize(
    ("got", "asked", "expected"),
    [
        (5.0, 5, Dependence.ARGUMENTS),
        (5, 5.0, Dependence.ARGUMENTS),
        (5.0, 0, None),
        (1e16, 10**16, Dependence.ARGUMENTS),
        (1e16, "1e+16", Dependence.ARGUMENTS),
        (12.5, "12.5", Dependence.ARGUMENTS),
        (-5, "minus 5", Dependence.ARGUMENTS),
    ],
)
def test_a_number_is_itself_however_it_is_written(
    got: float, asked: Any, expected: Dependence | None
) -> None:
    taint = Taint(a_step("d", payload=got), a_step("d", payload="else", token=None))
    assert taint.reaches(a_step("later", arguments=[asked])) is expected


def test_a_mark_counts_where_the_worlds_differ() -> None:
    flipped = a_step("d", payload={"ok": False}, token=None)
    later = a_step("later", arguments={"approved": True})
    assert Taint(a_step("d", payload={"ok": True}), flipped).reaches(later) is Dependence.ARGUMENTS
    assert Taint(a_step("d", payload={"ok": False}), flipped).reaches(later) is None


def test_a_declared_dependency_counts_and_payloads_count_beside_it() -> None:
    assert reached(a_step("later", dependencies=("d",))) is Dependence.DECLARED
    assert reached(a_step("later", dependencies=("other",))) is None
    mentions = a_step("later", dependencies=(), arguments="4711")
    assert reached(mentions) is Dependence.ARGUMENTS
    assert reached(a_step("later", dependencies=None)) is None


def test_a_response_that_shows_one_world_counts() -> None:
    shows = a_step("later", payload={"orders": ["ord-4711"]})
    assert reached(shows) is Dependence.RESPONSE
    shows_both = a_step("later", payload={"fee": 12.5, "ok": True})
    assert reached(shows_both) is None


def test_dependence_spreads() -> None:
    taint = Taint(RECORDED, POSED)
    second = a_step("second", arguments="4711", payload={"ticket": "tick-99", "ok": True})
    third = a_step("third", arguments="tick-99")
    mark = a_step("mark", arguments={"force": False})
    assert taint.reaches(third) is None
    assert taint.reaches(mark) is None
    assert taint.reaches(second) is Dependence.ARGUMENTS
    taint.add(second)
    assert taint.reaches(third) is Dependence.ARGUMENTS
    assert taint.reaches(mark) is Dependence.ARGUMENTS
    assert taint.reaches(a_step("fourth", dependencies=("second",))) is Dependence.DECLARED


def test_a_text_without_a_word_counts_by_its_characters() -> None:
    taint = Taint(a_step("d", payload="->"), a_step("d", payload="!!", token=None))
    assert taint.reaches(a_step("later", arguments="->")) is Dependence.ARGUMENTS
    assert taint.reaches(a_step("later", arguments="a -> b")) is Dependence.ARGUMENTS
    assert taint.reaches(a_step("later", arguments="a == b")) is None


def test_a_deep_value_is_walked() -> None:
    deep: Any = "4711"
    for _ in range(200):
        deep = [deep]
    assert reached(a_step("later", arguments=deep)) is Dependence.ARGUMENTS


SCALARS = st.one_of(
    st.text(min_size=1, max_size=12).filter(lambda text: text.strip() != ""),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
)
JSON = st.recursive(
    SCALARS | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(value=SCALARS, beside=JSON, around=JSON, how=st.sampled_from(["leaf", "text", "name"]))
def test_a_step_whose_arguments_mention_the_payload_is_never_free(
    value: Any, beside: Any, around: Any, how: str
) -> None:
    recorded = a_step("d", payload=[beside, {"value": value}])
    posed = a_step("d", payload="instead", token=None)
    text = value if isinstance(value, str) else json.dumps(value)
    mention = {"leaf": value, "text": f"see ({text}), please", "name": {text: 1}}[how]
    later = a_step("later", arguments=[around, {"mention": mention}])
    assert Taint(recorded, posed).reaches(later) is not None
    assert Taint(posed, recorded).reaches(later) is not None


def test_the_property_would_see_a_check_that_looks_at_nothing() -> None:
    free = a_step("later", arguments=[None, {"mention": "unrelated"}])
    assert (
        Taint(a_step("d", payload="4711"), a_step("d", payload="1", token=None)).reaches(free)
        is None
    )
