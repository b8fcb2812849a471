"""`docs/effects.md` says what the code does."""

import ast
import contextlib
import inspect
import io
import re
from enum import StrEnum
from pathlib import Path

import pytest

from harness.errors import ReplayContaminationError
from harness.planner.effects import (
    AuditabilityClass,
    Divergence,
    SideEffectStep,
    StepReason,
    StepUse,
    run_counterfactual_branch,
)
from harness.planner.effects.verification import RULES
from tests.planner.effects_examples import (
    a_read,
    a_step,
    a_store,
    a_trajectory,
    clock,
    unrecorded,
    untokened,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "effects.md").read_text()


def meanings(kind: type[StrEnum]) -> dict[str, str]:
    """Return member -> its docstring, on one line."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for member, words in zip(body.body, body.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(words, ast.Expr):
            assert isinstance(words.value, ast.Constant)
            name = ast.unparse(member.targets[0])
            found[kind[name]] = " ".join(str(words.value.value).split())
    assert set(found) == set(kind), f"a member of {kind.__name__} has no docstring"
    return found


def table(name: str) -> list[str]:
    """Return the rows of a table of the document, without its head."""
    found = re.search(rf"<!-- begin: {name} -->\n(.*?)<!-- end: {name} -->", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1].splitlines()[2:]


def test_the_table_of_reasons_is_the_rules() -> None:
    words = meanings(StepReason)
    order = [*(rule.reason for rule in RULES), StepReason.VERIFIED]
    expected = [
        f"| `{reason}` | {'yes' if reason.is_boundary else 'no'} | {words[reason]} |"
        for reason in order
    ]
    assert table("reasons") == expected, "\n".join(expected)


@pytest.mark.parametrize(("name", "kind"), [("classes", AuditabilityClass), ("uses", StepUse)])
def test_the_other_tables_are_the_members(name: str, kind: type[StrEnum]) -> None:
    expected = [f"| `{member}` | {words} |" for member, words in meanings(kind).items()]
    assert table(name) == expected, "\n".join(expected)


RUN = (a_step("a"), a_step("b"), untokened(a_step("c")), a_step("d"))
LOST = (unrecorded(a_read("a")), *RUN[1:])
OUTCOMES = {
    "before the boundary, and every earlier response was recorded": (RUN, 1),
    "before the boundary, but an earlier read was not recorded": (LOST, 1),
    "at the boundary": (RUN, 2),
    "behind the boundary": (RUN, 3),
    "a call is made that only the world could answer": (RUN, 1),
}


def outcome(steps: tuple[SideEffectStep, ...], at: int, *, leaves: bool) -> str:
    posed = a_step("posed", token=None)
    try:
        replay = run_counterfactual_branch(
            a_trajectory(*steps),
            Divergence(branch_id="x", index=at, step=posed),
            store=a_store(*steps),
            clock=clock,
            program=(lambda gateway: gateway.call("new", {}, "new")) if leaves else None,
        )
    except ReplayContaminationError as error:
        return type(error).__name__
    return str(replay.kind)


def test_the_table_of_outcomes_is_what_happens() -> None:
    rows = re.findall(r"^\| (.+) \| `(\w+)` \|$", DOCUMENT, re.MULTILINE)
    told = {words: found for words, found in rows if words in OUTCOMES}
    happens = {
        words: outcome(steps, at, leaves="only the world" in words)
        for words, (steps, at) in OUTCOMES.items()
    }
    assert told == happens


def test_the_example_prints_what_the_document_says() -> None:
    code = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    text = re.search(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
    assert code is not None
    assert text is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code[1], "docs/effects.md", "exec"), {})  # noqa: S102 - our own document
    assert printed.getvalue() == text[1], printed.getvalue()
