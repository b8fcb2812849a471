"""Writes the golden files: one document of each format, as this release writes it.

Run it with ``python -m scripts.regenerate_golden`` when a format has changed on purpose, and look
at the difference: a file that changes without a new schema version breaks every reader.
"""

import math
from pathlib import Path

from harness.codec import encode
from harness.records.withdrawal import Withdrawals
from harness.sealed import seal
from tests.examples import a_commit, a_replay, a_tolerance_file, a_verdict, a_withdrawal

COMMAND = "python -m scripts.regenerate_golden"
FOLDER = Path(__file__).parents[1] / "tests" / "golden"


def documents() -> dict[str, bytes]:
    """Return file name -> bytes; the number is the schema version."""
    later = {"added_later": {"note": "kept"}}
    return {
        "commit-1.json": encode(a_commit()),
        "replay-1.json": encode(
            a_replay(scores={"a": 1.5, "b": math.nan, "c": -math.inf}, unknown_fields=later)
        ),
        "tolerance-1.json": seal(a_tolerance_file()),
        "verdict-1.json": encode(a_verdict()),
        "withdrawals-1.json": seal(Withdrawals(withdrawals=(a_withdrawal(),))),
    }


def main() -> None:
    """Write each document, one line, no newline at its end."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, data in documents().items():
        (FOLDER / name).write_bytes(data)
        print(FOLDER / name)


if __name__ == "__main__":
    main()
