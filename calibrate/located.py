"""Where a decision's computations part in two compositions, and how that is said in words.

Pure. Logic is told from rounding by what differs at the input of the first module or operator whose
bits differ. Where rounding comes first it hides what comes after, so the same two batches are also
compared with every sum in one order (`batch_invariant`): what still differs there is logic.
"""

import re
from collections.abc import Sequence

from harness.records.batching import PaddingSide
from harness.records.document import Record
from harness.verifiers.divergence import Cause, Divergence, ModuleGrowth, Parting

__all__ = ["BatchShown", "Located", "jump", "shown_growth", "told"]

CAUSES = {
    Cause.POSITION_IDS: "the row's tokens are given other position ids: logic, not rounding",
    Cause.ATTENTION_MASK: "the row's tokens see other tokens, a mask that is wrong or skipped: "
    "logic, not rounding",
    Cause.TOKEN_IDS: "other integers go in: logic, not rounding",
    Cause.CHOICE: "other integers go into the operator, so another place is read or another way "
    "taken (a pooled row, a route): logic, unless rounding tipped a near tie",
    Cause.SHARED: "a value made of the whole batch goes in (a scale, a mean): logic, not rounding",
    Cause.HIDDEN_STATE: "other values go in, and no operator is seen to make them: a stored "
    "result, another row's, or code outside torch",
    Cause.ORDER: "equal bits go in: the operator adds in another order at this shape",
}
"""What each cause means for a person."""

JUMP = 100.0
"""How much further than all before it a module's relative difference must go to be pointed out."""

_LAYER = re.compile(r"\.\d+$")


class BatchShown(Record, frozen=True, kw_only=True):
    """One of the two batches."""

    composition: str
    """The composition that it is part of."""
    num_rows: int
    """Rows, inert ones included."""
    width: int
    """Padded width, tokens."""
    side: PaddingSide | None
    """Side of the padding."""
    slot: int
    """The row's slot."""

    def __str__(self) -> str:
        """Say it as ``rows-12: slot 3 of 12 rows, 57 wide, padded left``."""
        rows = "row" if self.num_rows == 1 else "rows"
        side = f", padded {self.side}" if self.side else ""
        place = f"slot {self.slot} of {self.num_rows} {rows}"
        return f"{self.composition}: {place}, {self.width} wide{side}"


class Located(Record, frozen=True, kw_only=True):
    """What was found about one decision."""

    decision_id: str
    """The decision."""
    branch_id: str
    """The branch of it that moves most."""
    num_tokens: int
    """The branch's row, tokens."""
    condition: str
    """Label of the condition."""
    num_searched: int
    """Compositions that were scored to choose the two."""
    left: BatchShown
    """One batch."""
    right: BatchShown
    """The other."""
    divergence: Divergence
    """Their comparison."""
    in_one_order: Divergence | None = None
    """The same two with every sum in one order; None where that was not asked."""
    no_order: str = ""
    """Why every sum could not be put in one order."""
    trees: tuple[str, ...] = ()
    """The summation orders of the parting operator at its two shapes, where they were measured."""

    @property
    def score_difference(self) -> float:
        """How far the score moved; NaN where one of the two is no number."""
        return abs(self.divergence.left_score - self.divergence.right_score)


def told(located: Located) -> tuple[str, ...]:
    """Return what was found, a sentence each."""
    divergence = located.divergence
    if divergence.parting is None:
        return (_nothing(divergence), *_one_order(located))
    lines = [*_parting(divergence.parting), *located.trees]
    leap = jump(divergence.modules)
    if leap is not None:
        before, module = leap
        lines.append(
            f"the difference jumps at {module.module} ({module.kind}), from {before:.2g} to "
            f"{module.max_relative:.2g} of the values: more than rounding grows in one module"
        )
    return (*lines, *_one_order(located))


def jump(modules: Sequence[ModuleGrowth]) -> tuple[float, ModuleGrowth] | None:
    """Return the first module whose relative difference leaves all before it far behind.

    With it the largest relative difference before. A final score, where the sizes of hidden values
    say little, counts too.
    """
    largest = 0.0
    for module in modules:
        if largest and module.max_relative > JUMP * largest:
            return largest, module
        largest = max(largest, module.max_relative)
    return None


def shown_growth(modules: Sequence[ModuleGrowth]) -> tuple[ModuleGrowth, ...]:
    """Return the modules to list: the first that differs, whole layers, what stands around them."""
    first = next((module for module in modules if module.num_different), None)
    layers = {m.module for m in modules if _LAYER.search(m.module)}
    inside = tuple(f"{layer}." for layer in layers)
    return tuple(m for m in modules if m is first or not m.module.startswith(inside))


def _nothing(divergence: Divergence) -> str:
    counted = f"{len(divergence.modules)} modules, {_num_values(divergence)} values"
    rest = f"; {divergence.num_not_compared} modules could not be compared"
    what = f"nothing differs: {counted}, compared bit by bit"
    return what + (rest if divergence.num_not_compared else "")


def _num_values(divergence: Divergence) -> int:
    return sum(module.num_values for module in divergence.modules)


def _parting(parting: Parting) -> list[str]:
    lines = [f"first module that differs: {parting.module} ({parting.kind})"]
    if parting.differing_inputs:
        lines.append(f"its input differs already: {', '.join(parting.differing_inputs)}")
        origin = parting.origin or "no module: the code that calls the model"
        lines.append(f"made from equal bits inside: {origin}")
    if parting.left is not None and parting.right is not None:
        name = parting.left.name
        lines.append(f"first operator that differs: {name}")
        lines.append(f"  left:  {str(parting.left).removeprefix(name).strip()}")
        lines.append(f"  right: {str(parting.right).removeprefix(name).strip()}")
    lines.append(f"cause: {parting.cause}: {CAUSES[parting.cause]}")
    return lines


def _one_order(located: Located) -> list[str]:
    if located.no_order:
        return [f"with every sum in one order: not possible: {located.no_order}"]
    if located.in_one_order is None:
        return []
    begin = "with every sum in one order (batch_invariant)"
    parting = located.in_one_order.parting
    if parting is None:
        return [f"{begin} nothing differs: all of it is the order of sums"]
    return [f"{begin} the two still part, so order is not all:", *_parting(parting)]
