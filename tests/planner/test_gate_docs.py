import re
import subprocess
import sys
from pathlib import Path

from harness.planner import RefusalReason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "planner.md").read_text("utf-8")


def block(mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n```\w*\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{block('example')}",
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == (block("output"), "")


def test_every_refusal_is_explained() -> None:
    assert [reason for reason in RefusalReason if f"`{reason}`" not in PAGE] == []
