"""Run it with ``python -m scripts.regenerate_formats`` when a record has changed."""

from scripts.regenerate_formats.page import PAGE, page
from scripts.regenerate_formats.schema import SCHEMA, schema


def main() -> None:
    """Write the page and the schema."""
    for path, text in ((PAGE, page()), (SCHEMA, schema())):
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
