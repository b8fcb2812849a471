import json
from pathlib import Path

import jsonschema
import pytest

from calibrate.config import load_config
from harness.codec import parse
from harness.decisions import read_decisions
from harness.records import Bound, ToleranceFile, VerdictKind
from harness.records.document import Record
from scripts.regenerate_formats.doc_lines import doc_lines
from scripts.regenerate_formats.page import (
    COMMAND,
    CONFIG_EXAMPLE,
    DECISION_EXAMPLE,
    PAGE,
    page,
)
from scripts.regenerate_formats.schema import SCHEMA, schema
from scripts.regenerate_formats.tables import parts_of, record_section

GOLDEN = Path(__file__).parent / "golden" / "tolerance-1.json"


@pytest.mark.parametrize(("path", "written"), [(PAGE, page()), (SCHEMA, schema())], ids=str)
def test_what_is_generated_is_current(path: Path, written: str) -> None:
    found = path.read_text(encoding="utf-8")
    pairs = enumerate(zip(found.splitlines(), written.splitlines(), strict=False), start=1)
    at = next((number for number, (old, new) in pairs if old != new), "its end")
    assert found == written, f"{path.name} is out of date from line {at}: {COMMAND}"


def test_every_link_leads_to_a_section_that_is_there_once() -> None:
    text = page()
    heads = [line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("#")]
    targets = {part.partition(")")[0] for part in text.split("](#")[1:]}
    assert len(targets) > 20
    assert [target for target in targets if heads.count(target) != 1] == []


def test_a_table_says_type_default_bounds_and_meaning() -> None:
    section = record_section(Bound, 3)
    assert "| `rank` | integer | required | 1 for the largest movement seen, 2 for" in section
    assert "unknown_fields" not in record_section(ToleranceFile, 3)
    assert "| `exact` | Bitwise equal. |" in record_section(VerdictKind, 3)
    assert Bound in parts_of(next(kind for kind in parts_of(ToleranceFile) if parts_of(kind)[4:]))


class Undocumented(Record, frozen=True, kw_only=True):
    told: str
    """It has a line."""
    untold: str


def test_a_field_without_a_line_of_doc_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"Undocumented\.untold has no line of doc"):
        doc_lines(Undocumented, Undocumented.__struct_fields__)


def test_the_examples_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CONFIG_EXAMPLE)
    (tmp_path / "mine.jsonl").write_text(DECISION_EXAMPLE)
    assert load_config(tmp_path / "mine.yaml").name == "mine"
    assert [one.decision_id for one in read_decisions(str(tmp_path / "mine.jsonl"))] == ["d1"]


def test_the_schema_takes_the_golden_file_and_no_other() -> None:
    plain = parse(GOLDEN.read_bytes(), "golden")
    check = jsonschema.Draft202012Validator(json.loads(schema()))
    assert list(check.iter_errors(plain)) == []
    assert list(check.iter_errors(plain | {"added_later": 1})) == []
    for field in plain:
        broken = {name: value for name, value in plain.items() if name != field}
        assert list(check.iter_errors(broken)), field
