"""No call leaves a replay: proved by what the gateway is made of, and by a real server."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from harness.errors import InvalidRecordError, ReplayContaminationError
from harness.planner.effects import LiveGateway, MemoryEffectStore, ReplayGateway
from tests.planner.effects_examples import clock

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
from contextlib import suppress
from urllib.request import Request, urlopen

from harness.errors import ReplayContaminationError
from harness.planner.effects import (
    Divergence, LiveGateway, MemoryEffectStore, Trajectory, recorded_step, run_counterfactual_branch
)

url, mode = sys.argv[1:]
connections = []
sys.addaudithook(lambda event, args: connections.append(args) if event == "socket.connect" else 0)

def send(tool, arguments, token):
    body, headers = json.dumps([tool, arguments]).encode(), {"Idempotency-Key": token}
    with urlopen(Request(url, data=body, headers=headers)) as answer:
        return json.load(answer)

def step(tool, payload=None):
    return recorded_step(
        step_id=tool, tool=tool, arguments={}, token=f"token-{tool}" if payload is None else None,
        payload=payload or [1])

def program(gateway):
    gateway.call("pay", {}, "token-pay")
    for call in (gateway.call, live.call):
        with suppress(ReplayContaminationError):
            call("new", {}, "token-new")

store = MemoryEffectStore()
live = LiveGateway(send, store)
run = Trajectory(source="run", steps=(step("pay"), step("end")))
if mode == "live":
    program(live)
else:
    for one in run.steps:
        store.put(one)
    branch = Divergence(branch_id="x", index=1, step=step("end", payload=[2]))
    try:
        run_counterfactual_branch(
            run, branch, store=store, clock=lambda: "2026-01-01T00:00:00+00:00", program=program)
    except ReplayContaminationError as error:
        print(error)
print(len(connections), "connections")
"""
"""Makes the same calls live, or in a replay: one that is recorded, then twice one that is not."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Give a server's URL, and the idempotency keys of the calls that reached it."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(self.headers["Idempotency-Key"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[1]")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/", keys
        http.shutdown()
        thread.join()


def ran(mode: str, url: str) -> str:
    """Run the script in a fresh process; return what it printed."""
    command = [sys.executable, "-c", SCRIPT, url, mode]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_no_call_leaves_a_replay(server: tuple[str, list[str]]) -> None:
    url, keys = server
    printed = ran("replay", url)
    assert printed.startswith("branch 'x' is contaminated: 'new' with token 'token-new' was called")
    assert printed.endswith("\n0 connections\n")
    assert keys == []


def test_the_same_calls_leave_a_live_gateway(server: tuple[str, list[str]]) -> None:
    url, keys = server
    assert ran("live", url) == "3 connections\n"
    assert keys == ["token-pay", "token-new", "token-new"]


def reachable_from(gateway: ReplayGateway) -> list[object]:
    """Return everything that the gateway holds, and what that holds, a few levels deep."""
    found: list[object] = []
    level: list[object] = [gateway]
    for _ in range(4):
        level = [inner for outer in level for inner in held_by(outer)]
        found += level
    return found


def held_by(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", {})]
    return [getattr(value, name) for name in names if hasattr(value, name)]


def test_a_replay_gateway_holds_nothing_that_it_could_call_with() -> None:
    gateway = ReplayGateway("x", (), store=MemoryEffectStore(), clock=clock)
    assert [value for value in reachable_from(gateway) if callable(value)] == [clock]
    with pytest.raises(AttributeError):
        gateway.send = print  # type: ignore[attr-defined]


def test_the_search_would_find_a_way_out() -> None:
    live = LiveGateway(print, MemoryEffectStore())
    assert print in held_by(live)


def imported_by(path: Path) -> set[str]:
    """Return the modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_the_replay_side_imports_nothing_that_could_connect() -> None:
    files = sorted((ROOT / "harness" / "planner" / "effects").rglob("*.py"))
    imported = {path.name: imported_by(path) for path in files if path.name != "sql_store.py"}
    assert "harness.planner.effects.store" in imported["gateway.py"]
    roots = {name.partition(".")[0] for names in imported.values() for name in names}
    assert roots == {
        "collections",
        "contextlib",
        "contextvars",
        "datetime",
        "enum",
        "harness",
        "hashlib",
        "msgspec",
        "pathlib",
        "re",
        "typing",
        "unicodedata",
    }


def test_a_live_gateway_records_under_the_token_and_only_then() -> None:
    store = MemoryEffectStore()
    answers = iter([{"id": 1}, {"id": 2}, {"id": 3}])
    live = LiveGateway(lambda *_: next(answers), store)
    assert live.call("post", {}) == {"id": 1}
    assert live.call("post", {}, "t") == {"id": 2}
    assert store.effects(["t"])["t"].payload == b'{"id":2}'
    with pytest.raises(InvalidRecordError, match="token 't' already stands for another payload"):
        live.call("post", {}, "t")  # the service broke its promise


def test_a_gateway_made_for_a_contaminated_branch_answers_nothing() -> None:
    store = MemoryEffectStore()
    store.contaminate("x", "earlier")
    gateway = ReplayGateway("x", (), store=store, clock=clock)
    with pytest.raises(ReplayContaminationError, match="branch 'x' is contaminated: earlier"):
        gateway.call("post", {})
    with pytest.raises(ReplayContaminationError, match="earlier"):
        gateway.finish()
    assert ReplayGateway("y", (), store=store, clock=clock).finish() == frozenset()
