"""Heads against a reference of our own: float64 logits of each row alone, then plain formulas."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.errors import ConfigError, InputFileError
from harness.records.batching import PaddingSide
from harness.records.commit import ScoreUnit
from harness.records.invocation import PrecisionName
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    HeadDtype,
    LogLikelihood,
    LogOdds,
    ProcessReward,
    Prompt,
    Reduction,
    Reward,
    StepReduction,
    StepSource,
)
from harness.verifiers import EncodedRow, RowText, open_verifier
from harness.verifiers.heads import score_head, score_unit
from tests.verifiers.cases import (
    BERT,
    LLAMA,
    LM,
    QWEN2,
    SEQUENCE,
    TEXTS,
    TOKEN,
    Build,
    a_condition,
    a_spec,
    batched,
    reference_logits,
    solo,
    worst,
)

FLOAT64, BFLOAT16 = PrecisionName.FLOAT64, PrecisionName.BFLOAT16
YES, NO = ("1", "2", "+"), ("0", "3")
NEWLINE = "\n"

Formula = Callable[[torch.Tensor, EncodedRow, dict[str, int]], float]


def odds(logits: torch.Tensor, vocabulary: dict[str, int]) -> float:
    def total(tokens: tuple[str, ...]) -> float:
        return math.fsum(math.exp(float(logits[vocabulary[token]])) for token in tokens)

    return math.log(total(YES)) - math.log(total(NO))


def log_odds(logits: torch.Tensor, row: EncodedRow, vocabulary: dict[str, int]) -> float:
    return odds(logits[-1], vocabulary)


def grade(logits: torch.Tensor, row: EncodedRow, vocabulary: dict[str, int]) -> float:
    weights = {g: math.exp(float(logits[-1, vocabulary[str(g)]])) for g in (1, 2, 5)}
    return sum(g * w for g, w in weights.items()) / sum(weights.values())


def log_likelihood(logits: torch.Tensor, row: EncodedRow) -> list[float]:
    probabilities = torch.softmax(logits, -1)
    return [
        math.log(float(probabilities[at - 1, row.token_ids[at]]))
        for at in range(row.branch_start, row.branch_end)
    ]


def steps(row: EncodedRow, vocabulary: dict[str, int], *, last: bool) -> list[int]:
    ends = [
        at for at in range(row.branch_start, row.branch_end) if row.token_ids[at] == vocabulary["Ċ"]
    ]
    return sorted({*ends, *([len(row.token_ids) - 1] if last else [])})


def reduced(values: list[float], how: StepReduction) -> float:
    if how is StepReduction.MIN:
        return min(values)
    if how is StepReduction.LAST:
        return values[-1]
    return math.log(math.prod(1 / (1 + math.exp(-value)) for value in values))


def scores_of(folder: Any, head: Head) -> tuple[list[float], list[EncodedRow], dict[str, int]]:
    verifier: Any = open_verifier(a_spec(folder, head), a_condition(FLOAT64))
    rows = verifier.encode(TEXTS)
    found = batched(verifier, rows, PaddingSide.RIGHT)
    assert worst(found, solo(verifier, rows)) < 1e-12
    vocabulary = verifier._tokenizer.get_vocab()
    verifier.close()
    return found, rows, vocabulary


@pytest.mark.parametrize(
    ("head", "formula"),
    [
        (LogOdds(yes=YES, no=NO), log_odds),
        (ExpectedGrade(grades={"1": 1.0, "2": 2.0, "5": 5.0}), grade),
        (
            LogLikelihood(reduce=Reduction.SUM),
            lambda logits, row, _: math.fsum(log_likelihood(logits, row)),
        ),
        (
            LogLikelihood(reduce=Reduction.MEAN),
            lambda logits, row, _: math.fsum(own := log_likelihood(logits, row)) / len(own),
        ),
    ],
)
def test_language_model_heads(build: Build, head: Head, formula: Formula) -> None:
    folder = build(LLAMA, LM)
    found, rows, vocabulary = scores_of(folder, head)
    logits = reference_logits(folder, LM, rows)
    expected = [formula(*pair, vocabulary) for pair in zip(logits, rows, strict=True)]
    assert worst(found, expected) < 1e-12
    assert len({round(score, 6) for score in found}) == len(found)


@pytest.mark.parametrize("architecture", [QWEN2, BERT])
@pytest.mark.parametrize(("num_labels", "label"), [(1, None), (1, 0), (3, 0), (3, 2)])
def test_reward(build: Build, architecture: Any, num_labels: int, label: int | None) -> None:
    folder = build(architecture, SEQUENCE, num_labels)
    found, rows, _ = scores_of(folder, Reward(label=label))
    logits = reference_logits(folder, SEQUENCE, rows)
    assert worst(found, [float(own[label or 0]) for own in logits]) < 1e-12


@pytest.mark.parametrize("how", StepReduction)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("architecture", "source", "num_labels"),
    [
        (QWEN2, StepSource.TOKEN_CLASSIFICATION, 1),
        (BERT, StepSource.TOKEN_CLASSIFICATION, 2),
        (QWEN2, StepSource.YES_NO, 1),
    ],
)
def test_process_reward(  # noqa: PLR0917 - the axes
    build: Build,
    architecture: Any,
    source: StepSource,
    num_labels: int,
    last: bool,  # noqa: FBT001
    how: StepReduction,
) -> None:
    yes_no = source is StepSource.YES_NO
    head = ProcessReward(
        source=source,
        separator=NEWLINE,
        reduce=how,
        include_last_token=last,
        yes=YES if yes_no else (),
        no=NO if yes_no else (),
    )
    task = LM if yes_no else TOKEN
    folder = build(architecture, task, num_labels)
    found, rows, vocabulary = scores_of(folder, head)
    for score, row, logits in zip(found, rows, reference_logits(folder, task, rows), strict=True):
        at = steps(row, vocabulary, last=last)
        if yes_no:
            values = [odds(logits[step], vocabulary) for step in at]
        elif num_labels == 1:
            values = [float(logits[step, 0]) for step in at]
        else:
            values = [float(logits[step, 1] - logits[step, 0]) for step in at]
        assert worst([score], [reduced(values, how)]) < 1e-10


def test_process_reward_from_a_sequence_head(build: Build) -> None:
    folder = build(QWEN2, SEQUENCE, 2)
    head = ProcessReward(
        source=StepSource.SEQUENCE_CLASSIFICATION, separator=NEWLINE, reduce=StepReduction.LAST
    )
    found, rows, vocabulary = scores_of(folder, head)
    # Its own head at a step is its own score of the row that ends there.
    cut = [
        EncodedRow(
            token_ids=row.token_ids[: steps(row, vocabulary, last=False)[-1] + 1],
            branch_start=0,
            branch_end=1,
        )
        for row in rows
    ]
    logits = reference_logits(folder, SEQUENCE, cut)
    assert worst(found, [float(own[1] - own[0]) for own in logits]) < 1e-12


def test_an_encoder_without_step_scores_is_refused(build: Build) -> None:
    head = ProcessReward(
        source=StepSource.SEQUENCE_CLASSIFICATION, separator=NEWLINE, reduce=StepReduction.MIN
    )
    with pytest.raises(ConfigError, match="no step scores; use a token classifier"):
        open_verifier(a_spec(build(BERT, SEQUENCE), head), a_condition())


HEADS = {
    "tied": ((QWEN2, LM), LogOdds, {"yes": YES, "no": NO}),
    "untied": ((LLAMA, LM), LogOdds, {"yes": YES, "no": NO}),
    "reward": ((QWEN2, SEQUENCE), Reward, {}),
    "biased": ((BERT, SEQUENCE), Reward, {}),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_runs_in_its_own_dtype_from_the_stored_values(build: Build, name: str) -> None:
    model, kind, options = HEADS[name]
    found: dict[HeadDtype, list[float]] = {}
    for dtype in HeadDtype:
        verifier: Any = open_verifier(
            a_spec(build(*model), kind(**options, dtype=dtype)), a_condition(BFLOAT16)
        )
        rows = verifier.encode(TEXTS)
        found[dtype] = solo(verifier, rows)
        layer, resolved = verifier._head_layer, verifier.resolved().precision_mode.resolved
        wanted = "bfloat16" if dtype is HeadDtype.MODEL else str(dtype)
        assert resolved["head_dtype"] == wanted
        assert (resolved["weights_dtype"], resolved["activations_dtype"]) == ("bfloat16",) * 2
        assert str(layer.weight.dtype) == f"torch.{wanted}"
        stored = dict(verifier._checkpoint.stored())
        loses = not torch.equal(layer.weight.float(), stored_weight(stored))
        assert loses == (dtype is HeadDtype.MODEL)
        verifier.close()
    assert found[HeadDtype.MODEL] != found[HeadDtype.FLOAT32] != found[HeadDtype.FLOAT64]
    assert worst(found[HeadDtype.FLOAT32], found[HeadDtype.FLOAT64]) < 1e-5
    assert 1e-5 < worst(found[HeadDtype.MODEL], found[HeadDtype.FLOAT32]) < 0.05


def stored_weight(stored: dict[str, torch.Tensor]) -> torch.Tensor:
    names = ("lm_head.weight", "score.weight", "classifier.weight", "model.embed_tokens.weight")
    return next(stored[name] for name in names if name in stored)


BAD_HEADS: dict[str, tuple[Any, Any, str]] = {
    "two tokens": (LogOdds, {"yes": (" yes",), "no": NO}, r"head.yes: ' yes' is 3 tokens"),
    "no token": (LogOdds, {"yes": ("",), "no": NO}, "head.yes: '' is 0 tokens"),
    "in both": (LogOdds, {"yes": ("1",), "no": ("1", "2")}, "'1' stands there twice"),
    "twice": (LogOdds, {"yes": ("1", "1"), "no": ("2",)}, "'1' stands there twice"),
    "grade": (ExpectedGrade, {"grades": {"1": 1.0, "10": 10.0}}, "head.grades: '10' is 2 tokens"),
    "separator": (
        ProcessReward,
        {
            "source": StepSource.YES_NO,
            "separator": "ab",
            "reduce": StepReduction.MIN,
            "yes": YES,
            "no": NO,
        },
        "head.separator: 'ab' is 2 tokens",
    ),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_a_token_that_cannot_be_used_is_refused(build: Build, name: str) -> None:
    kind, options, message = BAD_HEADS[name]
    with pytest.raises(ConfigError, match=message):
        open_verifier(a_spec(build(LLAMA, LM), kind(**options)), a_condition())


def test_an_unknown_token_is_not_the_unknown_token() -> None:
    class Words:
        unk_token, unk_token_id = "<unk>", 0

        def encode(self, text: str, **_: Any) -> list[int]:
            return [{"yes": 1, "no": 2}.get(text, 0)]

    assert score_head(LogOdds(yes=("yes",), no=("no", "<unk>")), Words(), 0)
    with pytest.raises(ConfigError, match="'nay' is not in the vocabulary"):
        score_head(LogOdds(yes=("yes",), no=("nay",)), Words(), 0)


@pytest.mark.parametrize(
    ("num_labels", "label", "message"),
    [(3, None, "3 labels; choose one"), (3, 3, "3 is not one of"), (1, -1, "-1 is not one of")],
)
def test_a_label_out_of_range_is_refused(
    build: Build, num_labels: int, label: int | None, message: str
) -> None:
    spec = a_spec(build(QWEN2, SEQUENCE, num_labels), Reward(label=label))
    with pytest.raises(ConfigError, match=message):
        open_verifier(spec, a_condition())


def test_a_step_head_of_three_labels_is_refused(build: Build) -> None:
    head = ProcessReward(
        source=StepSource.TOKEN_CLASSIFICATION, separator=NEWLINE, reduce=StepReduction.MIN
    )
    with pytest.raises(ConfigError, match="1 or 2 labels, this model has 3"):
        open_verifier(a_spec(build(QWEN2, TOKEN, 3), head), a_condition())


@pytest.mark.parametrize(
    ("head", "branch", "message"),
    [
        (
            ProcessReward(
                source=StepSource.YES_NO,
                separator=NEWLINE,
                reduce=StepReduction.MIN,
                yes=YES,
                no=NO,
            ),
            "no step",
            r"no separator '\\n' in it; end each step with it",
        ),
        (LogLikelihood(), "7", "nothing stands before its one token"),
    ],
)
def test_a_row_that_the_head_cannot_read_is_named_before_anything_is_scored(
    build: Build, head: Head, branch: str, message: str
) -> None:
    spec = a_spec(build(LLAMA, LM), head, prompt=Prompt(template="{branch}{context}"))
    verifier = open_verifier(spec, a_condition())
    text = RowText(context="", branch=branch, name="decision 'd', branch 'b'")
    with pytest.raises(InputFileError, match=f"decision 'd', branch 'b': {message}"):
        verifier.encode([TEXTS[0], text])
    verifier.close()


STEP_HEADS = [
    ProcessReward(source=StepSource.TOKEN_CLASSIFICATION, separator=NEWLINE, reduce=how)
    for how in StepReduction
]


class Newlines:
    unk_token, unk_token_id = "<unk>", 0

    def encode(self, text: str, **_: Any) -> list[int]:
        return [{"\n": 5, "1": 1, "0": 2}[text]]


@pytest.mark.parametrize(
    "head",
    [
        LogOdds(yes=("1",), no=("0",)),
        ExpectedGrade(grades={"1": 1.0, "0": 0.0}),
        Reward(),
        LogLikelihood(),
        *STEP_HEADS,
    ],
)
def test_a_logit_that_is_no_number_stays_none(head: Head) -> None:
    bound = score_head(head, Newlines(), 1)
    good, bad = [0.5, 0.25], [math.nan, 0.25]
    width = 1 if isinstance(head, Reward | ProcessReward | LogLikelihood) else 2
    assert math.isfinite(bound.score([good[:width]]))
    assert math.isnan(bound.score([bad[:width]]))
    if isinstance(head, ProcessReward) and head.reduce is not StepReduction.LAST:
        assert math.isnan(bound.score([good[:1], bad[:1], good[:1]]))


@pytest.mark.parametrize("how", StepReduction)
def test_extreme_steps_overflow_nothing(how: StepReduction) -> None:
    head = score_head(STEP_HEADS[list(StepReduction).index(how)], Newlines(), 1)
    assert head.score([[1e4], [-1e4]]) == -1e4
    assert head.score([[math.inf], [-math.inf]]) == -math.inf


def test_extreme_odds_overflow_nothing() -> None:
    head = score_head(LogOdds(yes=("1",), no=("0",)), Newlines(), 0)
    assert head.score([[1e5, -1e5]]) == 2e5
    assert head.score([[math.inf, 0.0]]) == math.inf


def test_a_grade_has_its_own_unit() -> None:
    assert score_unit(ExpectedGrade(grades={"1": 1.0, "2": 2.0})) is ScoreUnit.GRADE
    assert score_unit(Reward()) is ScoreUnit.LOGIT


def test_an_odd_that_is_no_number_is_not_hidden_by_an_infinite_one() -> None:
    head = score_head(LogOdds(yes=("1", "\n"), no=("0",)), Newlines(), 0)
    assert head.score([[math.inf, 0.0, 0.0]]) == math.inf
    assert math.isnan(head.score([[math.inf, math.nan, 0.0]]))


@pytest.mark.parametrize(("last", "found"), [(5, [2, 4]), (1, [2, 4])])
def test_a_last_token_that_is_a_separator_ends_one_step(last: int, found: list[int]) -> None:
    head = ProcessReward(
        source=StepSource.TOKEN_CLASSIFICATION,
        separator=NEWLINE,
        reduce=StepReduction.PRODUCT,
        include_last_token=True,
    )
    row = EncodedRow(token_ids=(5, 1, 5, 2, last), branch_start=1, branch_end=5)
    assert score_head(head, Newlines(), 1).positions(row) == found
