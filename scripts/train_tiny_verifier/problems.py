"""An arithmetic word problem: its text, its steps, and which problems are held out.

Rules kept here: the running value stays in 0..20, division is exact, and a problem belongs to the
held-out part by a hash of its numbers, so that no seed can move it into the training part. One in
twenty (value, operator, operand) triples never occurs in training at all.

Draws are made in a fixed order from the caller's generator: changing that order changes every
decision that ships with the package.
"""

from enum import StrEnum
from random import Random

import msgspec

__all__ = [
    "LARGEST_VALUE",
    "Operator",
    "Problem",
    "Step",
    "draw_problem",
    "draw_step",
    "is_legal",
    "is_unseen",
]

LARGEST_VALUE = 20
"""Largest running value of a right solution: small enough to be learnt in minutes."""

_ATTEMPTS_PER_STEP = 20
_NAMES = ("Tom", "Ana", "Raj", "Mia", "Leo", "Zoe", "Sam", "Eva", "Kai", "Ivy", "Max", "Noa")
_ITEMS = (
    "apples",
    "coins",
    "books",
    "cards",
    "pens",
    "shells",
    "stamps",
    "beads",
    "eggs",
    "kites",
)


class Operator(StrEnum):
    """An operator, in the order in which weights are given to it."""

    PLUS = "+"
    MINUS = "-"
    TIMES = "*"
    DIVIDE = "/"

    def apply(self, value: int, operand: int) -> int:
        """Return `value` (operator) `operand`; division rounds down."""
        match self:
            case Operator.PLUS:
                return value + operand
            case Operator.MINUS:
                return value - operand
            case Operator.TIMES:
                return value * operand
            case Operator.DIVIDE:
                return value // operand

    @property
    def commutes(self) -> bool:
        """Whether the two sides may be written in either order."""
        return self in (Operator.PLUS, Operator.TIMES)


_OPERATOR_WEIGHTS = (4, 4, 2, 1)

_SENTENCES = {
    Operator.PLUS: (
        "{name} buys {operand} more.",
        "{name} finds {operand} more.",
        "A friend gives {name} {operand} {item}.",
        "Then {operand} {item} are added.",
    ),
    Operator.MINUS: (
        "{name} gives away {operand}.",
        "{name} loses {operand}.",
        "{name} sells {operand} of them.",
        "Then {operand} {item} are taken away.",
    ),
    Operator.TIMES: (
        "Now {name} gets {operand} times as many.",
        "The number of {item} grows {operand} times.",
    ),
    Operator.DIVIDE: (
        "The {item} are split into {operand} equal groups and {name} keeps one.",
        "{name} shares them equally among {operand} friends and looks at one share.",
    ),
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the running value."""

    operator: Operator
    operand: int

    def apply(self, value: int) -> int:
        """Return the value after this step."""
        return self.operator.apply(value, self.operand)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A word problem with its one right chain of steps."""

    text: str
    """What the solver reads."""
    start: int
    """The value before the first step."""
    steps: tuple[Step, ...]

    @property
    def has_unseen_triple(self) -> bool:
        """Whether the right chain meets a triple that training never shows."""
        value, unseen = self.start, False
        for step in self.steps:
            unseen |= is_unseen(value, step)
            value = step.apply(value)
        return unseen


def is_unseen(value: int, step: Step) -> bool:
    """Say whether (value, operator, operand) is among the 5 % that training never shows."""
    return (value * 7919 + step.operand * 104729 + ord(step.operator) * 31) % 20 == 0


def is_legal(value: int, step: Step) -> bool:
    """Say whether the step keeps the running value a whole number in 0..LARGEST_VALUE."""
    match step.operator:
        case Operator.MINUS:
            return step.apply(value) >= 0
        case Operator.DIVIDE:
            return step.operand > 1 and value % step.operand == 0 and value >= step.operand
        case _:
            return step.apply(value) <= LARGEST_VALUE


def draw_step(rng: Random) -> Step:
    """Draw an operator by weight and an operand that suits it (not yet checked for legality)."""
    operator = rng.choices(tuple(Operator), _OPERATOR_WEIGHTS)[0]
    additive = operator in (Operator.PLUS, Operator.MINUS)
    operand = rng.randint(1, 9) if additive else rng.randint(2, 5)
    return Step(operator=operator, operand=operand)


def draw_problem(rng: Random, *, held_out: bool) -> Problem:
    """Draw a problem of the held-out part or of the training part."""
    while True:
        start = rng.randint(2, 15)
        steps = _draw_steps(rng, start)
        if _is_held_out(start, steps) != held_out:
            continue
        untold = Problem(text="", start=start, steps=steps)
        if held_out or not untold.has_unseen_triple:
            return msgspec.structs.replace(untold, text=_tell(rng, untold))


def _draw_steps(rng: Random, start: int) -> tuple[Step, ...]:
    value, steps = start, []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        step = _draw_legal_step(rng, value)
        steps.append(step)
        value = step.apply(value)
    return tuple(steps)


def _draw_legal_step(rng: Random, value: int) -> Step:
    for _ in range(_ATTEMPTS_PER_STEP):
        step = draw_step(rng)
        if is_legal(value, step):
            return step
    middle = LARGEST_VALUE // 2
    return Step(operator=Operator.MINUS if value > middle else Operator.PLUS, operand=1)


def _is_held_out(start: int, steps: tuple[Step, ...]) -> bool:
    chain = sum(
        place * (ord(step.operator) * 131 + step.operand * 17)
        for place, step in enumerate(steps, start=1)
    )
    return (start * 1000003 + chain) % 10 == 0


def _tell(rng: Random, problem: Problem) -> str:
    name, item = rng.choice(_NAMES), rng.choice(_ITEMS)
    sentences = [f"{name} has {problem.start} {item}."]
    for step in problem.steps:
        sentence = rng.choice(_SENTENCES[step.operator])
        sentences.append(sentence.format(name=name, item=item, operand=step.operand))
    return " ".join([*sentences, "How many now?"])
