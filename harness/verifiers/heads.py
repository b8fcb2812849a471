"""Score heads: from logits to one float64 score a row.

A head says which columns of the (padded) sequence it reads, and how it turns the logits there into
a score. The model's own arithmetic ends at the logits; all that follows is float64, computed row by
row on shapes that depend on the row alone, sums by `math.fsum`, so that nothing here moves with the
batch. Torch is needed only where tensors are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError, InputFileError
from harness.records.commit import ScoreUnit
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    LogLikelihood,
    LogOdds,
    ProcessReward,
    Reduction,
    Reward,
    StepReduction,
    StepSource,
)
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelTask", "ScoreHead", "model_task", "score_head", "score_unit"]

ModelTask = str
"""``causal_lm``, ``sequence_classification`` or ``token_classification``."""


def model_task(head: Head) -> ModelTask:
    """Return the kind of model that `head` reads."""
    if isinstance(head, Reward):
        return "sequence_classification"
    if isinstance(head, ProcessReward) and head.source is not StepSource.YES_NO:
        return str(head.source)
    return "causal_lm"


def score_unit(head: Head) -> ScoreUnit:
    """Return the unit of the head's scores."""
    return ScoreUnit.GRADE if isinstance(head, ExpectedGrade) else ScoreUnit.LOGIT


class ScoreHead(ABC):
    """Reads logits at some positions of a row and makes one score of them."""

    @abstractmethod
    def positions(self, row: EncodedRow) -> list[int]:
        """Return the row's token indices, ascending, whose logits `score` needs."""

    @abstractmethod
    def score(self, row: EncodedRow, logits: "Tensor") -> float:
        """Return the score from float64 `logits`, `[positions, classes or vocabulary]`."""


def score_head(head: Head, tokenizer: Any, num_labels: int) -> ScoreHead:
    """Bind `head` to a tokenizer and a model's number of labels.

    Raises ConfigError when a token is not one token of the vocabulary, or a label is not there.
    """
    if isinstance(head, LogOdds):
        return _LastTokenLogOdds(_token_sets(head, tokenizer))
    if isinstance(head, Reward):
        return _LastTokenLabel(_label(head, num_labels))
    if isinstance(head, LogLikelihood):
        return _BranchLogLikelihood(head.reduce)
    if isinstance(head, ExpectedGrade):
        return _LastTokenGrade(_grades(head.grades, tokenizer))
    return _StepScores(head, tokenizer, num_labels)


class _LastTokenHead(ScoreHead):
    """Reads the logits of the last real token."""

    def positions(self, row: EncodedRow) -> list[int]:
        return [len(row.token_ids) - 1]


class _LastTokenLogOdds(_LastTokenHead):
    def __init__(self, sets: "_TokenSets") -> None:
        self._sets = sets

    def score(self, row: EncodedRow, logits: "Tensor") -> float:  # noqa: ARG002 - the protocol's
        return self._sets.log_odds(logits[0])


class _LastTokenLabel(_LastTokenHead):
    def __init__(self, label: int) -> None:
        self._label = label

    def score(self, row: EncodedRow, logits: "Tensor") -> float:  # noqa: ARG002 - the protocol's
        return float(logits[0, self._label])


class _LastTokenGrade(_LastTokenHead):
    def __init__(self, grades: Mapping[int, float]) -> None:
        self._grades = grades

    def score(self, row: EncodedRow, logits: "Tensor") -> float:  # noqa: ARG002 - the protocol's
        values = logits[0, list(self._grades)].tolist()
        top = max(values)
        weights = [math.exp(value - top) for value in values]
        graded = zip(weights, self._grades.values(), strict=True)
        return math.fsum(w * grade for w, grade in graded) / math.fsum(weights)


class _BranchLogLikelihood(ScoreHead):
    def __init__(self, reduce: Reduction) -> None:
        self._reduce = reduce

    def positions(self, row: EncodedRow) -> list[int]:
        first = max(row.branch_start, 1)  # the first token of all has nothing before it
        return list(range(first - 1, row.branch_end - 1))

    def score(self, row: EncodedRow, logits: "Tensor") -> float:
        targets = row.token_ids[max(row.branch_start, 1) : row.branch_end]
        if not targets:
            raise InputFileError("a branch of one token at the start of a row has no likelihood")
        chosen = logits[range(len(targets)), list(targets)]
        total = math.fsum((chosen - logits.logsumexp(-1)).tolist())
        return total if self._reduce is Reduction.SUM else total / len(targets)


class _StepScores(ScoreHead):
    def __init__(self, head: ProcessReward, tokenizer: Any, num_labels: int) -> None:
        self._head = head
        self._separator = _token_id(head.separator, tokenizer, "separator")
        self._sets = _token_sets(head, tokenizer) if head.yes else None
        if self._sets is None and num_labels > 2:
            raise ConfigError(f"head: a step head has 1 or 2 labels, this model has {num_labels}")

    def positions(self, row: EncodedRow) -> list[int]:
        branch = range(row.branch_start, row.branch_end)
        steps = [at for at in branch if row.token_ids[at] == self._separator]
        last = len(row.token_ids) - 1
        if self._head.include_last_token and (not steps or steps[-1] != last):
            steps.append(last)
        if not steps:
            advice = "end each step with it, or set head.include_last_token: true"
            raise InputFileError(f"a branch has no separator {self._head.separator!r}; {advice}")
        return steps

    def score(self, row: EncodedRow, logits: "Tensor") -> float:  # noqa: ARG002 - the protocol's
        steps = [self._step(at) for at in logits]
        if self._head.reduce is StepReduction.LAST:
            return steps[-1]
        if self._head.reduce is StepReduction.PRODUCT:
            return math.fsum(-_softplus(-step) for step in steps)
        return _minimum(steps)

    def _step(self, logits: "Tensor") -> float:
        if self._sets is not None:
            return self._sets.log_odds(logits)
        return float(logits[0]) if len(logits) == 1 else float(logits[1]) - float(logits[0])


class _TokenSets:
    """Token ids that mean yes, and those that mean no."""

    def __init__(self, yes: list[int], no: list[int]) -> None:
        self._yes, self._no = yes, no

    def log_odds(self, logits: "Tensor") -> float:
        """Return log sum exp over yes minus log sum exp over no, of `[vocabulary]` logits."""
        return _log_sum_exp(logits[self._yes].tolist()) - _log_sum_exp(logits[self._no].tolist())


def _token_sets(head: LogOdds | ProcessReward, tokenizer: Any) -> _TokenSets:
    yes = [_token_id(token, tokenizer, "yes") for token in head.yes]
    no = [_token_id(token, tokenizer, "no") for token in head.no]
    both = set(yes) & set(no)
    if both or len(set(yes)) < len(yes) or len(set(no)) < len(no):
        raise ConfigError("head: a token stands twice in `yes` and `no`")
    return _TokenSets(yes, no)


def _grades(grades: Mapping[str, float], tokenizer: Any) -> dict[int, float]:
    ids = {_token_id(token, tokenizer, "grades"): grade for token, grade in grades.items()}
    if len(ids) < len(grades):
        raise ConfigError("head.grades: two of its tokens are the same token of the vocabulary")
    return ids


def _token_id(token: str, tokenizer: Any, field: str) -> int:
    ids = tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1:
        pieces = tokenizer.convert_ids_to_tokens(ids)
        advice = "use one token (mind a leading space)"
        raise ConfigError(f"head.{field}: {token!r} is {len(ids)} tokens {pieces}; {advice}")
    return int(ids[0])


def _label(head: Reward, num_labels: int) -> int:
    if head.label is None and num_labels != 1:
        raise ConfigError(f"head.label: this model has {num_labels} labels; choose one")
    label = head.label or 0
    if not 0 <= label < num_labels:
        raise ConfigError(f"head.label: {label} is not one of the model's {num_labels} labels")
    return label


def _log_sum_exp(values: Sequence[float]) -> float:
    top = max(values)
    if not math.isfinite(top) or any(math.isnan(value) for value in values):
        return math.nan if any(math.isnan(value) for value in values) else top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _minimum(steps: Sequence[float]) -> float:
    return math.nan if any(math.isnan(step) for step in steps) else min(steps)
