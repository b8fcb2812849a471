"""`docs/ledger.md` says what the code does."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from harness.planner.ledger import (
    BranchContaminationError,
    BranchLedger,
    CacheKey,
    Draft,
    DraftState,
)
from harness.planner.ledger.drafts import DRAFT_TABLE, diagram
from tests.planner.ledger_model import offer, scored

DOCUMENT = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()


def part(name: str) -> str:
    found = re.search(rf"<!-- begin: {name} -->\n(.*?)<!-- end: {name} -->", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_diagram_is_the_table() -> None:
    assert part("diagram") == f"```mermaid\n{diagram()}\n```\n", diagram()
    arrows = re.findall(r"^    (\w+) --> (\w+): (\w+)$", diagram(), re.MULTILINE)
    moves = {(state, finding): after for state, after, finding in arrows}
    assert moves == {move: after for move, after in DRAFT_TABLE.items() if move[0] is not after}


def test_the_table_of_findings_is_the_table_in_the_code() -> None:
    rows = re.findall(r"`(\w+)` \| `(\w+)` \|$", part("findings"), re.MULTILINE)
    for finding, after in rows:
        assert DRAFT_TABLE[DraftState.UNSCORED, finding] == after
    assert len(rows) == sum(state is DraftState.UNSCORED for state, _ in DRAFT_TABLE)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_of_two_findings_the_first_line_decides(number: int) -> None:
    """Each case meets what its line says, and all that stands below."""
    ledger = BranchLedger()
    for branch_id in "abc":
        ledger.open_branch(branch_id)
    reads = tuple(CacheKey(branch_id=branch_id, name="k") for branch_id in "abc")
    draft = Draft(draft_id="d", branch_id="c", reads=reads[number == 3 :])
    other = Draft(draft_id="other", branch_id="c")
    offer(ledger, other)
    if number == 1:
        ledger.rollback("a")
    score = scored(ledger.closure(draft if number == 3 else other))
    with contextlib.suppress(BranchContaminationError):
        ledger.accept_draft(draft, score)
    lines = re.findall(r"`(\w+)` \| `\w+` \|$", part("findings"), re.MULTILINE)
    assert ledger.decision("d").finding == lines[number - 1]


def test_the_example_prints_what_the_document_says() -> None:
    code = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    text = re.search(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
    assert code is not None
    assert text is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code[1], "docs/ledger.md", "exec"), {})  # noqa: S102 - our own document
    assert printed.getvalue() == text[1], printed.getvalue()
