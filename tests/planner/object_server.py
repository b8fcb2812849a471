"""A small S3-style server on 127.0.0.1: conditional PUT and DELETE, ETags that hash the content."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from threading import Lock, Thread


class ObjectServer(ThreadingHTTPServer):
    """Objects by path; switches make it a worse server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = Lock()
        self.objects: dict[str, bytes] = {}
        self.num_versions: dict[str, int] = {}
        self.versioned = False
        self.heeds_conditions = True
        self.etag_after_put = True
        self.weak = False
        self.status = 0
        self.cut_answer = False

    def url(self, key: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/bucket/{key}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: an answer cut on purpose is no error."""


class Handler(BaseHTTPRequestHandler):
    server: ObjectServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer_object()

    def do_HEAD(self) -> None:
        self._answer_object()

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self._change(content)

    def do_DELETE(self) -> None:
        self._change(None)

    def _answer_object(self) -> None:
        with self.server.lock:
            content = self.server.objects.get(self.path)
        if self.server.status or content is None:
            self._answer(self.server.status or 404)
        else:
            self._answer(200, self._headers(content), content)

    def _change(self, content: bytes | None) -> None:
        with self.server.lock:
            if self.server.heeds_conditions and not self._holds():
                self._answer(412)
                return
            self.server.num_versions[self.path] = self.server.num_versions.get(self.path, 0) + 1
            if content is None:
                self.server.objects.pop(self.path, None)
            else:
                self.server.objects[self.path] = content
        if self.server.cut_answer:
            self.connection.shutdown(SHUT_RDWR)
            return
        tell = content is not None and self.server.etag_after_put
        self._answer(200, self._headers(content or b"") if tell else {})

    def _holds(self) -> bool:
        now = self.server.objects.get(self.path)
        if self.headers.get("If-None-Match") == "*":
            return now is None
        return now is not None and self.headers.get("If-Match") == etag(now)

    def _headers(self, content: bytes) -> dict[str, str]:
        headers = {"ETag": ("W/" if self.server.weak else "") + etag(content)}
        if self.server.versioned:
            headers["x-amz-version-id"] = f"v{self.server.num_versions.get(self.path, 0)}"
        return headers

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, content: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def etag(content: bytes) -> str:
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'


@contextmanager
def serving() -> Iterator[ObjectServer]:
    server = ObjectServer()
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
