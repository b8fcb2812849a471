"""One server: requests with retries and a limit on how many are under way.

Rules kept here: a request is sent again after a lost connection, a time-out, 429 or 5xx, at most so
often, waiting twice as long each time; a 4xx is the caller's and is not; each attempt goes by an id
of its own, since one that was given up may have been computed all the same.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Self

import httpx

from harness.errors import InputFileError, WorkerError
from harness.records.document import Record

__all__ = ["Answer", "Connection", "ConnectionLimits"]


class ConnectionLimits(Record, frozen=True, kw_only=True):
    """How a server is spoken to."""

    num_connections: int = 64
    """Requests under way at once; more wait their turn."""
    num_attempts: int = 4
    """Times that a request is sent before it is given up."""
    first_wait_s: float = 0.25
    """Wait before the second attempt; each later one is twice as long."""
    timeout_s: float = 120.0
    """Longest time from sending to answer, of one attempt."""

    def __post_init__(self) -> None:
        """Something is sent, and it may take a while."""
        if self.num_connections < 1 or self.num_attempts < 1:
            raise ValueError("num_connections and num_attempts are at least 1")
        if not self.timeout_s > 0 or not self.first_wait_s >= 0:
            raise ValueError("timeout_s is above 0 and first_wait_s not below")


class Answer(Record, frozen=True, kw_only=True):
    """What came back."""

    request_id: str
    """The id of the attempt that was answered."""
    body: Any
    """The parsed JSON."""
    software: str = ""
    """The ``Server`` header; empty where there is none."""


class Connection:
    """An async context manager around an HTTP client."""

    def __init__(
        self,
        base_url: str,
        limits: ConnectionLimits | None = None,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Name the server; `transport` stands in for the network in tests."""
        self._limits = limits or ConnectionLimits()
        self._turns = asyncio.Semaphore(self._limits.num_connections)
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=self._limits.timeout_s,
            limits=httpx.Limits(max_connections=self._limits.num_connections),
            transport=transport,
        )

    @property
    def num_connections(self) -> int:
        """Requests that can be under way at once."""
        return self._limits.num_connections

    async def __aenter__(self) -> Self:
        """Return itself; the first request opens the first connection."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def get(self, path: str, params: Any = None) -> Any:
        """Return the JSON at `path`; raises like `post`."""
        answer = await self._retried(
            lambda _: self._client.build_request("GET", path, params=params), ""
        )
        return answer.body

    async def post(
        self, path: str, body: Any, request_id: str = "", *, sent: asyncio.Event | None = None
    ) -> Answer:
        """Post `body` as JSON under ``X-Request-Id`` `request_id` and a number for the attempt.

        `sent` is set when the body is on its way, or none will be. Raises InputFileError when the
        server refuses it, with what it said, and WorkerError when every attempt failed.
        """
        on_its_way = sent or asyncio.Event()

        async def trace(event: str, _: Any) -> None:
            if event.endswith("send_request_body.complete"):
                on_its_way.set()

        try:
            return await self._retried(
                lambda attempt: self._client.build_request(
                    "POST",
                    path,
                    json=body,
                    headers={"X-Request-Id": attempt} if request_id else {},
                    extensions={"trace": trace},
                ),
                request_id,
            )
        finally:
            on_its_way.set()

    async def _retried(self, build: Callable[[str], httpx.Request], request_id: str) -> Answer:
        last: Exception | str = ""
        async with self._turns:
            for number in range(self._limits.num_attempts):
                if number:
                    await asyncio.sleep(self._limits.first_wait_s * 2 ** (number - 1))
                attempt = f"{request_id}.{number}" if number else request_id
                try:
                    response = await self._client.send(build(attempt))
                except httpx.TransportError as error:
                    last = error
                    continue
                if not _is_passing(response.status_code):
                    software = response.headers.get("server", "")
                    return Answer(request_id=attempt, body=_json(response), software=software)
                last = f"status {response.status_code}: {response.text[:200]}"
        tries = f"after {self._limits.num_attempts} attempts"
        raise WorkerError(f"{self._client.base_url}: no answer {tries} ({last!r}); is it up?")


def _is_passing(status: int) -> bool:
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _json(response: httpx.Response) -> Any:
    if response.is_success:
        return response.json()
    told = f"{response.request.method} {response.request.url.path}: {response.status_code}"
    raise InputFileError(f"{told}: {response.text[:500]}")
