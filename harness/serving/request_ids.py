"""Decides which client's request an engine's request is.

vLLM 0.32 makes an engine id of a client's id in two steps. The server writes
``<kind>-<X-Request-Id>`` and, except for chat, ``-<prompt index>``; the engine appends ``-`` and
eight random hex digits. Of several samples of one prompt each has ``<sample>_`` in front. An
in-process engine has only the second step.

What it does not know: an in-process caller that names a request as a server would, ``cmpl-x-0``,
is read as that server's.
"""

import re

from harness.records.document import Record

__all__ = ["ClientRequest", "client_request"]

_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_SAMPLE = re.compile(r"^(\d+)_(?=[a-z]+)")
_INDEXED = re.compile(
    r"^(?:cmpl|classify|score|pooling|embd|rerank|generative-scoring)-(.+)-(\d+)$"
)
_CHAT = re.compile(r"^chatcmpl-(.+)$")


class ClientRequest(Record, frozen=True, kw_only=True):
    """A request as its client knows it."""

    request_id: str
    """The client's ``X-Request-Id``, or the id given to an in-process engine."""
    prompt_index: int = 0
    """Which of the prompts sent under that id."""
    sample: int = 0
    """Which of several samples of that prompt."""

    @property
    def name(self) -> str:
        """The id, with ``#prompt`` or ``#prompt.sample`` behind it where it is not the first."""
        if self.sample:
            return f"{self.request_id}#{self.prompt_index}.{self.sample}"
        return f"{self.request_id}#{self.prompt_index}" if self.prompt_index else self.request_id


def client_request(engine_id: str) -> ClientRequest:
    """Return the client's request behind an engine id."""
    external = _SUFFIX.sub("", engine_id)
    sample = 0
    if found := _SAMPLE.match(external):
        sample, external = int(found[1]), external[found.end() :]
    if found := _INDEXED.match(external):
        return ClientRequest(request_id=found[1], prompt_index=int(found[2]), sample=sample)
    if found := _CHAT.match(external):
        return ClientRequest(request_id=found[1], sample=sample)
    return ClientRequest(request_id=external, sample=sample)
