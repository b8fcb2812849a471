"""A candidate solution: right, or wrong in exactly one known way, labelled line by line.

A solution is one equation a line and a last line `#answer`. A line's label says whether it is what
a right solver would have written after the lines that the candidate already has; a mistake is
therefore charged to its own line only, and the whole solution is right when every line is.

Rules: no negative number is ever written (the tokenizer gives one token a character, and a minus
sign stands for subtraction only); draws are made in a fixed order from the caller's generator.
"""

import re
from enum import StrEnum
from random import Random

import msgspec

from scripts.train_tiny_verifier.problems import (
    LARGEST_VALUE,
    Operator,
    Problem,
    Step,
    draw_problem,
    draw_step,
    is_legal,
    is_unseen,
)

__all__ = ["Candidate", "ErrorKind", "draw_candidate", "draw_drill"]

_SWAPPED_SHARE = 0.25
"""Share of commuting lines written operand first: right candidates then differ in form."""

_DRILL_LINES = 8
_DRILL_RIGHT_SHARE = 0.65
_LARGEST_WRONG_PRODUCT = 1000
_NEGATIVE = re.compile(r"(^|[=+\-*/\n])-|#-")


class ErrorKind(StrEnum):
    """What is wrong with a candidate."""

    OK = "ok"
    """Nothing."""
    SLIP = "slip"
    """The result of one line is miscalculated."""
    OP = "op"
    """One line uses another operator than the problem states."""
    OPERAND = "operand"
    """One line uses another number than the problem or the line before states."""
    FINAL = "final"
    """The lines are right and the answer is not what they lead to."""


_MISTAKES = (ErrorKind.SLIP, ErrorKind.OP, ErrorKind.OPERAND, ErrorKind.FINAL)
_MISTAKE_WEIGHTS = (60, 14, 14, 12)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A solution to a problem, or a drill, with what the labels are made from."""

    context: str
    """The problem's text; empty for a drill."""
    text: str
    true_lines: tuple[str, ...]
    """What a right solver writes in place of each line of `text`, given the lines before it."""
    error: ErrorKind
    is_drill: bool = False
    """A drill is a list of unrelated equations: it has labels for lines, none as a whole."""

    @property
    def is_right(self) -> bool:
        """Whether every line is what a right solver writes."""
        return tuple(self.text.splitlines()) == self.true_lines


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """One equation as written, with the value it hands on."""

    text: str
    true_text: str
    value: int
    error: ErrorKind


class _Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The left side of an equation."""

    value: int
    step: Step
    error: ErrorKind = ErrorKind.OK

    @property
    def result(self) -> int:
        return self.step.apply(self.value)

    def write(self, result: int, *, swapped: bool) -> str:
        value, operator, operand = self.value, self.step.operator, self.step.operand
        if swapped and operator.commutes:
            return f"{operand}{operator}{value}={result}"
        return f"{value}{operator}{operand}={result}"


def draw_candidate(rng: Random, problem: Problem | None = None) -> Candidate:
    """Draw a candidate, right half of the time; for a new training problem unless one is given."""
    problem = problem or draw_problem(rng, held_out=False)
    right = rng.random() < 0.5
    while True:
        candidate = _draw_solution(rng, problem, right=right)
        if not _NEGATIVE.search(candidate.text):
            return candidate


def draw_drill(rng: Random) -> Candidate:
    """Draw unrelated equations: dense practice in arithmetic, some of them wrong."""
    lines: list[str] = []
    true_lines: list[str] = []
    while len(lines) < _DRILL_LINES:
        operation = _draw_drill_operation(rng)
        if operation is None:
            continue
        result, right = operation.result, rng.random() < _DRILL_RIGHT_SHARE
        swapped = operation.step.operator.commutes and rng.random() < _SWAPPED_SHARE
        written = result if right else _slip(rng, result)
        lines.append(operation.write(written, swapped=swapped) + "\n")
        true_lines.append(operation.write(result, swapped=swapped))
    return Candidate(
        context="",
        text="".join(lines),
        true_lines=tuple(true_lines),
        error=ErrorKind.OK,
        is_drill=True,
    )


def _draw_drill_operation(rng: Random) -> _Operation | None:
    step = draw_step(rng)
    if step.operator in (Operator.PLUS, Operator.MINUS):
        value = rng.randint(1, LARGEST_VALUE)
    else:
        factor = step.operand if step.operator is Operator.DIVIDE else 1
        value = rng.randint(1, LARGEST_VALUE // step.operand) * factor
    if not is_legal(value, step) or is_unseen(value, step):
        return None
    return _Operation(value=value, step=step)


def _draw_solution(rng: Random, problem: Problem, *, right: bool) -> Candidate:
    wrong_line = None if right else rng.randrange(len(problem.steps))
    mistake = rng.choices(_MISTAKES, _MISTAKE_WEIGHTS)[0]
    value, error = problem.start, ErrorKind.OK
    lines: list[_Line] = []
    for index, step in enumerate(problem.steps):
        line = _draw_line(rng, value, step, mistake if index == wrong_line else None)
        error = line.error if index == wrong_line else error
        lines.append(line)
        value = line.value
    answer = value
    if mistake is ErrorKind.FINAL and not right:
        answer, error = _slip(rng, value), ErrorKind.FINAL
    return Candidate(
        context=problem.text,
        text="\n".join([*(line.text for line in lines), f"#{answer}"]),
        true_lines=(*(line.true_text for line in lines), f"#{value}"),
        error=error,
    )


def _draw_line(rng: Random, value: int, step: Step, mistake: ErrorKind | None) -> _Line:
    operation = _draw_operation(rng, value, step, mistake)
    result, error = operation.result, operation.error
    # An operand mistake that would break the division is taken back; a slip stands in for it.
    if mistake not in (None, ErrorKind.FINAL) and error is ErrorKind.OK:
        result, error = _slip(rng, result), ErrorKind.SLIP
    # The draw is made for every line, so that the stream does not depend on the operator.
    swapped = rng.random() < _SWAPPED_SHARE and operation.step.operator.commutes
    true_operation = _Operation(value=value, step=step)
    return _Line(
        text=operation.write(result, swapped=swapped),
        true_text=true_operation.write(true_operation.result, swapped=swapped),
        value=result,
        error=error,
    )


def _draw_operation(rng: Random, value: int, step: Step, mistake: ErrorKind | None) -> _Operation:
    intended = _Operation(value=value, step=step)
    if mistake is ErrorKind.OP:
        operator = rng.choice(_other_operators(value, step))
        changed = Step(operator=operator, operand=step.operand)
        return _Operation(value=value, step=changed, error=ErrorKind.OP)
    if mistake is ErrorKind.OPERAND:
        changed_operation = _draw_operand_mistake(rng, intended)
        return changed_operation if _divides(changed_operation) else intended
    return intended


def _draw_operand_mistake(rng: Random, intended: _Operation) -> _Operation:
    value, step = intended.value, intended.step
    if rng.random() < 0.5:
        # A slip to 0 would make an empty step: take the next number instead.
        operand = _slip(rng, step.operand) or step.operand + 1
        step = Step(operator=step.operator, operand=operand)
    else:
        value = _slip(rng, value)
    return _Operation(value=value, step=step, error=ErrorKind.OPERAND)


def _divides(operation: _Operation) -> bool:
    step = operation.step
    return step.operator is not Operator.DIVIDE or operation.value % step.operand == 0


def _other_operators(value: int, step: Step) -> list[Operator]:
    others = [
        operator
        for operator in (Operator.PLUS, Operator.MINUS, Operator.TIMES)
        if operator is not step.operator
        and (operator is not Operator.TIMES or value * step.operand < _LARGEST_WRONG_PRODUCT)
        and (operator is not Operator.MINUS or value >= step.operand)
    ]
    return others or [Operator.MINUS]


def _slip(rng: Random, value: int) -> int:
    """Return a plausible wrong number, never negative, never `value`."""
    while True:
        wrong = _draw_near(rng, value)
        if wrong >= 0 and wrong != value:
            return wrong


def _draw_near(rng: Random, value: int) -> int:
    kind = rng.random()
    if kind < 0.5:
        return value + rng.choice((-1, 1))
    if kind < 0.75:
        return value + rng.choice((-2, 2, -3, 3))
    if kind < 0.85:
        return value + rng.choice((-10, 10))
    return rng.randint(0, LARGEST_VALUE)
