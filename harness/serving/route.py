"""Serves the step log on the server that serves the model.

The flag is

    --middleware harness.serving.route.StepLogRoute

* ``GET  /scorepin/membership?request=ID&request=ID``: the steps that these requests were in;
* ``GET  /scorepin/build``: what the engine is, with the digests of weights and tokenizer;
* ``POST /scorepin/pin``: a plan to pin the engine to, where the server's settings allow it;
* ``GET  /scorepin/pin/PIN``: how that pin ended; ``{"end": null}`` while it has not.

An error is ``{"error": ...}`` with status 404 for what is not there, 409 for what cannot be told,
400 for a bad request, 403 for a pin that is not allowed.

All other paths go to vLLM. These are not behind ``--api-key``, which guards ``/v1`` alone.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from harness.errors import CallerError, InputFileError, ScorepinError, UnsupportedConditionError
from harness.serving.history import History
from harness.serving.pin_files import ask_for_pin, read_outcome
from harness.serving.pin_plan import PinPlan
from harness.serving.server_build import ServerBuild, server_build
from harness.serving.settings import ServingSettings, read_settings
from harness.serving.step_log import LogFollower

__all__ = ["StepLogRoute", "StepLogService"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/scorepin/"


class StepLogService:
    """Answers from the log of a server's engines; blocking, called in a thread."""

    def __init__(self, settings: ServingSettings) -> None:
        """Name the log; it is read when something is asked."""
        self._settings = settings
        self._followed: dict[Path, tuple[LogFollower, History]] = {}
        self._build: ServerBuild | None = None

    def membership(self, request_ids: list[str]) -> object:
        """Return the membership of requests, all of one engine."""
        if not request_ids:
            raise UnsupportedConditionError("name at least one request: ?request=ID")
        histories = self._histories()
        for history in histories[:-1]:
            with contextlib.suppress(InputFileError):
                return history.membership(dict.fromkeys(request_ids))
        return histories[-1].membership(dict.fromkeys(request_ids))

    def build(self) -> object:
        """Return the server's side of a build; the weights are read once."""
        if self._build is None:
            self._build = server_build(self._histories()[0].facts)
        return self._build

    def ask_for_pin(self, body: bytes) -> object:
        """Hand a plan to the engine."""
        plan = msgspec.json.decode(body, type=PinPlan)
        ask_for_pin(self._pinned_folder(), plan)
        return {"pin_id": plan.pin_id}

    def outcome(self, pin_id: str) -> object:
        """Return how a pin ended, if it has."""
        return read_outcome(self._pinned_folder(), pin_id) or {"end": None}

    @property
    def allows_pin(self) -> bool:
        """Whether the settings allow a pin."""
        return self._settings.allow_pin

    def _histories(self) -> list[History]:
        found = []
        for folder in self._folders():
            follower, history = self._followed.setdefault(
                folder, (LogFollower(folder), History(self._settings.max_slots_served))
            )
            found.append(history.feed(follower.read_new()))
        return found

    def _folders(self) -> list[Path]:
        folders = sorted(Path(self._settings.log).glob("engine-*"))
        if not folders:
            advice = "is the server run with --scheduler-cls ...RecordingScheduler?"
            raise InputFileError(f"{self._settings.log}: no step log; {advice}")
        return folders

    def _pinned_folder(self) -> Path:
        folders = self._folders()
        if len(folders) > 1:
            raise UnsupportedConditionError("a server of several engines cannot be pinned")
        return folders[0]


class StepLogRoute:
    """ASGI middleware in front of vLLM's application."""

    def __init__(self, app: Any) -> None:
        """Stand before `app`."""
        self._app = app
        self._service: StepLogService | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is ours, hand on the rest."""
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        try:
            async with self._lock:  # the followed log is one reader's
                answer = await asyncio.to_thread(self._answer, scope, body)
            status = HTTPStatus.OK
        except (ScorepinError, msgspec.DecodeError) as error:
            answer, status = {"error": str(error)}, _status(error)
        await _send_json(send, status, answer)

    def _answer(self, scope: Scope, body: bytes) -> object:
        if self._service is None:
            config = scope["app"].state.vllm_config
            self._service = StepLogService(read_settings(config.additional_config))
        service, what = self._service, scope["path"].removeprefix(PREFIX)
        match scope["method"], what.split("/"):
            case "GET", ["membership"]:
                query = parse_qs(scope["query_string"].decode("ascii", "replace"))
                return service.membership(query.get("request", []))
            case "GET", ["build"]:
                return service.build()
            case "POST", ["pin"] if service.allows_pin:
                return service.ask_for_pin(body)
            case "GET", ["pin", pin_id] if service.allows_pin and pin_id.replace("-", "").isalnum():
                return service.outcome(pin_id)
            case _, ["pin", *_] if not service.allows_pin:
                advice = 'start it with --additional-config \'{"scorepin": {"allow_pin": true}}\''
                raise PermissionRefusal(f"this server may not be pinned; {advice}")
        raise InputFileError(f"{scope['method']} {scope['path']}: no such route")


class PermissionRefusal(CallerError):  # noqa: N818 - told to a client, never raised to a caller
    """The server's settings do not allow it."""


def _status(error: Exception) -> HTTPStatus:
    if isinstance(error, PermissionRefusal):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, InputFileError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, CallerError | msgspec.DecodeError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.CONFLICT


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _send_json(send: Send, status: HTTPStatus, answer: object) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})
