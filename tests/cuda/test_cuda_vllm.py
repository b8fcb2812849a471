"""vLLM on a CUDA device: attention backends, its batch-invariant mode, graphs, several devices."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.conditions.batching import Batch
from harness.conditions.flight import Flight
from harness.decisions import read_decisions, row_texts
from harness.messages import Scored
from harness.records.engine import Vllm
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device, LogOdds, Prompt, VerifierSpec
from harness.runner import ConditionProcess
from harness.serving.client import ServingClient
from harness.serving.connection import Connection
from tests.serving.engines import serving
from tests.verifiers.cases import TEMPLATE, a_condition, a_spec

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]

DECISIONS = read_decisions("embedded:decisions", 12)
TEXTS = row_texts(DECISIONS)[:64]
ODDS = LogOdds(yes=(" gets",), no=("'",))
ENGINE = Vllm(max_num_seqs=64, max_model_len=512, kv_cache_bytes=2 << 30, enforce_eager=True)
BACKENDS = ("FLASH_ATTN", "TRITON_ATTN")
CROWD = Flight()
STAGGERED = Flight(arrivals=tuple(at // 4 for at in range(len(TEXTS))))


class Engine:
    def __init__(self, process: ConditionProcess) -> None:
        self._process, self.ready = process, process.ready()

    def fly(self, flight: Flight) -> Scored:
        rows = tuple(range(len(TEXTS)))
        (scored,) = self._process.run([Batch(rows=rows, width=1, side=None, flight=flight)])
        return scored

    def alone(self) -> list[float]:
        flights = [Batch(rows=(at,), width=1, side=None, flight=CROWD) for at in range(len(TEXTS))]
        return [scored.scores[0] for scored in self._process.run(flights)]


@contextmanager
def started(model: Path, engine: Vllm, order: str = "vendor") -> Iterator[Engine]:
    spec = a_spec(model, ODDS, engine=engine, device=Device.CUDA, reasoning_tokens=16)
    condition = a_condition(PrecisionName.BFLOAT16, name=order)
    with ConditionProcess(spec, condition, TEXTS) as process:
        yield Engine(process)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pin_keeps_the_bits_and_another_schedule_does_not(
    backend: str, judge_model: Path
) -> None:
    with started(judge_model, replace(ENGINE, attention_backend=backend)) as engine:
        resolved = engine.ready.condition.reduction_order.resolved
        assert backend in str(resolved["attention_backend"])
        first = engine.fly(CROWD)
        pinned = engine.fly(Flight(pinned=first.steps))
        assert pinned.note == ""
        assert (pinned.steps, pinned.scores) == (first.steps, first.scores)
        assert list(first.scores) != engine.alone(), "nothing moved: no negative control here"


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_invariant_mode_needs_no_pin(backend: str, judge_model: Path) -> None:
    chosen = replace(ENGINE, attention_backend=backend)
    with started(judge_model, chosen, "batch_invariant") as engine:
        assert engine.ready.condition.reduction_order.name == "batch_invariant"
        crowd, staggered = engine.fly(CROWD), engine.fly(STAGGERED)
        assert crowd.steps != staggered.steps
        assert crowd.scores == staggered.scores
        assert list(crowd.scores) == engine.alone()


def test_graphs_are_pinned_like_eager_steps(judge_model: Path) -> None:
    with started(judge_model, replace(ENGINE, enforce_eager=False)) as engine:
        resolved = engine.ready.condition.reduction_order.resolved
        assert resolved["cudagraph_capture_sizes"]
        first = engine.fly(STAGGERED)
        again = engine.fly(STAGGERED)
        assert (again.steps, again.scores) == (first.steps, first.scores)


def test_two_devices_are_pinned_like_one(judge_model: Path, num_devices: int) -> None:
    if num_devices == 1:
        print("tensor parallelism not exercised: 1 GPU")  # noqa: T201 - for the job's log
        return
    with started(judge_model, replace(ENGINE, tensor_parallel_size=2)) as engine:
        assert engine.ready.build.parallel_layout == "tp=2 pp=1 dp=1"
        first = engine.fly(CROWD)
        pinned = engine.fly(Flight(pinned=first.steps))
        assert (pinned.note, pinned.scores) == ("", first.scores)


@pytest.mark.parametrize("flag", ["--async-scheduling", "--no-async-scheduling"])
def test_a_server_is_pinned_whether_it_schedules_ahead_or_not(
    flag: str, judge_model: Path, tmp_path: Path
) -> None:
    verifier = VerifierSpec(
        model=str(judge_model), head=ODDS, prompt=Prompt(template=TEMPLATE), device=Device.CUDA
    )

    async def replayed(url: str) -> list[tuple[bool, bool]]:
        async with Connection(url) as connection:
            client = ServingClient(connection, "m", verifier)
            done = await asyncio.gather(*(client.score(one) for one in DECISIONS))
            items = {item.content_digest: item for one in done for item in one.items}
            order = random.Random(5).sample(done, len(done))  # noqa: S311 - no secret
            found = []
            for one in order:
                replay = await client.replay(one.commit, items)
                equal = replay.numeric_scores() == dict(one.commit.scores)
                found.append((replay.notes == (), equal))
            return found

    with serving(judge_model, tmp_path / "log", flag) as server:
        found = asyncio.run(replayed(server.url))
    assert {equal for was_pinned, equal in found if was_pinned} == {True}
    assert any(was_pinned for was_pinned, _ in found), "no replay could be pinned"
