"""Retries, limits, and what a server refuses."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from harness.errors import InputFileError, WorkerError
from harness.serving.connection import Answer, Connection, ConnectionLimits

QUICK = ConnectionLimits(num_attempts=3, first_wait_s=0)
Handler = Callable[[httpx.Request], httpx.Response]


def posted(handler: Handler, limits: ConnectionLimits = QUICK) -> Answer:
    async def main() -> Answer:
        transport = httpx.MockTransport(handler)
        async with Connection("http://server/", limits, transport=transport) as connection:
            return await connection.post("/v1", {"x": 1}, "mine")

    return asyncio.run(main())


def failing(*failures: int | type[httpx.TransportError]) -> tuple[Handler, list[str]]:
    """Return a server that fails so, then answers; and the ids that it is asked under."""
    left, seen = list(failures), []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["X-Request-Id"])
        if not left:
            return httpx.Response(200, json={"ok": True})
        failure = left.pop(0)
        if isinstance(failure, int):
            return httpx.Response(failure, text="told why")
        raise failure("lost")

    return handler, seen


async def when_sent(status: int) -> tuple[bool, bool]:
    """Post to a real socket; return whether `sent` was set before the answer, and at the end."""
    sent, answered = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(b'{"x":1}'))
        assert b"POST /v1" in head
        await answered.wait()
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Connection(url, ConnectionLimits(num_attempts=1)) as connection:
        post = asyncio.create_task(connection.post("/v1", {"x": 1}, sent=sent))
        assert not sent.is_set()
        await asyncio.wait_for(sent.wait(), 10)
        before = not post.done()
        answered.set()
        await asyncio.wait([post])
        assert (post.exception() is None) == (status == 200)
    return before, sent.is_set()


@pytest.mark.parametrize("status", [200, 400])
def test_a_body_is_told_to_be_on_its_way_before_the_answer_comes(status: int) -> None:
    assert asyncio.run(when_sent(status)) == (True, True)


def test_a_body_that_never_goes_is_told_too() -> None:
    async def main() -> bool:
        sent = asyncio.Event()
        limits = ConnectionLimits(num_attempts=1)
        async with Connection("http://127.0.0.1:9", limits) as connection:
            with pytest.raises(WorkerError):
                await connection.post("/v1", {"x": 1}, sent=sent)
        return sent.is_set()

    assert asyncio.run(main())


@pytest.mark.parametrize("failure", [429, 500, 503, httpx.ConnectError, httpx.ReadTimeout])
def test_a_passing_failure_is_tried_again_under_another_id(
    failure: int | type[httpx.TransportError],
) -> None:
    handler, seen = failing(failure, failure)
    answer = posted(handler)
    assert (answer.request_id, answer.body) == ("mine.2", {"ok": True})
    assert seen == ["mine", "mine.1", "mine.2"]


def test_a_failure_that_stays_is_told() -> None:
    handler, seen = failing(503, 503, 503, 503)
    with pytest.raises(WorkerError, match=r"no answer after 3 attempts .*status 503: told why"):
        posted(handler)
    assert len(seen) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 409])
def test_what_the_server_refuses_is_not_tried_again(status: int) -> None:
    handler, seen = failing(status)
    with pytest.raises(InputFileError, match=f"POST /v1: {status}: told why"):
        posted(handler)
    assert seen == ["mine"]


def test_no_more_requests_are_under_way_than_allowed() -> None:
    under_way, most = 0, 0

    async def handler(_: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.002)
        under_way -= 1
        return httpx.Response(200, json={})

    async def main() -> None:
        limits = ConnectionLimits(num_connections=3)
        transport = httpx.MockTransport(handler)
        async with Connection("http://server", limits, transport=transport) as connection:
            await asyncio.gather(*(connection.post("/", None, str(at)) for at in range(20)))

    asyncio.run(main())
    assert most == 3


def test_the_key_is_sent() -> None:
    async def main() -> str:
        transport = httpx.MockTransport(
            lambda request: httpx.Response(200, json=request.headers["Authorization"])
        )
        async with Connection("http://s", api_key="k", transport=transport) as connection:
            return str(await connection.get("/"))

    assert asyncio.run(main()) == "Bearer k"


@pytest.mark.parametrize(
    "changes", [{"num_connections": 0}, {"num_attempts": 0}, {"timeout_s": 0.0}]
)
def test_limits_are_positive(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|above 0"):
        ConnectionLimits(**changes)  # type: ignore[arg-type]
