"""Stock `vllm serve`, nothing of ours in it: calibrated, scored, replayed and judged as asked for.

One pair of servers is both controls: on the WIDE model a decode step of one row takes another
matrix product than one of several, and a float32 prefill does not (see `tests.serving.engines`). So
a judge that reasons first moves with who is sent together, and a float32 one that does not reason
does not.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from calibrate.config import CalibrationConfig, load_config
from harness.conditions.flight import Flight
from harness.decisions import read_decisions, row_texts
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.engine import Dialect, Endpoint
from harness.records.invocation import PrecisionName
from harness.records.membership import MembershipSource
from harness.records.scores import to_wire
from harness.records.tolerance import AxisStatus, Equivalence, Tolerance
from harness.records.verdict import Policy, VerdictKind
from harness.records.verifier import LogOdds, VerifierSpec
from harness.replay import replay_commits
from harness.scoring import score_decisions
from harness.tolerance_file import load_tolerances
from harness.verifiers import open_engine
from tests.command import scorepin
from tests.serving.engines import WIDE, serving, write_model
from tests.verifiers.cases import a_condition, a_spec

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

VOCABULARY = 447
CONFIG = """\
name: stock
verifier:
  model: {model}
  head: {{kind: log_odds, yes: [" gets"], no: ["'"]}}
  prompt: {{template: "<bos>{{context}}<sol>{{branch}}<eos>"}}
  reasoning_tokens: {reasoning}
  engine:
    name: endpoint
    urls: {{bfloat16: "{bfloat16}", float32: "{float32}"}}
    served_model: m
    gate: true
decisions: embedded:decisions
num_decisions: 6
arms:
  - precision: {precision}
    batching: {{mode: in_flight, max_rows: 8}}
sweep: {{rows: [], reference_rows: 8}}
claim: {{coverage: 0.7, confidence: 0.7}}
guard_decisions: 4
"""


class Pair(NamedTuple):
    """Servers of one model in two precisions."""

    model: Path
    urls: dict[str, str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("stock")
    model = write_model(folder / "model", WIDE)
    flags = "--max-logprobs", str(VOCABULARY)
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        contexts = {
            dtype: serving(model, folder / dtype, "--dtype", dtype, *flags, is_stock=True)
            for dtype in ("bfloat16", "float32")
        }
        starting = {dtype: pool.submit(stack.enter_context, one) for dtype, one in contexts.items()}
        yield Pair(model, {dtype: one.result().url for dtype, one in starting.items()})


class Measured(NamedTuple):
    """A calibration, and commits with their replays."""

    config: CalibrationConfig
    tolerances: Tolerances
    pairs: list[tuple[CommitRecord, ReplayRecord]]

    @property
    def tolerance(self) -> Tolerance:
        return self.tolerances.files[0].tolerances[0]


def measured(pair: Pair, folder: Path, precision: str, reasoning: int) -> Measured:
    path = folder / "stock.yaml"
    asked = {"model": pair.model, "precision": precision, "reasoning": reasoning}
    path.write_text(CONFIG.format(**asked, **pair.urls))
    done = scorepin("calibrate", path, "--run", folder / "run", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    config = load_config(path)
    arm, decisions = config.arms[0], read_decisions(config.decisions, 3)
    scored = score_decisions(config.verifier, arm.condition, arm.batching, decisions)
    items = {item.content_digest: item for item in scored.items}
    replays = replay_commits(scored.commits, items)
    pairs = list(zip(scored.commits, replays, strict=True))
    return Measured(config, load_tolerances(folder / "run"), pairs)


def far_from(commit: CommitRecord, replay: ReplayRecord) -> ReplayRecord:
    scores = {name: score + 1 for name, score in commit.scores.items()}
    return replace(replay, scores=to_wire(scores))


def scores(spec: VerifierSpec) -> tuple[float, ...]:
    verifier = open_engine(spec, a_condition(PrecisionName.FLOAT32))
    try:
        rows = verifier.encode(row_texts(read_decisions("embedded:decisions", 2))[:8])
        return verifier.serve(rows, Flight()).scores
    finally:
        verifier.close()


def test_both_dialects_give_the_same_scores(pair: Pair) -> None:
    engine = Endpoint(urls=pair.urls, served_model="m", gate=True, top_logprobs=VOCABULARY)
    odds = LogOdds(yes=(" gets",), no=("'",))
    named, told = (
        scores(a_spec(pair.model, odds, engine=replace(engine, dialect=dialect)))
        for dialect in Dialect
    )
    assert named == told
    assert len(set(named)) == len(named)


def test_a_judge_that_moves_is_measured_and_no_replay_is_a_fault(
    pair: Pair, tmp_path: Path
) -> None:
    """Positive control: reasoning beside others moves scores."""
    found = measured(pair, tmp_path, "bfloat16", reasoning=4)
    axes = {axis.axis: axis for axis in found.tolerance.axes}
    assert axes["num_rows"].status is AxisStatus.MOVED
    assert axes["repeat_fresh_process"].status is AxisStatus.INVARIANT
    assert axes["num_rows"].settings[0] == "requested, not observed"
    assert found.tolerance.floor.value == 0 < found.tolerance.envelope.value < 0.5
    assert found.tolerance.equivalence is Equivalence.EXACT
    for commit, replay in found.pairs:
        assert commit.invocation.batch_membership.source is MembershipSource.REQUESTED
        assert commit.invocation.build.engine == "endpoint: vllm, version 0.32.0"
        for told in (replay, far_from(commit, replay)):
            verdict = judge(commit, told, found.tolerances, policy=Policy.STRICT)
            assert (verdict.kind, verdict.fault) == (VerdictKind.RECONSTRUCTION, False)


def test_a_judge_that_does_not_move_is_certified_and_a_fault_is_one(
    pair: Pair, tmp_path: Path
) -> None:
    """Negative control: a float32 prefill alone does not move."""
    found = measured(pair, tmp_path, "float32", reasoning=0)
    assert found.tolerance.equivalence is Equivalence.ANY, found.tolerance.axes
    assert found.tolerance.envelope.value == 0
    for commit, replay in found.pairs:
        assert judge(commit, replay, found.tolerances).kind is VerdictKind.EXACT
        verdict = judge(commit, far_from(commit, replay), found.tolerances)
        assert (verdict.kind, verdict.fault) == (VerdictKind.DIVERGENCE, True)
