"""Score heads: from logits to one float64 score a row.

A head says at which of a row's tokens it reads the logits, which few float64 values it takes from
them, and how those become a score. The model's own arithmetic ends at the logits. What follows is
float64: values are taken one by one, or row by row on shapes that depend on the row alone, and
added by `math.fsum`, so that nothing here moves with the batch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
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
from harness.verifiers.head_tokens import TokenSets, token_grades, token_id, token_sets
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelTask", "ScoreHead", "model_task", "score_head", "score_unit"]

ModelTask = str
"""``causal_lm``, ``sequence_classification`` or ``token_classification``."""

Values = Sequence[Sequence[float]]
"""What a head took at each place where it read one row, `[reads, values]`."""


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
    """Reads logits at some tokens of a row and makes one score of them."""

    reads_once = False
    """Whether every row is read at one place, whatever is in it."""

    def __init__(self, chosen: Sequence[int]) -> None:
        """Take the logits of the classes or vocabulary entries `chosen`, wherever it reads."""
        self.chosen = list(chosen)

    @abstractmethod
    def positions(self, row: EncodedRow) -> list[int]:
        """Return the row's token indices, ascending, after which the logits are read.

        Raises InputFileError for a row that cannot be read.
        """

    def take(self, rows: Sequence[EncodedRow], logits: "Tensor") -> "Tensor":  # noqa: ARG002
        """Return float64 `[reads, values]` from the `[reads, classes]` logits of all `rows`."""
        return logits[:, self.chosen].double()

    @abstractmethod
    def score(self, values: Values) -> float:
        """Return the score of one row."""


def score_head(head: Head, tokenizer: Any, num_labels: int) -> ScoreHead:
    """Bind `head` to a tokenizer and a model's number of labels.

    Raises ConfigError when a token is not one token of the vocabulary, or a label is not there.
    """
    if isinstance(head, LogOdds):
        return _LastTokenLogOdds(token_sets(head, tokenizer))
    if isinstance(head, Reward):
        return _LastTokenLabel([_label(head, num_labels)])
    if isinstance(head, LogLikelihood):
        return _BranchLogLikelihood(head.reduce)
    if isinstance(head, ExpectedGrade):
        return _LastTokenGrade(token_grades(head, tokenizer))
    separator = token_id(head.separator, tokenizer, "separator")
    if head.source is StepSource.YES_NO:
        return _StepLogOdds(head, separator, token_sets(head, tokenizer))
    return _StepLabels(head, separator, num_labels)


class _LastTokenHead(ScoreHead):
    """Reads the logits after the last real token."""

    reads_once = True

    def positions(self, row: EncodedRow) -> list[int]:
        return [len(row.token_ids) - 1]


class _LastTokenLabel(_LastTokenHead):
    def score(self, values: Values) -> float:
        return values[0][0]


class _LastTokenLogOdds(_LastTokenHead):
    def __init__(self, sets: TokenSets) -> None:
        super().__init__([*sets.yes, *sets.no])
        self._num_yes = len(sets.yes)

    def score(self, values: Values) -> float:
        return _log_odds(values[0], self._num_yes)


class _LastTokenGrade(_LastTokenHead):
    def __init__(self, grades: dict[int, float]) -> None:
        super().__init__(list(grades))
        self._grades = list(grades.values())

    def score(self, values: Values) -> float:
        top = max(values[0])
        weights = [math.exp(value - top) for value in values[0]]
        graded = zip(weights, self._grades, strict=True)
        return math.fsum(w * grade for w, grade in graded) / math.fsum(weights)


class _BranchLogLikelihood(ScoreHead):
    """Reads before each token of the branch, for the log-likelihood of that token."""

    def __init__(self, reduce: Reduction) -> None:
        super().__init__([])
        self._reduce = reduce

    def positions(self, row: EncodedRow) -> list[int]:
        first, last = _likely_span(row)
        if first >= last:
            raise InputFileError("nothing stands before its one token, so that has no likelihood")
        return list(range(first - 1, last - 1))

    def take(self, rows: Sequence[EncodedRow], logits: "Tensor") -> "Tensor":
        import torch  # noqa: PLC0415 - not on the planner's side

        targets = [row.token_ids[slice(*_likely_span(row))] for row in rows]
        values = logits.double()
        chosen = values[range(len(values)), list(chain.from_iterable(targets))]
        parts = torch.split(values, [len(own) for own in targets])  # a sum's shape: one row's
        return (chosen - torch.cat([part.logsumexp(-1) for part in parts]))[:, None]

    def score(self, values: Values) -> float:
        total = math.fsum(value for (value,) in values)
        return total if self._reduce is Reduction.SUM else total / len(values)


class _StepHead(ScoreHead):
    """Reads after each separator of the branch."""

    def __init__(self, head: ProcessReward, separator: int, chosen: Sequence[int]) -> None:
        super().__init__(chosen)
        self._head, self._separator = head, separator

    def positions(self, row: EncodedRow) -> list[int]:
        branch = range(row.branch_start, row.branch_end)
        steps = [at for at in branch if row.token_ids[at] == self._separator]
        last = len(row.token_ids) - 1
        if self._head.include_last_token and last not in steps:
            steps.append(last)
        if not steps:
            advice = "end each step with it, or set head.include_last_token: true"
            raise InputFileError(f"no separator {self._head.separator!r} in it; {advice}")
        return steps

    def score(self, values: Values) -> float:
        steps = [self._step(read) for read in values]
        if self._head.reduce is StepReduction.LAST:
            return steps[-1]
        if self._head.reduce is StepReduction.PRODUCT:
            return math.fsum(-_softplus(-step) for step in steps)
        return _minimum(steps)

    @abstractmethod
    def _step(self, read: Sequence[float]) -> float: ...


class _StepLogOdds(_StepHead):
    def __init__(self, head: ProcessReward, separator: int, sets: TokenSets) -> None:
        super().__init__(head, separator, [*sets.yes, *sets.no])
        self._num_yes = len(sets.yes)

    def _step(self, read: Sequence[float]) -> float:
        return _log_odds(read, self._num_yes)


class _StepLabels(_StepHead):
    def __init__(self, head: ProcessReward, separator: int, num_labels: int) -> None:
        if num_labels > 2:
            raise ConfigError(f"head: a step head has 1 or 2 labels, this model has {num_labels}")
        super().__init__(head, separator, range(num_labels))

    def _step(self, read: Sequence[float]) -> float:
        return read[0] if len(read) == 1 else read[1] - read[0]


def _label(head: Reward, num_labels: int) -> int:
    if head.label is None and num_labels != 1:
        raise ConfigError(f"head.label: this model has {num_labels} labels; choose one")
    label = head.label or 0
    if not 0 <= label < num_labels:
        raise ConfigError(f"head.label: {label} is not one of the model's {num_labels} labels")
    return label


def _likely_span(row: EncodedRow) -> tuple[int, int]:
    """Return the branch without the first token of all, which has nothing before it."""
    return max(row.branch_start, 1), row.branch_end


def _log_odds(values: Sequence[float], num_yes: int) -> float:
    return _log_sum_exp(values[:num_yes]) - _log_sum_exp(values[num_yes:])


def _log_sum_exp(values: Sequence[float]) -> float:
    if any(math.isnan(value) for value in values):
        return math.nan
    top = max(values)
    if math.isinf(top):
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _minimum(steps: Sequence[float]) -> float:
    return math.nan if any(math.isnan(step) for step in steps) else min(steps)
