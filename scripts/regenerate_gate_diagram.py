"""Writes the gate's state diagram into docs/planner.md, from the table that the gate runs on.

Run it with ``python -m scripts.regenerate_gate_diagram`` when the table has changed.
"""

from pathlib import Path

from harness.planner.gate_table import diagram

COMMAND = "python -m scripts.regenerate_gate_diagram"
PAGE = Path(__file__).parents[1] / "docs" / "planner.md"
BEGIN = "<!-- gate diagram: written by scripts/regenerate_gate_diagram.py -->\n"
END = "<!-- end of gate diagram -->\n"


def with_diagram(page: str) -> str:
    """Return the page with the diagram of the present table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```mermaid\n{diagram()}```\n\n{END}{after}"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(with_diagram(PAGE.read_text("utf-8")), "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
