"""Decisions files: what is read, and what is refused with file and line."""

from pathlib import Path

import pytest

from harness.decisions import decisions_digest, read_decisions, row_texts
from harness.errors import InputFileError
from harness.records.decision import Branch, Decision

GOOD = (
    '{"decision_id": "d1", "context": "c", "branches": [{"branch_id": "a", "text": "x"}, '
    '{"branch_id": "b", "text": "y", "label": 1}], "source": "more is kept by the file alone"}'
)
BAD_LINES = {
    "no JSON": ("{", "not valid JSON"),
    "cut off": (GOOD[:40], "not valid JSON"),
    "NaN": ('{"decision_id": NaN}', "NaN is not JSON"),
    "key twice": ('{"a": 1, "a": 2}', "key 'a' stands twice"),
    "list": ("[]", "Expected `object`, got `array`"),
    "no id": ('{"context": "c", "branches": []}', "missing required field `decision_id`"),
    "empty id": (GOOD.replace('"d1"', '""'), "decision_id is empty"),
    "number id": (GOOD.replace('"d1"', "1"), r"Expected `str`, got `int` - at `\$.decision_id`"),
    "no context": ('{"decision_id": "d", "branches": []}', "missing required field `context`"),
    "no branches": (
        '{"decision_id": "d", "context": "c", "branches": []}',
        "decision 'd' has no branches",
    ),
    "branch twice": (GOOD.replace('"b"', '"a"'), "decision 'd1' has branch 'a' twice"),
    "empty branch id": (GOOD.replace('"a"', '""'), "branch_id is empty"),
    "number text": (
        GOOD.replace('"y"', "7"),
        r"Expected `str`, got `int` - at `\$.branches\[1\].text`",
    ),
    "bad label": (GOOD.replace("1}", '"yes"}'), r"Expected `int \| null`.*\[1\].label`"),
    "not UTF-8": ("\udcff", "not valid JSON"),
}


def write(folder: Path, *lines: str) -> Path:
    path = folder / "decisions.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    return path


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    line, message = BAD_LINES[name]
    path = write(tmp_path, GOOD.replace("d1", "d0"), "", line)
    with pytest.raises(InputFileError, match=f"(?s)^{path}:3: .*{message}.*; nothing was run$"):
        read_decisions(str(path))


def test_a_decision_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, GOOD.replace('"c"', '"other"'))
    with pytest.raises(InputFileError, match=f"^{path}:2: decision 'd1' stands twice"):
        read_decisions(str(path))


@pytest.mark.parametrize("lines", [(), ("", "  ")])
def test_an_empty_file_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(InputFileError, match="no decisions; one JSON object a line is expected"):
        read_decisions(str(write(tmp_path, *lines)))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"none\.jsonl: cannot be read"):
        read_decisions(str(tmp_path / "none.jsonl"))


def test_decisions_are_read_in_order_with_their_labels(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, GOOD.replace("d1", "d0"), GOOD.replace("d1", "d2"))
    found = read_decisions(str(path))
    assert [decision.decision_id for decision in found] == ["d1", "d0", "d2"]
    assert [branch.label for branch in found[0].branches] == [None, 1]
    assert read_decisions(str(path), limit=2) == found[:2]
    assert read_decisions(str(path), limit=9) == found


def test_a_late_error_counts_even_below_the_limit(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=":2: "):
        read_decisions(str(write(tmp_path, GOOD, "{")), limit=1)


def test_the_embedded_decisions_are_read() -> None:
    found = read_decisions("embedded:decisions")
    assert (len(found), len(row_texts(found))) == (400, 3822)
    assert decisions_digest(found) != decisions_digest(found[:-1])


def test_a_row_is_a_branch_by_name() -> None:
    branches = (Branch(branch_id="a", text="x"), Branch(branch_id="b", text="y", label=0))
    decision = Decision(decision_id="d1", context="c", branches=branches)
    first, second = row_texts((decision,))
    assert (first.context, first.branch, second.branch) == ("c", "x", "y")
    assert first.name == "decision 'd1', branch 'a'"
    relabelled = Decision(decision_id="d1", context="c", branches=branches[:1])
    assert decisions_digest((decision,)) != decisions_digest((relabelled,))
