"""What a log tells: memberships, contents, and what it must not guess."""

import pytest

from harness.errors import InputFileError, InvalidRecordError
from harness.serving.content import prompt_digest, sequence_digest
from harness.serving.history import History
from harness.serving.log_lines import StepLine
from harness.serving.recorder import Recorder
from tests.serving.steps import ImaginedEngine, a_header, prompt_of, three_steps


def a_history(*lines: StepLine | None, max_slots: int | None = None) -> History:
    history = History(max_slots).feed([a_header()])
    return history.feed(line for line in lines if line is not None)


def test_a_membership_has_every_step_and_everyone_in_it() -> None:
    history = a_history(*three_steps(ImaginedEngine()))
    told = history.membership({"b": "branch"})
    found = [
        [(one.request_id, one.num_tokens, one.num_computed_tokens, one.branch_id) for one in slots]
        for slots in (step.slots for step in told.steps)
    ]
    assert found == [
        [("a", 1, 4, None), ("b", 3, 0, "branch")],
        [("a", 1, 5, None), ("b", 1, 3, "branch")],
    ]
    assert {step.padded_width for step in told.steps} == {None}


def test_a_slot_says_what_the_model_saw() -> None:
    history = a_history(*three_steps(ImaginedEngine()))
    a, b = prompt_of("a", 4).digest, prompt_of("b", 3).digest
    digests = [
        [slot.content_digest for slot in step.slots]
        for step in history.membership({"a": "a"}).steps
    ]
    assert digests == [
        [a],
        [sequence_digest(a, [9]), b],
        [sequence_digest(a, [9, 8]), sequence_digest(b, [7])],
    ]


def test_slots_stand_in_the_order_of_the_models_rows() -> None:
    engine = ImaginedEngine()
    lines = [*three_steps(engine), engine.step({"a": 1, "b": 1}, rows=["b", "gone", "a"])]
    history = a_history(*lines)
    last = history.membership({"a": "x"}).steps[-1]
    assert [(slot.request_id, slot.branch_id) for slot in last.slots] == [("b", None), ("a", "x")]
    (seen,) = history.between(3, 3)
    assert [slot.request.client.name for slot in seen.slots] == ["a", "b"]


def test_another_generated_token_is_another_content() -> None:
    engine = ImaginedEngine()
    engine_steps = three_steps(engine)
    other = ImaginedEngine()
    changed = [
        other.step({"a": 4}, new={"a": 4}, sampled={"a": [9]}),
        other.step({"a": 1, "b": 3}, new={"b": 3}, sampled={"a": [8], "b": [70]}),
        other.step({"a": 1, "b": 1}, sampled={"a": [6], "b": [5]}),
    ]
    left = a_history(*engine_steps).membership({"a": "a"})
    right = a_history(*changed).membership({"a": "a"})
    assert left.steps[:2] == right.steps[:2]
    assert left.steps[2] != right.steps[2]


def test_a_preempted_request_computes_what_it_generated_again() -> None:
    engine = ImaginedEngine()
    lines = [
        *three_steps(engine),
        engine.step({"a": 1}, sampled={"a": [4]}, preempted=["b"]),
        engine.step({"a": 1, "b": 5}, sampled={"a": [3], "b": [2]}),
    ]
    history = a_history(*lines)
    assert [one.client.name for one in next(history.between(3, 3)).preempted] == ["b"]
    last = history.membership({"b": "b"}).steps[-1].slots[1]
    assert (last.num_tokens, last.num_computed_tokens) == (5, 0)
    assert last.content_digest == sequence_digest(prompt_of("b", 3).digest, [7, 5])


def test_a_step_that_only_preempts_is_in_the_log_and_in_no_membership() -> None:
    engine = ImaginedEngine()
    lines = [*three_steps(engine), engine.step({}, preempted=["b"])]
    history = a_history(*lines)
    assert history.num_steps == 4
    assert len(history.membership({"b": "b"}).steps) == 2


def test_nothing_is_recorded_of_an_empty_step_but_who_has_finished() -> None:
    engine = ImaginedEngine()
    three_steps(engine)
    assert engine.step({}, finished=["a"]) is None
    line = engine.step({"b": 1})
    assert line is not None
    assert line.finished == (0,)
    assert [one.engine_id for one in engine.recorder.live()] == ["b-0123abcd"]


def test_a_name_that_stands_for_two_requests_is_refused() -> None:
    engine = ImaginedEngine(Recorder())
    lines = [*three_steps(engine), engine.step({}, finished=["a", "b"])]
    lines.append(engine.step({"a": 4}, new={"a": 4}))
    history = a_history(*lines)
    with pytest.raises(InvalidRecordError, match="2 requests go by 'a'"):
        history.membership({"a": "a"})
    assert history.membership({"b": "b"}).steps


def test_what_is_not_in_the_log_is_not_told() -> None:
    with pytest.raises(InputFileError, match="'z' is not in the step log"):
        a_history(*three_steps(ImaginedEngine())).membership({"z": "z"})


def test_a_request_that_a_log_knows_half_is_not_told() -> None:
    engine = ImaginedEngine()
    three_steps(engine)
    header = a_header(live=engine.recorder.live())
    line = engine.step({"a": 1, "b": 1, "c": 2}, new={"c": 2}, sampled={"c": [1]})
    assert line is not None
    history = History().feed([header, line])
    with pytest.raises(InputFileError, match="rotated past its first steps"):
        history.membership({"a": "a"})
    # As companions they are told whole: the header knows what they had generated.
    slots = history.membership({"c": "c"}).steps[0].slots
    assert slots[0].content_digest == sequence_digest(prompt_of("a", 4).digest, [9, 8, 6])


def test_a_token_that_the_log_does_not_know_is_not_guessed() -> None:
    engine = ImaginedEngine()
    line = engine.step({"a": 4}, new={"a": 4})  # nothing came out that the next step could compute
    history = a_history(line, engine.step({"a": 2}))
    with pytest.raises(InvalidRecordError, match="token 6 was computed before the log knew it"):
        history.membership({"a": "a"})


def test_memory_is_bounded_and_old_requests_are_forgotten() -> None:
    engine, history = ImaginedEngine(), History(max_slots=10).feed([a_header()])
    for number in range(100):
        name = f"r{number}"
        line = engine.step({name: 3}, new={name: 3}, finished=[f"r{number - 1}"])
        assert line is not None
        history.feed([line])
    assert len(history.requests()) == 10
    assert len(history._by_number) == 1
    assert history.membership({"r99": "b"}).steps
    with pytest.raises(InputFileError, match="'r89' is not in the step log"):
        history.membership({"r89": "b"})


def test_a_new_run_numbers_anew() -> None:
    first, second = three_steps(ImaginedEngine()), ImaginedEngine()
    history = a_history(*first).feed([a_header(run="run-2")])
    line = second.step({"c": 2}, new={"c": 2})
    assert line is not None
    history.feed([line])
    assert [one.client.name for one in history.requests()] == ["a", "b", "c"]
    assert len(history.membership({"a": "a"}).steps) == 3
    assert len(history.membership({"c": "c"}).steps) == 1


def test_a_number_of_another_run_is_another_request() -> None:
    other = ImaginedEngine()
    other.step({"z": 2}, new={"z": 2})
    header = a_header(run="run-2", live=other.recorder.live())
    line = other.step({"c": 2}, new={"c": 2})
    assert line is not None
    history = a_history(*three_steps(ImaginedEngine())).feed([header, line])
    assert [one.client.name for one in history.requests()] == ["a", "b", "z", "c"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (prompt_digest([1, 2]), prompt_digest([2, 1])),
        (prompt_digest([1]), prompt_digest([1, 0])),
        (prompt_digest([1], ["image"]), prompt_digest([1])),
        (prompt_digest([], ["a", "b"]), prompt_digest([], ["ab"])),
        (sequence_digest(prompt_digest([1]), [2]), prompt_digest([1, 2])),
    ],
)
def test_contents_that_differ_have_digests_that_differ(left: str, right: str) -> None:
    assert left != right
    assert left.startswith("sha256:")
    assert len(left) == 71


def test_nothing_generated_is_the_prompt() -> None:
    assert sequence_digest(prompt_digest([1]), []) == prompt_digest([1])
