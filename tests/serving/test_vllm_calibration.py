"""A build calibrated through vLLM, offline, and its tolerance on the commits of a `vllm serve`."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from calibrate.calibration import RunFiles, calibrate
from calibrate.config import Arm, CalibrationConfig, Claim, Sweep
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.decisions import read_decisions
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records.batching import InFlight
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Decision, Item
from harness.records.engine import Vllm
from harness.records.invocation import PrecisionName
from harness.records.scores import to_wire
from harness.records.tolerance import AxisStatus, Equivalence, Tolerance, ToleranceFile
from harness.records.verdict import Verdict, VerdictKind
from harness.records.verifier import LogOdds, Prompt, VerifierSpec
from harness.replay import ReplayAs, replay_commits
from harness.scoring import score_decisions
from harness.serving.client import ServingClient
from harness.serving.connection import Connection
from tests.calibrate.example_runs import Recorder
from tests.serving.engines import WIDE, serving, write_model

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

ODDS = LogOdds(yes=(" gets",), no=("'",))
ENGINE = Vllm(
    kv_cache_bytes=64 << 20,
    max_model_len=512,
    max_num_seqs=64,
    max_num_batched_tokens=2048,  # as `vllm serve` has it on a CPU
    enforce_eager=True,
)
ORDER = ReductionOrderSpec(name="vendor", num_threads=1)
DECISIONS = read_decisions("embedded:decisions", 24)
CLAIM = Claim(coverage=0.8, confidence=0.8)


def a_verifier(model: Path, reasoning_tokens: int, engine: Vllm = ENGINE) -> VerifierSpec:
    return VerifierSpec(
        model=str(model),
        head=ODDS,
        prompt=Prompt(template="<bos>{context}<sol>{branch}<eos>"),
        engine=engine,
        reasoning_tokens=reasoning_tokens,
    )


def calibrated(
    folder: Path, verifier: VerifierSpec, *precisions: PrecisionName
) -> tuple[CalibrationConfig, ToleranceFile]:
    config = CalibrationConfig(
        name="vllm",
        verifier=verifier,
        decisions="embedded:decisions",
        num_decisions=len(DECISIONS),
        arms=tuple(
            Arm(precision=one, reduction_order=ORDER, batching=InFlight(max_rows=12))
            for one in precisions
        ),
        sweep=Sweep(rows=(3, 12), reference_rows=12),
        claim=CLAIM,
        guard_decisions=10,
    )
    files = RunFiles(folder=folder, name="vllm")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return config, calibrate(config, files, now=now, progress=Recorder()).file


def statuses(tolerance: Tolerance) -> Mapping[str, AxisStatus]:
    return {axis.axis: axis.status for axis in tolerance.axes}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("wide") / "model", WIDE)


@pytest.fixture(scope="module")
def reasoning(
    wide: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CalibrationConfig, ToleranceFile]:
    """A judge that reasons, on the model that moves, in an engine with a prefix cache."""
    engine = replace(ENGINE, prefix_caching=True, block_size=32)
    precisions = PrecisionName.BFLOAT16, PrecisionName.FLOAT32
    return calibrated(tmp_path_factory.mktemp("run"), a_verifier(wide, 4, engine), *precisions)


def test_decoding_moves_and_the_axes_say_by_what(
    reasoning: tuple[CalibrationConfig, ToleranceFile],
) -> None:
    """Positive control, in both precisions; each is the other's measure of rounding."""
    _, file = reasoning
    for tolerance in file.tolerances:
        found = statuses(tolerance)
        assert tolerance.floor.value == 0
        assert 0 < tolerance.envelope.value < 0.5
        assert tolerance.equivalence is not Equivalence.ANY
        assert found["num_rows"] is AxisStatus.MOVED
        assert found["decodes_beside"] is AxisStatus.MOVED
        assert found["repeat_fresh_process"] is AxisStatus.INVARIANT
        assert AxisStatus.NOT_EXERCISED not in found.values()
        assert {guard.passed for guard in tolerance.guards} == {True}
    narrow, fine = file.tolerances
    assert fine.envelope.value < narrow.envelope.value / 100


def test_a_commit_is_replayed_in_its_own_steps_and_judged(
    reasoning: tuple[CalibrationConfig, ToleranceFile],
) -> None:
    config, file = reasoning
    condition, tolerances = config.arms[1].condition, Tolerances(files=(file,))
    uncached = replace(config.verifier, engine=ENGINE)  # a pin needs the cache as it was
    commits, items = scored(uncached, config)
    again = replay_commits(commits, items)
    other = replay_commits(commits, items, ReplayAs(batching=InFlight(max_rows=1)))
    assert [one.notes for one in again] == [()] * len(again)
    assert [one.numeric_scores() for one in again] == [dict(one.scores) for one in commits]
    assert [one.numeric_scores() for one in other] != [dict(one.scores) for one in commits]
    found = verdicts(commits, again, tolerances)
    assert {one.kind for one in found} == {VerdictKind.UNJUDGED}  # another prefix cache: no file
    kinds = {one.kind for one in verdicts(commits, other, tolerances)}
    assert kinds == {VerdictKind.RECONSTRUCTION}
    assert condition.precision is PrecisionName.FLOAT32


def scored(
    verifier: VerifierSpec, config: CalibrationConfig
) -> tuple[tuple[CommitRecord, ...], dict[str, Item]]:
    condition = config.arms[1].condition
    found = score_decisions(verifier, condition, InFlight(max_rows=12), DECISIONS[:8])
    return found.commits, {item.content_digest: item for item in found.items}


def verdicts(
    commits: Sequence[CommitRecord], replays: Sequence[ReplayRecord], tolerances: Tolerances
) -> list[Verdict]:
    return [judge(one, other, tolerances) for one, other in zip(commits, replays, strict=True)]


@pytest.fixture(scope="module")
def scoring(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> ToleranceFile:
    """The same model as a plain scorer: nothing is generated."""
    run = tmp_path_factory.mktemp("run")
    return calibrated(run, a_verifier(wide, 0), PrecisionName.FLOAT32)[1]


def test_neighbours_move_no_prefill_here_but_its_own_chunks_do(
    scoring: ToleranceFile,
) -> None:
    """The model above, where only prompts are computed: who is beside them moves nothing."""
    (tolerance,) = scoring.tolerances
    found = statuses(tolerance)
    assert {"prefix_cache", "decodes_beside"} - found.keys() == {"prefix_cache"}
    beside = ("num_rows", "companions", "row_position", "prefills_beside", "arrival_order")
    assert {found[axis] for axis in beside} == {AxisStatus.INVARIANT}
    assert found["chunk_boundaries"] is AxisStatus.MOVED
    assert tolerance.equivalence is Equivalence.SHAPE


@pytest.fixture(scope="module")
def url(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--logprobs-mode", "raw_logits")
    with serving(wide, log, *flags) as server:
        yield server.url


async def served(
    url: str, verifier: VerifierSpec, decisions: Sequence[Decision] = DECISIONS[:6]
) -> tuple[list[CommitRecord], list[ReplayRecord]]:
    async with Connection(url) as connection:
        client = ServingClient(connection, "m", verifier)
        done = [await client.score(one) for one in decisions]  # no more rows than measured
        items = {item.content_digest: item for one in done for item in one.items}
        commits = [one.commit for one in done]
        return commits, [await client.replay(one, items) for one in commits]


def test_a_tolerance_measured_offline_speaks_for_a_servers_commits(
    scoring: ToleranceFile, url: str, wide: Path
) -> None:
    commits, replays = asyncio.run(served(url, a_verifier(wide, 0)))
    tolerances = Tolerances(files=(scoring,))
    found = verdicts(commits, replays, tolerances)
    assert {one.kind for one in found} == {VerdictKind.EXACT}, found[0]
    assert {one.tolerance_id is None for one in found} == {False}
    planted = [
        replace(one, scores=to_wire({b: s + 1 for b, s in one.numeric_scores().items()}))
        for one in replays
    ]
    faults = verdicts(commits, planted, tolerances)
    assert {(one.kind, one.fault) for one in faults} == {(VerdictKind.DIVERGENCE, True)}


def test_a_judge_that_reasons_on_a_server_is_replayed_in_its_own_steps(
    url: str, wide: Path
) -> None:
    verifier = a_verifier(wide, 4)
    commits, replays = asyncio.run(served(url, verifier))
    assert [one.notes for one in replays] == [()] * len(replays)
    assert [one.numeric_scores() for one in replays] == [dict(one.scores) for one in commits]
    apart = [
        replace(one, decision_id=branch.branch_id, branches=(branch,))
        for one in DECISIONS[:2]
        for branch in one.branches
    ]
    alone, _ = asyncio.run(served(url, verifier, apart))
    together = [score for one in commits[:2] for score in one.scores.values()]
    assert [score for one in alone for score in one.scores.values()] != together


def test_it_does_not_speak_for_a_server_with_other_flags(
    scoring: ToleranceFile, wide: Path, tmp_path: Path
) -> None:
    """The same model, weights and scores, but another limit of the scheduler."""
    with serving(
        wide, tmp_path / "log", "--logprobs-mode", "raw_logits", "--block-size", "64"
    ) as one:
        commits, replays = asyncio.run(served(one.url, a_verifier(wide, 0)))
    found = verdicts(commits, replays, Tolerances(files=(scoring,)))
    assert {one.kind for one in found} == {VerdictKind.UNJUDGED}
