"""The choice of decisions: which problems, and which few of their solutions as branches.

A decision prefers one right and one wrong branch, then labelled ones, then any; problems that can
offer right and wrong come first. Everything else is decided by the seed, so that the same data and
arguments give the same file. A branch counts only if it fits the token budget together with its
problem; how many tokens a text has is the caller's knowledge.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from random import Random

import msgspec

from scripts.prepare_smollm2.solutions import Problem, Solution

__all__ = ["Choice", "Decision", "choose", "decision_lines"]

_MAX_TOKENS = 320
"""Of a row with its prompt: long enough for real solutions, short enough for a CPU."""
_PROMPT_TOKENS = 72
"""Left free for a chat template and a question around the two texts."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How many decisions of how many branches."""

    num_decisions: int = 120
    num_branches: int = 3
    """At most; a decision has at least 2."""
    seed: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with the chosen branches, in an order that tells nothing about labels."""

    problem: Problem
    branches: tuple[Solution, ...]

    @property
    def has_contrast(self) -> bool:
        """Whether a branch known right stands beside one known wrong."""
        return {0, 1} <= {branch.label for branch in self.branches}

    @property
    def num_labelled(self) -> int:
        """Branches with a known label."""
        return sum(branch.label is not None for branch in self.branches)


def choose(
    problems: Sequence[Problem], choice: Choice, count_tokens: Callable[[str], int]
) -> tuple[Decision, ...]:
    """Return the decisions in the order of problem names; fewer than asked if there are no more."""
    rng = Random(choice.seed)  # noqa: S311 - reproducible choice, not a secret
    decisions = [
        decision
        for problem in problems
        if (decision := _decide(problem, choice, rng, count_tokens)) is not None
    ]
    rng.shuffle(decisions)
    decisions.sort(key=lambda item: (not item.has_contrast, -item.num_labelled))
    return tuple(sorted(decisions[: choice.num_decisions], key=lambda item: item.problem.name))


def decision_lines(decisions: Sequence[Decision]) -> str:
    """Return the JSON Lines text; an unknown label leaves its key out."""
    return "".join(json.dumps(_document(item), ensure_ascii=False) + "\n" for item in decisions)


def _decide(
    problem: Problem, choice: Choice, rng: Random, count_tokens: Callable[[str], int]
) -> Decision | None:
    shuffled = rng.sample(problem.solutions, len(problem.solutions))
    room = _MAX_TOKENS - _PROMPT_TOKENS - count_tokens(problem.text)
    wanted = _by_preference(shuffled, lambda item: count_tokens(item.text) < room)
    chosen = {item.text for item in islice(wanted, choice.num_branches)}
    if len(chosen) < 2:
        return None
    return Decision(
        problem=problem, branches=tuple(item for item in shuffled if item.text in chosen)
    )


def _by_preference(
    solutions: Sequence[Solution], fits: Callable[[Solution], bool]
) -> Iterator[Solution]:
    """Yield what fits: right and wrong in turn while both last, then the other ones."""
    right = [item for item in solutions if item.label == 1 and fits(item)]
    wrong = [item for item in solutions if item.label == 0 and fits(item)]
    paired = min(len(right), len(wrong))
    yield from chain.from_iterable(zip(right[:paired], wrong[:paired], strict=True))
    yield from right[paired:] + wrong[paired:]
    yield from (item for item in solutions if item.label is None and fits(item))


def _document(decision: Decision) -> dict[str, object]:
    problem = decision.problem
    return {
        "decision_id": f"champ-{problem.name.removeprefix('P_')}",
        "context": problem.text,
        "branches": [_branch(number, item) for number, item in enumerate(decision.branches)],
    }


def _branch(number: int, solution: Solution) -> dict[str, str | int]:
    branch: dict[str, str | int] = {"branch_id": f"b{number:02d}", "text": solution.text}
    return branch if solution.label is None else branch | {"label": solution.label}
