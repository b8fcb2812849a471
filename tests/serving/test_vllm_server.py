"""A real `vllm serve` with the two flags: many clients, commits, pinned replays, and its end."""

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from harness.conditions.flight import Flight
from harness.decisions import read_decisions
from harness.judge.membership import differing_membership
from harness.judge.parameters import differing_parameters
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Item
from harness.records.engine import Endpoint
from harness.records.membership import BatchMembership, MembershipSource
from harness.records.tolerance import Equivalence
from harness.records.verifier import LogOdds, Prompt, VerifierSpec
from harness.serving.client import ScoredOnServer, ServingClient
from harness.serving.connection import Connection, ConnectionLimits
from harness.serving.history import History, SeenStep
from harness.serving.pin import PinEnd, PinOutcome
from harness.serving.pin_plan import PinPlan, plan_of_log
from harness.serving.step_log import TornLineWarning, read_log
from harness.verifiers import EncodedRow, open_engine
from tests.serving.engines import WIDE, Asked, Generated, Server, asked, serving, write_model
from tests.verifiers.cases import a_condition

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

VERIFIER = VerifierSpec(
    model="m", head=LogOdds(yes=("Y",), no=("N",)), prompt=Prompt(template="{context}{branch}")
)
NUM_CLIENTS = 16
ROOM = ConnectionLimits(num_connections=256)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(write_model(folder / "model", WIDE), folder / "log") as running:
        yield running


async def complete(client: httpx.AsyncClient, name: str, one: Asked) -> Generated:
    body = {
        "model": "m",
        "prompt": one.prompt,
        "max_tokens": one.num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "return_tokens_as_token_ids": True,
    }
    answer = await client.post("/v1/completions", json=body, headers={"X-Request-Id": name})
    found = answer.raise_for_status().json()["choices"][0]["logprobs"]
    tokens = [int(token.removeprefix("token_id:")) for token in found["tokens"]]
    return list(zip(tokens, found["token_logprobs"], strict=True))


async def together(
    url: str, requests: Mapping[str, Asked], order: Sequence[str], prefix: str, gap_s: float
) -> dict[str, Generated]:
    """Send each request `gap_s` after the one before, from a client of its own."""

    async def one(at: int, name: str) -> Generated:
        await asyncio.sleep(at * gap_s)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return await complete(client, prefix + name, requests[name])

    found = await asyncio.gather(*(one(at, name) for at, name in enumerate(order)))
    return dict(zip(order, found, strict=True))


def send(
    server: Server, requests: Mapping[str, Asked], order: Sequence[str], prefix: str, gap_s: float
) -> dict[str, Generated]:
    return asyncio.run(together(server.url, requests, order, prefix, gap_s))


def history_of(server: Server) -> History:
    return History().feed(read_log(server.folder))


def plan_for(server: Server, names: Sequence[str], old: str, new: str, wait_s: float) -> PinPlan:
    sent = {old + name: new + name for name in names}
    return plan_of_log(history_of(server), sent, pin_id=uuid.uuid4().hex, wait_s=wait_s)


def post_pin(server: Server, plan: PinPlan) -> None:
    httpx.post(f"{server.url}/scorepin/pin", json=msgspec.to_builtins(plan)).raise_for_status()


def outcome_of(server: Server, plan: PinPlan) -> PinOutcome:
    body = httpx.get(f"{server.url}/scorepin/pin/{plan.pin_id}").raise_for_status().json()
    return msgspec.convert(body, PinOutcome)


def membership(server: Server, *names: str) -> BatchMembership:
    query = "&".join(f"request={name}" for name in names)
    answer = httpx.get(f"{server.url}/scorepin/membership?{query}")
    return msgspec.convert(answer.raise_for_status().json(), BatchMembership)


def num_equal(left: Mapping[str, Generated], right: Mapping[str, Generated]) -> int:
    return sum(left[name] == right[name] for name in left)


def steps_of_flight(server: Server, rows: Sequence[EncodedRow], *, gate: bool) -> list[SeenStep]:
    """Send `rows` as to a foreign server; return the steps that this one recorded."""
    engine = Endpoint(urls={"float32": server.url}, served_model="m", gate=gate)
    spec = replace(VERIFIER, model="embedded:reward", engine=engine)  # only for its tokenizer
    verifier = open_engine(spec, a_condition())
    first = history_of(server).num_steps
    try:
        verifier.serve(rows, Flight())
    finally:
        verifier.close()
    history = history_of(server)
    return list(history.between(first, history.num_steps - 1))


def test_the_gate_makes_one_step_of_a_flight_in_its_order(server: Server) -> None:
    lengths = [9, 30, 12, 25, 7, 18, 40, 11, 21, 33, 15, 28]
    rows = [
        EncodedRow(token_ids=tuple(range(5, 5 + n)), branch_start=0, branch_end=n) for n in lengths
    ]
    (step,) = steps_of_flight(server, rows, gate=True)
    assert [slot.num_tokens for slot in step.rows] == lengths
    loose = steps_of_flight(server, rows, gate=False)
    assert len(loose) > 1, "negative control: without the gate nothing holds a flight together"


def test_sixteen_clients_are_replayed_bitwise_in_another_order(server: Server) -> None:
    requests = asked(21, NUM_CLIENTS, num_tokens=(8, 16, 32))
    order = list(requests)
    first = send(server, requests, order, "a.", gap_s=0.005)
    Random(22).shuffle(order)  # noqa: S311 - no secret
    unpinned: dict[str, Generated] = {}
    for name in order:  # each comes when the one before has its answer
        unpinned |= send(server, requests, [name], "u.", gap_s=0)
    plan = plan_for(server, list(requests), "a.", "p.", wait_s=20)
    post_pin(server, plan)
    again = send(server, requests, order, "p.", gap_s=0.02)
    outcome = outcome_of(server, plan)
    assert outcome.end is PinEnd.COMPLETED, outcome
    assert num_equal(first, again) == NUM_CLIENTS
    assert num_equal(first, unpinned) < NUM_CLIENTS, "nothing moved: no positive control"
    for name in requests:
        left, right = membership(server, f"a.{name}"), membership(server, f"p.{name}")
        assert not differing_membership(left, right, Equivalence.EXACT)


async def until_it_runs(client: httpx.AsyncClient, name: str) -> None:
    for _ in range(1000):
        if (await client.get(f"/scorepin/membership?request={name}")).is_success:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} does not run")


def test_a_client_that_aborts_spoils_nobody_elses_record(server: Server) -> None:
    requests = {
        **asked(23, 3, num_tokens=(24,)),
        "long": Asked([9] * 20, 200),
        "gone": Asked([7] * 20, 400),
    }

    async def with_an_abort() -> dict[str, Generated]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            gone = asyncio.create_task(complete(client, "g.gone", requests["gone"]))
            await until_it_runs(client, "g.gone")
            others = [
                asyncio.create_task(complete(client, f"g.{name}", requests[name]))
                for name in ("r0", "r1", "long")
            ]
            found = [await one for one in others[:2]]
            gone.cancel()
            return dict(zip(("r0", "r1", "long"), [*found, await others[2]], strict=True))

    first = asyncio.run(with_an_abort())
    send(server, requests, ["r2"], "g.", gap_s=0)  # the engine lives, and has seen the abort
    history = history_of(server)
    aborted = history.request("g.gone")
    assert 0 < len(aborted.generated) < 400
    shared = membership(server, "g.r0", "g.r1").steps
    assert any(slot.request_id == "g.gone" for step in shared for slot in step.slots)
    plan = plan_for(server, ["gone", "r0", "r1", "long"], "g.", "gp.", wait_s=20)
    post_pin(server, plan)
    again = send(server, requests, ["long", "r1", "r0", "gone"], "gp.", gap_s=0)
    assert outcome_of(server, plan).end is PinEnd.COMPLETED
    assert {name: again[name] for name in first} == first


def score_all(server: Server, count: int) -> list[ScoredOnServer]:
    async def main() -> list[ScoredOnServer]:
        async with Connection(server.url) as connection:
            client = ServingClient(connection, "m", VERIFIER)
            decisions = read_decisions("embedded:decisions", count)
            return list(await asyncio.gather(*(client.score(one) for one in decisions)))

    return asyncio.run(main())


def replayed(server: Server, commit: CommitRecord, *args: Any, **kwargs: Any) -> ReplayRecord:
    async def main() -> ReplayRecord:
        async with Connection(server.url, ROOM) as connection:
            client = ServingClient(connection, "m", VERIFIER)
            return await client.replay(commit, *args, **kwargs)

    return asyncio.run(main())


def items_of(scored: Sequence[ScoredOnServer]) -> dict[str, Item]:
    return {item.content_digest: item for one in scored for item in one.items}


def with_companions(scored: Sequence[ScoredOnServer]) -> CommitRecord:
    """Return the commit that shared its steps with the most rows of others."""

    def num_companions(one: ScoredOnServer) -> int:
        steps = one.commit.invocation.batch_membership.steps
        return sum(slot.branch_id is None for step in steps for slot in step.slots)

    found = max(scored, key=num_companions)
    assert num_companions(found) > 0
    return found.commit


def test_commits_hold_what_was_observed_and_are_replayed_exactly(server: Server) -> None:
    scored = score_all(server, 8)
    items = items_of(scored)
    for one in scored[:4]:
        commit = one.commit
        observed = commit.invocation.batch_membership
        assert observed.source is MembershipSource.OBSERVED
        assert observed.branch_ids == commit.scores.keys()
        replay = replayed(server, commit, items)
        assert replay.notes == ()
        assert replay.scores == commit.scores
        assert differing_parameters(commit.invocation, replay.invocation) == ()


def test_a_missing_companion_makes_a_reconstruction(server: Server) -> None:
    scored = score_all(server, 6)
    commit = with_companions(scored)
    own = [one for one in scored if one.commit.commit_id == commit.commit_id]
    replay = replayed(server, commit, items_of(own))
    assert "companions are not in the item store" in replay.notes[0]
    assert replay.scores.keys() == commit.scores.keys()
    assert differing_parameters(commit.invocation, replay.invocation)


def test_stand_ins_are_equal_in_shape_where_that_is_certified(server: Server) -> None:
    scored = score_all(server, 6)
    commit = with_companions(scored)
    own = [one for one in scored if one.commit.commit_id == commit.commit_id]
    replay = replayed(server, commit, items_of(own), Equivalence.SHAPE)
    assert replay.notes == ()
    left, right = commit.invocation, replay.invocation
    assert differing_parameters(left, right, Equivalence.SHAPE) == ()
    assert differing_parameters(left, right, Equivalence.EXACT) != ()


def test_a_client_that_never_comes_holds_nobody_for_long(server: Server) -> None:
    requests = asked(24, 2, num_tokens=(8,))
    send(server, requests, list(requests), "h.", gap_s=0)
    plan = plan_for(server, list(requests), "h.", "hp.", wait_s=0.5)
    post_pin(server, plan)
    found = send(server, requests, ["r1"], "hp.", gap_s=0)  # waits for its answer before r0
    assert len(found["r1"]) == 8
    assert outcome_of(server, plan).end is PinEnd.MISSING_REQUEST
    assert httpx.get(f"{server.url}/health").is_success
    assert len(send(server, requests, ["r0"], "hp.", gap_s=0)["r0"]) == 8


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/scorepin/membership?request=never", 404, "not in the step log"),
        ("/scorepin/membership", 400, "name at least one request"),
        ("/scorepin/nothing", 404, "no such route"),
        ("/scorepin/pin/never", 200, "null"),
    ],
)
def test_what_cannot_be_answered_is_said(server: Server, path: str, status: int, says: str) -> None:
    answer = httpx.get(server.url + path)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_a_wrong_plan_is_refused(server: Server) -> None:
    answer = httpx.post(f"{server.url}/scorepin/pin", json={"pin_id": "../x"})
    assert answer.status_code == 400


def test_a_killed_server_loses_no_finished_step(server: Server) -> None:
    # The last test of this file: it ends the server that the others share.
    requests = asked(25, NUM_CLIENTS, num_tokens=(8, 400))
    answered: list[str] = []
    first = asyncio.Event()

    async def until_killed() -> None:
        async def one(name: str) -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                await complete(client, f"k.{name}", requests[name])
                answered.append(name)
                first.set()

        tasks = [asyncio.create_task(one(name)) for name in requests]
        await first.wait()
        server.kill()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(until_killed())
    assert 0 < len(answered) < NUM_CLIENTS
    history = History().feed(read_log(server.folder))
    for name in answered:
        assert len(history.request(f"k.{name}").generated) == requests[name].num_tokens
        assert history.membership({f"k.{name}": name}).steps
    newest = max(server.folder.glob("steps-*.log"))
    _cut_short(newest)
    with pytest.warns(TornLineWarning, match="cut by a crash"):
        shorter = History().feed(read_log(server.folder))
    assert shorter.num_steps == history.num_steps - 1


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
