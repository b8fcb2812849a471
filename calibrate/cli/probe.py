"""``scorepin probe``: the summation tree that each kernel really uses, shape by shape."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate import console
from calibrate.cli.app import LOOK, app
from calibrate.cli.call import errors_told, print_json
from calibrate.cli.options import AsJson, ConfigPath, Overwrite
from harness.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calibrate.orders import ProbeReport, RowClasses
    from harness.orders.fingerprint import ClassOrder, Rung
    from harness.orders.tree import SummationTree


@app.command(rich_help_panel=LOOK)
def probe(  # noqa: PLR0913 - options
    config_path: ConfigPath,
    *,
    arm: Annotated[int, typer.Option(min=0, help="Which of the config's arms to probe.")] = 0,
    draw: Annotated[bool, typer.Option("--draw", help="Draw each tree as text.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw each tree as SVG, into a folder.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure in which order the model's kernels add, and what that means for its batches."""
    with errors_told():
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from calibrate.orders import probe_arm  # noqa: PLC0415 - heavy
        from harness.decisions import read_decisions  # noqa: PLC0415

        config = load_config(config_path)
        if arm >= len(config.arms):
            raise ConfigError(f"--arm {arm}: the config has arms 0 to {len(config.arms) - 1}")
        decisions = read_decisions(config.decisions, config.num_decisions)
        report = probe_arm(config, config.arms[arm], decisions)
        if svg is not None:
            _store_drawings(report.found.trees, svg, overwrite=overwrite)
        if as_json:
            _print_as_json(report)
        else:
            _print(report)
            if draw:
                _print_drawings(report.found.trees)


def _print_as_json(report: "ProbeReport") -> None:
    import msgspec  # noqa: PLC0415

    from harness.orders.patterns import pattern  # noqa: PLC0415

    patterns = {digest: pattern(tree) for digest, tree in report.found.trees.items()}
    fingerprints = report.found.orders.fingerprints
    print_json(msgspec.to_builtins(report) | {"fingerprints": fingerprints, "patterns": patterns})


def _print(report: "ProbeReport") -> None:
    from harness.orders.cache import cache_folder  # noqa: PLC0415

    found = report.found
    for one in found.orders.classes:
        console.print_line(f"{one.shape.name}  {_short(one.fingerprint)}")
        for sizes, word in _lines(one, found.trees):
            console.print_line(f"  {sizes:<24}  {word}")
    for name in found.orders.unmeasured:
        console.print_line(f"not measured: {name}")
    for name in report.stale:
        advice = f"remove {cache_folder()} to have it measured again"
        console.print_line(f"the cached fingerprint differs: {name}; {advice}")
    num_classes, num_trees = len(found.orders.classes), len(found.trees)
    console.print_line("")
    console.print_line(f"{num_classes} classes, {num_trees} trees, {found.seconds:.1f} s")
    console.print_line(f"rows in a batch of width {report.width} that should give equal bits:")
    console.print_line(f"  by the trees   {_in_words(report.predicted)}")
    console.print_line(f"  by the bits    {_in_words(report.observed)}")
    for gap in report.disagreements:
        what = "alike by the trees alone" if gap.predicted_alike else "alike by the bits alone"
        pair = f"{_in_words((gap.left,))} and {_in_words((gap.right,))}"
        console.print_line(f"  {pair} are {what}: {gap.reason}")


def _lines(one: "ClassOrder", trees: "dict[str, SummationTree]") -> "Iterable[tuple[str, str]]":
    """Yield sizes and the word of their trees, equal neighbours together."""
    what = "keys" if one.shape.is_by_length else "rows"
    for word, rungs in groupby(one.rungs, key=lambda rung: _word(rung, trees)):
        sizes = [rung.size for rung in rungs]
        span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        yield f"{what} {span}", word


def _word(rung: "Rung", trees: "dict[str, SummationTree]") -> str:
    from harness.orders.patterns import pattern  # noqa: PLC0415

    if rung.refused:
        return f"refused: {rung.refused}"
    words = [(one.places, pattern(trees[one.tree]), one.tree) for one in rung.trees]
    return "; ".join(
        (word if places == "all" else f"{places}: {word}")
        + (f" {_short(tree)}" if word.startswith("other") else "")
        for places, word, tree in words
    )


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _in_words(classes: "RowClasses") -> str:
    return " | ".join(" ".join(map(str, rows)) for rows in classes)


def _print_drawings(trees: "dict[str, SummationTree]") -> None:
    from harness.orders.drawing import draw_text  # noqa: PLC0415

    for digest, tree in trees.items():
        console.print_line("")
        console.print_line(f"{_short(digest)}, {tree.num_terms} terms")
        console.print_line(draw_text(tree))


def _store_drawings(trees: "dict[str, SummationTree]", folder: Path, *, overwrite: bool) -> None:
    from harness.files import write_atomic  # noqa: PLC0415
    from harness.orders.drawing import draw_svg  # noqa: PLC0415

    for digest, tree in trees.items():
        path = folder / f"{_short(digest)}.svg"
        write_atomic(path, draw_svg(tree).encode(), overwrite=overwrite)
