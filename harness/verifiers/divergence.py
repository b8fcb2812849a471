"""A divergence: where the computations of one row in two batches part, and how far they go."""

from enum import StrEnum

from harness.records.document import Record

__all__ = ["Cause", "Divergence", "ModuleGrowth", "Operator", "Parting"]


class Cause(StrEnum):
    """What differs at the input of the first module, or operator in it, whose bits differ."""

    POSITION_IDS = "position_ids"
    """The row's own tokens are at other positions: logic, not rounding."""
    ATTENTION_MASK = "attention_mask"
    """The row's own tokens see other tokens, of padding or of a neighbour: logic, not rounding."""
    TOKEN_IDS = "token_ids"  # noqa: S105 - no secret
    """Other integers go in: logic, not rounding."""
    CHOICE = "choice"
    """Other integers go into an operator: another place is read, or another way taken."""
    SHARED = "shared"
    """A value that was made of the whole batch goes in: logic, not rounding."""
    HIDDEN_STATE = "hidden_state"
    """Other values go in, and no operator is seen to make them: a stored result, another row's, or
    code that could not be compared."""
    ORDER = "order"
    """Nothing: equal bits go in and others come out, so the operator adds in another order."""


class ModuleGrowth(Record, frozen=True, kw_only=True):
    """One module's output for the row, in both batches; modules stand in the order they end."""

    module: str
    """Its name in the model, with ``#2`` behind it when it is called a second time."""
    kind: str
    """Its class."""
    num_values: int
    """Values that were compared."""
    num_different: int
    """Those whose bits differ."""
    max_difference: float
    """Largest absolute difference; infinite where only one side is a number."""
    max_ulps: float
    """Largest difference in units in the last place of the larger value, in the output's dtype."""
    max_relative: float
    """Largest difference over the largest absolute value of the output."""


class Operator(Record, frozen=True, kw_only=True):
    """One call of an operator."""

    name: str
    """Its name at torch's dispatcher, ``aten::linear``."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its tensors, in order."""
    dtypes: tuple[str, ...]
    """Their dtypes."""

    def __str__(self) -> str:
        """Say it as ``aten::mm [3, 64] bfloat16, [64, 64] bfloat16``."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return f"{self.name} " + ", ".join(f"{list(shape)} {dtype}" for shape, dtype in pairs)


class Parting(Record, frozen=True, kw_only=True):
    """Where the two first differ."""

    module: str
    """The first module, in the order in which they end, whose bits differ."""
    kind: str
    """Its class."""
    origin: str
    """The innermost module around it whose own input is still equal; empty for the caller."""
    cause: Cause
    """What differs at its input."""
    differing_inputs: tuple[str, ...]
    """Names of its inputs that differ."""
    left: Operator | None = None
    """The first operator inside the origin whose bits differ, as the left batch calls it."""
    right: Operator | None = None
    """The same, as the right batch calls it."""


class Divergence(Record, frozen=True, kw_only=True):
    """The comparison of one row in two batches."""

    parting: Parting | None
    """Where they part; None when no bit differs."""
    modules: tuple[ModuleGrowth, ...]
    """Every module that could be compared, in the order in which they end."""
    num_not_compared: int
    """Module outputs that hold no values of this row alone, or only in one of the batches."""
    left_score: float
    """The row's score in the left batch."""
    right_score: float
    """Its score in the right batch."""
