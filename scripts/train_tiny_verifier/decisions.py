"""The held-out decisions: one problem each, with distinct candidate solutions as branches.

Decides the text of `decisions.jsonl` byte for byte: the same seed gives the same file. Every drawn
candidate is kept for evaluation; only the decisions drop repeats (first occurrence wins).
"""

import json
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from scripts.train_tiny_verifier.candidates import Candidate, draw_candidate
from scripts.train_tiny_verifier.problems import Problem, draw_problem

__all__ = ["HeldOutProblem", "decision_lines", "draw_held_out"]

NUM_PROBLEMS = 400
NUM_CANDIDATES = 16
SEED = 99


class HeldOutProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that training never shows, with candidates drawn for it."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    """As drawn: about 4 in 10 repeat an earlier one."""

    @property
    def distinct_candidates(self) -> tuple[Candidate, ...]:
        """The candidates without repeats, in drawing order."""
        first: dict[str, Candidate] = {}
        for candidate in self.candidates:
            first.setdefault(candidate.text, candidate)
        return tuple(first.values())


def draw_held_out(
    num_problems: int = NUM_PROBLEMS, num_candidates: int = NUM_CANDIDATES, *, seed: int = SEED
) -> tuple[HeldOutProblem, ...]:
    """Draw held-out problems; the defaults give the decisions that ship."""
    rng = Random(seed)  # noqa: S311 - reproducible data, not a secret
    return tuple(_draw_one(rng, num_candidates) for _ in range(num_problems))


def decision_lines(held_out: Iterable[HeldOutProblem]) -> str:
    """Return the JSON Lines text of the decisions; a problem without a choice is left out."""
    choices = (item for item in held_out if len(item.distinct_candidates) > 1)
    return "".join(f"{_decision_line(number, item)}\n" for number, item in enumerate(choices))


def _draw_one(rng: Random, num_candidates: int) -> HeldOutProblem:
    problem = draw_problem(rng, held_out=True)
    candidates = tuple(draw_candidate(rng, problem) for _ in range(num_candidates))
    return HeldOutProblem(problem=problem, candidates=candidates)


def _decision_line(number: int, item: HeldOutProblem) -> str:
    decision = {
        "decision_id": f"arith-{number:04d}",
        "context": item.problem.text,
        "branches": _branches(item.distinct_candidates),
    }
    return json.dumps(decision)


def _branches(candidates: Sequence[Candidate]) -> list[dict[str, str | int]]:
    return [
        {
            "branch_id": f"b{number:02d}",
            "text": candidate.text,
            "label": int(candidate.is_right),
            "error": candidate.error.value,
        }
        for number, candidate in enumerate(candidates)
    ]
