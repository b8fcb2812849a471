from itertools import product
from pathlib import Path

import pytest

from harness.errors import IllegalMoveError
from harness.planner.gate_table import MOVES, UNRESOLVED, Event, State, diagram, move
from scripts.regenerate_gate_diagram import BEGIN, COMMAND, END, PAGE, with_diagram


@pytest.mark.parametrize(("state", "event"), [*product(State, Event)])
def test_every_pair_moves_or_is_refused(state: State, event: Event) -> None:
    if (state, event) in MOVES:
        assert move(state, event, "b") is MOVES[state, event]
    else:
        with pytest.raises(IllegalMoveError, match=f"branch 'b' is {state}: it cannot {event}"):
            move(state, event, "b")


def test_only_a_verified_branch_is_committed() -> None:
    assert [state for state, event in MOVES if event is Event.COMMIT] == [State.VERIFIED]


def test_what_is_resolved_stays_so() -> None:
    resolved = set(State) - set(UNRESOLVED)
    leaving = {(s, e): after for (s, e), after in MOVES.items() if s in resolved}
    assert leaving == {(State.COMMITTED, Event.ROLL_BACK): State.ROLLED_BACK}


def test_every_state_is_reached() -> None:
    assert {State.OPEN, *MOVES.values()} == set(State)


def test_the_message_names_what_is_possible() -> None:
    with pytest.raises(IllegalMoveError, match=r"possible: roll_back$"):
        move(State.COMMITTED, Event.COMMIT, "b")
    with pytest.raises(IllegalMoveError, match=r"possible: nothing: it is final$"):
        move(State.REFUSED, Event.COMMIT, "b")


def test_the_page_shows_the_present_table() -> None:
    page = PAGE.read_text("utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert with_diagram(page) == page, f"run: {COMMAND}"


def test_another_table_would_change_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text("utf-8")
    monkeypatch.setitem(MOVES, (State.REFUSED, Event.EXTEND), State.OPEN)
    assert with_diagram(page) != page


def test_the_diagram_has_one_arrow_a_move() -> None:
    arrows = [line for line in diagram().splitlines() if "-->" in line and "[*]" not in line]
    assert len(arrows) == len(MOVES)
    assert Path(PAGE).name == "planner.md"
