"""Takes requests to a foreign server together.

Rules kept here:

* a flight is sent whole and answered whole before the next one;
* behind the gate the server is paused, with its prefix cache emptied, each request is on its way
  before the next, and the resume is sent whatever happened in between;
* what a killed client left paused is resumed when the next one comes.

Whether the server really computed a flight together is not known, with the gate or without.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from harness.errors import InputFileError, UnsupportedConditionError, WorkerError
from harness.records.engine import Endpoint
from harness.serving.connection import Answer, Connection
from harness.serving.row_request import RowRequest

__all__ = ["Flights"]

_NUM_RESETS, _RESET_WAIT_S = 20, 0.05
"""How often an engine is asked to empty its cache, which it does once it has no request."""


class Flights:
    """One server: a connection for rows, and one for the gate, which must never wait for a row."""

    def __init__(self, rows: Connection, gate: Connection, engine: Endpoint) -> None:
        """Take both connections to the server of `engine`."""
        self._rows, self._gate, self._engine = rows, gate, engine

    async def open(self) -> None:
        """Resume what an earlier client may have left paused.

        Raises UnsupportedConditionError when there is no gate and one is asked for.
        """
        if self._engine.gate:
            await self._command("/resume")

    async def send(self, request: RowRequest, sent: asyncio.Event | None = None) -> Answer:
        """Send one request and return its answer; `sent` is set when it is on its way."""
        body = {"model": self._engine.served_model, **request.body}
        return await self._rows.post(request.path, body, sent=sent)

    async def fly(self, requests: Sequence[RowRequest]) -> list[Any]:
        """Send `requests` together; return the bodies of their answers, in that order."""
        if self._engine.gate:
            await self._empty_cache()
        try:
            async with asyncio.TaskGroup() as group:
                if self._engine.gate and len(requests) > 1:
                    tasks = await self._gathered(group, requests)
                else:
                    tasks = [group.create_task(self.send(request)) for request in requests]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [task.result().body for task in tasks]

    async def _gathered(
        self, group: asyncio.TaskGroup, requests: Sequence[RowRequest]
    ) -> list[asyncio.Task[Answer]]:
        """Send `requests`, one behind the other, to a paused server, and let it go."""
        tasks = []
        try:
            await self._command("/pause?mode=keep")
            for request in requests:
                sent = asyncio.Event()
                tasks.append(group.create_task(self.send(request, sent)))
                await sent.wait()
            await asyncio.sleep(self._engine.gate_wait_s)
        finally:
            await self._command("/resume")
        return tasks

    async def _empty_cache(self) -> None:
        for _ in range(_NUM_RESETS):
            if (await self._command("/reset_prefix_cache")).get("success", True):
                return
            await asyncio.sleep(_RESET_WAIT_S)
        raise WorkerError(
            "the server does not empty its prefix cache: it computes for somebody else, too; "
            "calibrate a server that nobody else uses"
        )

    async def _command(self, path: str) -> dict[str, Any]:
        try:
            body = (await self._gate.post(path, None)).body
        except InputFileError as error:
            advice = "start the server with VLLM_SERVER_DEV_MODE=1, or set engine.gate: false"
            raise UnsupportedConditionError(f"engine.gate: {error}; {advice}") from error
        return body if isinstance(body, dict) else {}
