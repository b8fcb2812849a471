"""How good a trained verifier is on problems it has never seen.

Decides the figures that are printed: areas under the ROC curve (all, and for each kind of error
against right candidates), accuracy at logit 0, best-of-n, and how close the two best branches lie.
"""

# ruff: noqa: N806 - tensor names carry shape suffixes: B rows, T tokens, D hidden size

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForSequenceClassification

from scripts.train_tiny_verifier.candidates import ErrorKind
from scripts.train_tiny_verifier.decisions import HeldOutProblem
from scripts.train_tiny_verifier.tokenizer import encode, input_text

__all__ = ["Evaluation", "ScoredProblem", "auc", "evaluate", "score_held_out"]

_BATCH_SIZE = 64
_CLOSE_GAPS = (0.001, 0.01, 0.05, 0.1)


class ScoredProblem(msgspec.Struct, frozen=True, kw_only=True):
    """The logits of one problem's candidates, in their order."""

    problem: HeldOutProblem
    scores: tuple[float, ...]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out figures; an AUC is null where one of its two classes is empty."""

    num_candidates: int
    share_right: float
    auc: float | None
    accuracy: float
    """Share of candidates whose logit has the right sign."""
    auc_by_error: dict[str, float | None]
    """One kind of wrong candidate against all right ones."""
    auc_unseen: float | None
    """Over problems whose right chain meets a triple that training never shows."""
    best_of_n: float | None
    """Share of problems with a right candidate whose best-scored candidate is right."""
    random_pick: float | None
    """The same for a candidate picked at random."""
    close_gaps: dict[str, float]
    """Share of problems whose two best logits lie closer than the key; repeats count."""


@torch.no_grad()
def score_held_out(
    model: Qwen2ForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    held_out: Sequence[HeldOutProblem],
) -> tuple[ScoredProblem, ...]:
    """Score every candidate at its last token."""
    model.train(mode=False)
    texts = [
        input_text(item.problem.text, candidate.text)
        for item in held_out
        for candidate in item.candidates
    ]
    scores = [
        score
        for at in range(0, len(texts), _BATCH_SIZE)
        for score in _score_batch(model, encode(tokenizer, texts[at : at + _BATCH_SIZE]))
    ]
    return _group(held_out, scores)


def evaluate(scored: Sequence[ScoredProblem]) -> Evaluation:
    """Return the held-out figures of scored problems."""
    pairs = _pairs(scored)
    right = [score for score, is_right in pairs if is_right]
    solvable = [item for item in scored if any(c.is_right for c in item.problem.candidates)]
    return Evaluation(
        num_candidates=len(pairs),
        share_right=len(right) / len(pairs),
        auc=_auc_of(pairs),
        accuracy=sum((score > 0) == is_right for score, is_right in pairs) / len(pairs),
        auc_by_error={
            kind.value: auc(right, _scores_of(scored, kind))
            for kind in ErrorKind
            if kind is not ErrorKind.OK
        },
        auc_unseen=_auc_of(
            _pairs([item for item in scored if item.problem.problem.has_unseen_triple])
        ),
        best_of_n=_mean([_best_is_right(item) for item in solvable]),
        random_pick=_mean([_share_right(item) for item in solvable]),
        close_gaps={str(gap): _share_closer(scored, gap) for gap in _CLOSE_GAPS},
    )


def auc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """Return the chance that a right candidate outscores a wrong one, ties counted as half.

    The Mann-Whitney statistic over the product of the counts; None where either is empty.
    """
    if not right or not wrong:
        return None
    ordered = sorted(wrong)
    wins = sum(bisect_left(ordered, score) + bisect_right(ordered, score) for score in right)
    return wins / 2 / (len(right) * len(wrong))


def _score_batch(model: Qwen2ForSequenceClassification, rows: list[list[int]]) -> list[float]:
    width = max(map(len, rows))
    pad = model.config.pad_token_id
    ids_BT = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    hidden_BTD = model.model(input_ids=ids_BT).last_hidden_state
    last_B = torch.tensor([len(row) - 1 for row in rows])
    scores: list[float] = (
        model.score(hidden_BTD[torch.arange(len(rows)), last_B]).squeeze(-1).tolist()
    )
    return scores


def _group(held_out: Sequence[HeldOutProblem], scores: list[float]) -> tuple[ScoredProblem, ...]:
    remaining = iter(scores)
    return tuple(
        ScoredProblem(problem=item, scores=tuple(next(remaining) for _ in item.candidates))
        for item in held_out
    )


def _pairs(scored: Sequence[ScoredProblem]) -> list[tuple[float, bool]]:
    return [
        (score, candidate.is_right)
        for item in scored
        for score, candidate in zip(item.scores, item.problem.candidates, strict=True)
    ]


def _auc_of(pairs: Sequence[tuple[float, bool]]) -> float | None:
    return auc(
        [score for score, is_right in pairs if is_right],
        [score for score, is_right in pairs if not is_right],
    )


def _scores_of(scored: Sequence[ScoredProblem], kind: ErrorKind) -> list[float]:
    return [
        score
        for item in scored
        for score, candidate in zip(item.scores, item.problem.candidates, strict=True)
        if candidate.error is kind
    ]


def _best_is_right(item: ScoredProblem) -> float:
    best = max(range(len(item.scores)), key=item.scores.__getitem__)
    return float(item.problem.candidates[best].is_right)


def _share_right(item: ScoredProblem) -> float:
    candidates = item.problem.candidates
    return sum(candidate.is_right for candidate in candidates) / len(candidates)


def _share_closer(scored: Sequence[ScoredProblem], gap: float) -> float:
    best_two = [sorted(item.scores, reverse=True)[:2] for item in scored]
    return sum(best - second < gap for best, second in best_two) / len(best_two)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
