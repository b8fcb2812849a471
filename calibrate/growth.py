"""How a difference grows through a model, as a table and as a plot."""

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from calibrate.located import Located, shown_growth, told
from calibrate.plots import COLOURS, EDGE, drawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from harness.verifiers.divergence import ModuleGrowth

__all__ = ["growth_plot", "print_located"]

MOST_NAMES = 14
"""Names that the axis has room for."""


def print_located(located: Located, console: "Console") -> None:
    """Print what was found: the two batches, the words, the table of growth, the score."""
    branch = f"{located.decision_id}/{located.branch_id}"
    console.print(f"{branch}, {located.num_tokens} tokens, {located.condition}", highlight=False)
    for name, batch in (("left", located.left), ("right", located.right)):
        console.print(f"  {name + ':':<7}{batch}", highlight=False, markup=False)
    console.print()
    for line in told(located):
        console.print(Text(line), soft_wrap=True)
    if located.divergence.parting is not None:
        console.print()
        console.print(_table(shown_growth(located.divergence.modules)))
    scores = located.divergence.left_score, located.divergence.right_score
    words = f"score: {scores[0]!r} and {scores[1]!r}, {located.score_difference:.3g} apart"
    console.print(words, highlight=False)


def growth_plot(located: Located) -> str:
    """Return an SVG: each module's largest relative difference, in the order in which they end."""
    modules = located.divergence.modules
    moved = [(at, m.max_relative) for at, m in enumerate(modules) if m.num_different]
    still = [at for at, m in enumerate(modules) if not m.num_different]

    def draw(figure: Any, axes: Any) -> None:
        axes.set(xlabel="modules, in the order in which they end", xlim=(-1, len(modules)))
        axes.set(ylabel="largest difference / largest value")
        if moved:
            axes.set(yscale="log")
            places, sizes = zip(*moved, strict=True)
            axes.plot(places, sizes, ".-", color=COLOURS[0], label="differs")
        floor = min((size for _, size in moved), default=1.0)
        axes.plot(still, [floor / 3] * len(still), "|", color=EDGE, label="equal bits")
        _name_layers(axes, modules)
        figure.legend(loc="outside upper left", ncols=2, frameon=False)

    return drawn(draw, height=4.6)


def _name_layers(axes: Any, modules: "Sequence[ModuleGrowth]") -> None:
    """Put the names of the listed modules under the axis, where there is room."""
    listed = {module.module for module in shown_growth(modules)}
    room, named = len(modules) / MOST_NAMES, list[tuple[int, str]]()
    for at, module in enumerate(modules):
        if module.module in listed and (not named or at - named[-1][0] >= room):
            named.append((at, module.module))
    axes.set_xticks([at for at, _ in named], [name for _, name in named], rotation=30, ha="right")


def _table(modules: "Sequence[ModuleGrowth]") -> Table:
    table = Table(
        Column("module", overflow="fold"),
        Column("differ", justify="right", no_wrap=True),
        Column("largest", justify="right", no_wrap=True),
        Column("ulps", justify="right", no_wrap=True),
        Column("relative", justify="right", no_wrap=True),
        box=box.SIMPLE,
    )
    for module in modules:
        share = f"{module.num_different}/{module.num_values}"
        sizes = (module.max_difference, module.max_ulps, module.max_relative)
        table.add_row(module.module, share, *(f"{size:.3g}" if size else "0" for size in sizes))
    return table
