"""Puts the page together: one part a file, then the records that several files share.

What stands here and not in the records: which files there are, what each is for, and an example.
"""

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from calibrate.config import CalibrationConfig
from calibrate.observations import SCHEMA, ProcessFacts, RunIdentity, StoredRow
from harness.codec import parse
from harness.records import (
    CommitRecord,
    Decision,
    Item,
    ReplayRecord,
    ToleranceFile,
    Verdict,
)
from harness.records.document import Record
from harness.records.withdrawal import Withdrawals
from scripts.regenerate_formats.doc_lines import doc_lines
from scripts.regenerate_formats.tables import parts_of, record_section
from scripts.regenerate_golden import documents
from tests.examples import an_item

__all__ = ["COMMAND", "CONFIG_EXAMPLE", "DECISION_EXAMPLE", "PAGE", "page"]

COMMAND = "python -m scripts.regenerate_formats"
PAGE = Path(__file__).parents[2] / "docs" / "formats.md"

INTRO = f"""\
# File formats

<!-- Written by `{COMMAND}` from the lines of doc in the records; edit those. -->

Rules that hold for all of them:

* Text is UTF-8. A JSON-lines file has one object a line; blank lines are passed over.
* A key that stands twice, `NaN`, `Infinity` and numbers beyond the largest float are refused.
* Commit records, replay records, tolerance files, withdrawals and verdicts have an integer
  `schema_version`. A newer one is refused, an older one is upgraded. Their unknown fields survive
  reading and writing.
* Whatever is hashed is canonical JSON: keys sorted, no white space, the shortest number that reads
  back to the same float. A digest is `sha256:` and 64 hexadecimal digits.
* A file appears whole or not at all; a line that was torn by a crash costs that line only.

All formats are at version 1.
"""

CONFIG_EXAMPLE = """\
name: mine
verifier:
  model: embedded:reward
  head: {kind: reward}
  prompt: {template: "<bos>{context}<sol>{branch}<eos>"}
decisions: embedded:decisions
arms:
  - precision: bfloat16
    batching: {mode: padded, max_rows: 32}
"""

DECISION_EXAMPLE = (
    '{"decision_id": "d1", "context": "2 + 2 = ?", "branches": '
    '[{"branch_id": "a", "text": "4"}, {"branch_id": "b", "text": "5", "label": 0}]}\n'
)

OBSERVATION_COLUMNS = {
    "run": {
        "key": "A field of `RunIdentity`.",
        "value": "Its value.",
    },
    "rows": {
        "row": "Number of the row, in file order.",
        **doc_lines(StoredRow, StoredRow.__struct_fields__),
    },
    "processes": {
        "process_id": "Which of the run's processes: arm, part of the plan.",
        "facts": "What it found, JSON: `ProcessFacts`.",
    },
    "searches": {
        "process_id": "Which of the run's processes searched.",
        "found": "Where results switch, axis by axis, JSON: a list of `AxisSearch`.",
    },
    "observations": {
        "process_id": "The process that scored it.",
        "composition": "Name of the way in which all rows were put into batches.",
        "batch": "Number of the batch in its composition.",
        "slot": "Row of the batch.",
        "row": "Which row it was: `rows.row`.",
        "score": "The score as text, the shortest that reads back to the same float; `nan` too.",
    },
}
"""Table -> column -> meaning."""


class _File(Record, frozen=True, kw_only=True):
    title: str
    intro: str
    example: str
    roots: tuple[type, ...]

    def records(self) -> tuple[type, ...]:
        """Return every record and enum that the file holds, outer before inner."""
        found: dict[type, None] = {}
        waiting = list(self.roots)
        while waiting:
            kind = waiting.pop(0)
            if kind not in found:
                found[kind] = None
                waiting = [*parts_of(kind), *waiting]
        return tuple(found)


def page() -> str:
    """Return the whole page."""
    files = _files()
    uses = Counter(kind for file in files for kind in file.records())
    own = [_file_part(file, [k for k in file.records() if uses[k] == 1]) for file in files]
    shared = [record_section(kind, 3) for kind, count in uses.items() if count > 1]
    title = "## Records that several files share\n"
    return "\n".join([INTRO, *own, title, *shared])


def _file_part(file: _File, kinds: list[type]) -> str:
    parts = [f"## {file.title}\n\n{file.intro}\n\n{file.example}"]
    return "\n".join(parts + [record_section(kind, 3) for kind in kinds])


def _files() -> tuple[_File, ...]:
    golden = {name.partition("-")[0]: data for name, data in documents().items()}
    return (
        _File(
            title="Config: `*.yaml`",
            intro="What `scorepin calibrate` and `scorepin score` take: one whole experiment. "
            "Written by you, in YAML. An unknown key is an error. `configs/demo.yaml` is a "
            "commented one.",
            example=f"```yaml\n{CONFIG_EXAMPLE}```\n",
            roots=(CalibrationConfig,),
        ),
        _File(
            title="Decisions: `*.jsonl`",
            intro="What is scored: one decision a line. Written by you; further keys are passed "
            "over.",
            example=f"```json\n{DECISION_EXAMPLE}```\n",
            roots=(Decision,),
        ),
        _File(
            title="Commit log: `commits.jsonl`",
            intro="One commit record a line, appended by `scorepin score` or by a planner. In the "
            "examples `…` stands for a part that has a table of its own; the whole record is in "
            "`tests/golden/commit-1.json`.",
            example=_shown(golden["commit"]),
            roots=(CommitRecord,),
        ),
        _File(
            title="Item store: `commits.items.jsonl`",
            intro="Stands beside a commit log and holds the text behind each content digest, once, "
            "so that a replay can compute the same companions again.",
            example=_shown(json.dumps(_builtins(an_item())).encode()),
            roots=(Item,),
        ),
        _File(
            title="Replay file: `commits.replays.jsonl`",
            intro="One replay record a line, appended by `scorepin replay`.",
            example=_shown(golden["replay"]),
            roots=(ReplayRecord,),
        ),
        _File(
            title="Tolerance file: `NAME.tolerance.json`",
            intro="How far the scores of one build may move: written by `scorepin calibrate`, "
            "canonical JSON with its own digest inside. One that was edited is refused. "
            "[tolerance.schema.json](tolerance.schema.json) is its JSON Schema.",
            example=_shown(golden["tolerance"]),
            roots=(ToleranceFile,),
        ),
        _File(
            title="Withdrawals: `NAME.tolerance.json.withdrawn.json`",
            intro="Stands beside a tolerance file and says which of its tolerances a drift alarm "
            "has put out of use. Written by `scorepin classify --withdraw`, read wherever the "
            "tolerance file is; one that was edited is refused.",
            example=_shown(golden["withdrawals"]),
            roots=(Withdrawals,),
        ),
        _File(
            title="Verdicts",
            intro="One verdict a line: what `scorepin classify --json` prints and `--out` writes.",
            example=_shown(golden["verdict"]),
            roots=(Verdict,),
        ),
        _File(
            title="Observation store: `observations.sqlite`",
            intro="Every score of one calibration, in SQLite tables that only grow. It makes a "
            "killed run go on where it was; no other tool needs it.",
            example=_tables(),
            roots=(RunIdentity, ProcessFacts),
        ),
    )


def _builtins(item: Item) -> dict[str, str]:
    return {name: getattr(item, name) for name in item.__struct_fields__}


def _shown(data: bytes) -> str:
    """Return an example: records within the record are left out."""
    plain = parse(data, "example")
    lines = ",\n".join(f"  {json.dumps(k)}: {_short(v)}" for k, v in plain.items())
    return f"```text\n{{\n{lines}\n}}\n```\n"


def _short(value: Any) -> str:
    if isinstance(value, dict) and any(isinstance(v, dict | list) for v in value.values()):
        return f"{{{', '.join(f'{json.dumps(key)}: …' for key in value)}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[…]"
    return json.dumps(value)


def _tables() -> str:
    with sqlite3.connect(":memory:") as db:
        db.executescript(SCHEMA)
        parts = [_columns(db, table) for table in OBSERVATION_COLUMNS]
    return "\n".join(parts)


def _columns(db: sqlite3.Connection, table: str) -> str:
    docs = OBSERVATION_COLUMNS[table]
    rows = [f"Table `{table}`:\n\n", "| column | type | meaning |\n| --- | --- | --- |\n"]
    for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})"):
        rows.append(f"| `{name}` | {kind} | {docs[name]} |\n")
    return "".join(rows)
