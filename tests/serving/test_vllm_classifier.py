"""A real `vllm serve` of a classifier: reward scores, with the membership that was observed."""

import asyncio
from pathlib import Path

import pytest

from harness.decisions import read_decisions
from harness.judge.parameters import differing_parameters
from harness.records.commit import ReplayRecord
from harness.records.verifier import Prompt, Reward, VerifierSpec
from harness.serving.client import ScoredOnServer, ServingClient
from harness.serving.connection import Connection, ConnectionLimits
from tests.serving.engines import NARROW, Server, serving, write_model

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


def test_a_classifiers_commits_are_replayed_exactly(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", NARROW, labels=1)
    with serving(model, tmp_path / "log", "--runner", "pooling") as server:
        scored, replays = asyncio.run(scored_and_replayed(server))
    for one, replay in zip(scored, replays, strict=True):
        assert len(set(one.commit.scores.values())) > 1
        assert replay.notes == ()
        assert replay.scores == one.commit.scores
        assert differing_parameters(one.commit.invocation, replay.invocation) == ()
