"""Decides the version of a thing behind a URL by its ETag, and replaces it with a conditional PUT.

`HttpResource` is any server that answers with strong ETags and heeds ``If-Match``; `S3Object` is
one that speaks S3's object calls. Both go through an `httpx.Client` of the caller's, which knows
the proxies, time limits and credentials.

What is guaranteed, exactly:

* the server decides: a PUT or DELETE carries ``If-Match`` (``If-None-Match: *`` where nothing was
  there), and 412 is a conflict. A server that ignores these headers gives no protection, and cannot
  be told from one that heeds them;
* a weak ETag (``W/``) is no version: it may stay when bytes change;
* an ETag that is a hash of the content comes back with the content. Where `S3Object` is told a
  version beside it (``x-amz-version-id``, ``x-goog-generation``), that is part of the token and is
  compared just before the PUT; elsewhere old bytes that somebody brought back *without the gate*
  count as the old version;
* no answer to a PUT means that nobody knows whether it was done: `StoreError`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.errors import StoreError
from harness.planner.resources.resource import Snapshot, conflict

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpResource", "S3Object"]

ABSENT = "absent"
"""Token of a URL where nothing is; an ETag is quoted, so it is never this."""
IDENTITY = {"Accept-Encoding": "identity"}
"""A compressed answer may have an ETag of its own."""


class HttpResource:
    """One URL whose answers carry strong ETags."""

    version_headers: tuple[str, ...] = ()
    """Headers that tell apart two versions with the same ETag."""

    def __init__(self, url: str, client: "httpx.Client") -> None:
        """Name the URL; nothing is asked."""
        self.url, self._client = url, client

    @property
    def resource_id(self) -> str:
        """The URL."""
        return self.url

    def version(self) -> str | None:
        """Return the token of what is there now; None without a strong ETag."""
        answer = self._ask("HEAD")
        return self._token(answer)

    def read(self) -> Snapshot:
        """Return content and token of what is there now."""
        answer = self._ask("GET")
        token = self._token(answer)
        return Snapshot(content=None if token == ABSENT else answer.content, token=token)

    def write(self, content: bytes | None, expected: str) -> str:
        """Replace the version `expected`; return the new token."""
        found = self.version() if self.version_headers else expected
        if found != expected:
            raise conflict(self.resource_id, expected, found)
        if content is None and expected == ABSENT:
            return self._still_absent()
        return self._write(content, expected)

    def _write(self, content: bytes | None, expected: str) -> str:
        condition = {"If-Match": _etag(expected)} if expected != ABSENT else {"If-None-Match": "*"}
        answer = self._ask("DELETE" if content is None else "PUT", condition, content)
        if answer.status_code in (409, 412) or (answer.status_code == 404 and expected != ABSENT):
            raise conflict(self.resource_id, expected, self.version())
        if not answer.is_success:
            raise self._unusable(answer)
        return ABSENT if content is None else self._token_after(answer, content)

    def _still_absent(self) -> str:
        if (found := self.version()) != ABSENT:
            raise conflict(self.resource_id, ABSENT, found)
        return ABSENT

    def _token_after(self, answer: "httpx.Response", content: bytes) -> str:
        """Return the token of a write; ask for it when the answer does not say."""
        if "etag" in answer.headers and (token := self._token(answer)):
            return token
        now = self.read()
        if now.content != content or now.token is None:
            message = "written, but what is there now is not that; read it again"
            raise StoreError(f"{self.url}: {message}")
        return now.token

    def _token(self, answer: "httpx.Response") -> str | None:
        if answer.status_code in (404, 410):
            return ABSENT
        if not answer.is_success:
            raise self._unusable(answer)
        etag = answer.headers.get("etag", "")
        return _full_token(etag, answer.headers, self.version_headers)

    def _ask(
        self, method: str, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> "httpx.Response":
        import httpx  # noqa: PLC0415 - only who uses a URL needs it

        try:
            sent = {**IDENTITY, **(headers or {})}
            return self._client.request(method, self.url, headers=sent, content=content)
        except httpx.HTTPError as error:
            known = "nothing was changed" if method in ("GET", "HEAD") else "nobody knows if it did"
            message = f"{method} {self.url}: no answer ({type(error).__name__}: {error}); {known}"
            raise StoreError(message) from error

    def _unusable(self, answer: "httpx.Response") -> StoreError:
        asked = f"{answer.request.method} {self.url}"
        return StoreError(f"{asked}: {answer.status_code} {answer.reason_phrase}; check the URL")


class S3Object(HttpResource):
    """One object of an S3-style store: ``https://endpoint/bucket/key``.

    Requests are signed by the client's `auth`, if the endpoint asks for it.
    """

    version_headers = ("x-amz-version-id", "x-goog-generation")


def _full_token(etag: str, headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    if not (etag.startswith('"') and etag.endswith('"') and len(etag) > 2):
        return None
    return "#".join([etag, *(headers[name] for name in names if name in headers)])


def _etag(token: str) -> str:
    """Return the ETag of a token: up to its closing quote."""
    return token[: token.rindex('"') + 1] if '"' in token else '""'
