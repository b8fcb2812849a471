"""A real `vllm serve` of a classifier: reward scores, with the membership that was observed."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.conditions.flight import Flight
from harness.decisions import read_decisions, row_texts
from harness.judge.parameters import differing_parameters
from harness.records.commit import ReplayRecord
from harness.records.engine import Endpoint
from harness.records.verifier import Prompt, Reward, VerifierSpec
from harness.serving.client import ScoredOnServer, ServingClient
from harness.serving.connection import Connection, ConnectionLimits
from harness.verifiers import open_engine
from tests.serving.engines import NARROW, Server, serving, write_model
from tests.verifiers.cases import a_condition

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

VERIFIER = VerifierSpec(model="m", head=Reward(), prompt=Prompt(template="{context}{branch}"))


async def scored_and_replayed(server: Server) -> tuple[list[ScoredOnServer], list[ReplayRecord]]:
    async with Connection(server.url, ConnectionLimits(num_connections=256)) as connection:
        client = ServingClient(connection, "m", VERIFIER)
        decisions = read_decisions("embedded:decisions", 4)
        scored = list(await asyncio.gather(*(client.score(one) for one in decisions)))
        items = {item.content_digest: item for one in scored for item in one.items}
        return scored, [await client.replay(one.commit, items) for one in scored]


def scored_as_foreign(server: Server, model: Path) -> list[float]:
    """Score the same decisions as if the server had nothing of ours."""
    engine = Endpoint(urls={"float32": server.url}, served_model="m")
    verifier = open_engine(replace(VERIFIER, model=str(model), engine=engine), a_condition())
    try:
        rows = verifier.encode(row_texts(read_decisions("embedded:decisions", 4)))
        return list(verifier.serve(rows, Flight()).scores)
    finally:
        verifier.close()


def test_a_classifiers_commits_are_replayed_exactly(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", NARROW, labels=1)
    with serving(model, tmp_path / "log", "--runner", "pooling") as server:
        scored, replays = asyncio.run(scored_and_replayed(server))
        foreign = scored_as_foreign(server, model)
    assert foreign == [score for one in scored for score in one.commit.scores.values()]
    for one, replay in zip(scored, replays, strict=True):
        assert len(set(one.commit.scores.values())) > 1
        assert replay.notes == ()
        assert replay.scores == one.commit.scores
        assert differing_parameters(one.commit.invocation, replay.invocation) == ()
