"""An OpenAI-compatible server of a few lines, on a real socket, for tests without vLLM.

Its log-probabilities follow from the tokens alone, and, if it `moves`, by rounding from how many
requests it computes together. Paused, it keeps what comes, and computes that together when it is
resumed; else it computes each request alone.
"""

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answer", "ImaginedServer", "imagined_server"]

ROUNDOFF = {"bfloat16": 2.0**-8, "float32": 2.0**-24}
VOCABULARY = 447
Answer = tuple[int, Any]
"""Status and JSON body."""


class ImaginedServer:
    """What it is told to be, and what it has seen."""

    def __init__(
        self,
        precision: str,
        *,
        moves: bool,
        texts: Sequence[str],
        pages: Mapping[str, Any],
    ) -> None:
        self.url = ""
        self.seen: list[str] = []
        """``/path`` of each request, with the first tokens of a row, in order of arrival."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.overruled: Callable[[str, int], Answer | None] = lambda _path, _number: None
        """Gives an answer in place of the server's; takes the path and how often it was asked."""
        self.largest = 0
        """Most requests that were computed together."""
        self.sabotage = 0.0
        """Added to every log-probability of the first token asked for."""
        self._precision, self._moves, self._texts, self._pages = precision, moves, texts, pages
        self._lock = threading.Condition()
        self._paused, self._waiting, self._released = False, 0, 0

    def answer(self, path: str, body: dict[str, Any], key: str | None) -> Answer:
        with self._lock:
            self.keys.add(key)
            self.seen.append(path + (f" {body['prompt'][1:4]}" if "prompt" in body else ""))
            number = sum(one.split()[0] == path for one in self.seen)
        if overruled := self.overruled(path, number):
            return overruled
        if path in ("/pause?mode=keep", "/resume"):
            self._set(paused=path != "/resume")
            return 200, {"status": path}
        if path == "/reset_prefix_cache":
            return 200, {"success": True}
        if path in ("/v1/completions", "/classify"):
            self.bodies.append(body)
            return 200, self._scored(path, body, self._together())
        return (200, self._pages[path]) if path in self._pages else (404, {"detail": "Not Found"})

    def _set(self, *, paused: bool) -> None:
        with self._lock:
            if self._paused and not paused:
                self._released = self._waiting
            self._paused = paused
            self._lock.notify_all()

    def _together(self) -> int:
        """Wait while the server is paused; return how many requests are computed with this one."""
        with self._lock:
            if not self._paused:
                self.largest = max(self.largest, 1)
                return 1
            self._waiting += 1
            assert self._lock.wait_for(lambda: not self._paused, 20), "nobody resumed the server"
            self._waiting -= 1
            self.largest = max(self.largest, self._released)
            return self._released

    def _scored(self, path: str, body: dict[str, Any], together: int) -> Any:
        if path == "/classify":
            tokens = body["input"]
            return {"data": [{"probs": [self._value(tokens, at, together) for at in range(2)]}]}
        places = [self._place(body, at, together) for at in range(body["max_tokens"])]
        return {
            "choices": [{"logprobs": {"top_logprobs": places}}],
            "system_fingerprint": f"imagined-{self._precision}",
        }

    def _place(self, body: dict[str, Any], at: int, together: int) -> dict[str, float]:
        """Return the log-probabilities told at the generated token `at`."""
        tokens = [*body["prompt"], at]
        if "logprob_token_ids" in body:
            ids = body["logprob_token_ids"]
            found = {f"token_id:{one}": self._value(tokens, one, together) for one in ids}
            found[f"token_id:{ids[0]}"] += self.sabotage
            return found
        every = {self._texts[at]: self._value(tokens, at, together) for at in range(VOCABULARY)}
        top = sorted(every, key=every.__getitem__, reverse=True)[: body["logprobs"]]
        return {text: every[text] for text in top}

    def _value(self, tokens: Sequence[int], token: int, together: int) -> float:
        unit = ROUNDOFF[self._precision]
        value = -8 * _share([*tokens, token]) - 0.125
        noise = _share([*tokens, token, together]) - 0.5 if self._moves and together > 1 else 0.0
        own = _share([*tokens, token, len(self._precision)]) - 0.5
        return value + unit * (noise + own)


def _share(numbers: Sequence[int]) -> float:
    """Return a number between 0 and 1 that follows from `numbers`, as if it were random."""
    return zlib.crc32(repr(list(numbers)).encode()) / 2**32


@contextmanager
def imagined_server(
    precision: str = "float32",
    *,
    moves: bool = True,
    texts: Sequence[str] = (),
    pages: Mapping[str, Any] | None = None,
) -> Iterator[ImaginedServer]:
    """Serve until the end of the block; `texts` are the vocabulary's, `pages` the paths to get."""
    card = {"id": "m", "owned_by": "imagined", "max_model_len": 256, "created": 1}
    known = {"/version": {"version": "1.2"}, "/v1/models": {"data": [card]}}
    server = ImaginedServer(
        precision, moves=moves, texts=texts, pages=known if pages is None else pages
    )
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _handler(server: ImaginedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        server_version, sys_version = "imagined-http", ""

        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._reply(json.loads(data) if data else {})

        def _reply(self, body: dict[str, Any]) -> None:
            status, found = server.answer(self.path, body, self.headers.get("Authorization"))
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
