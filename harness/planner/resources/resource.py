"""Decides what the gate asks of a thing that branches read and write: the Resource protocol.

One object is one resource: a file, a row, an object behind a URL. The contract, which one test
suite holds every kind to:

* `version` and `read` return a token that differs whenever the content differs. None means that the
  store gives no version, and the gate will refuse the resource;
* a resource that is absent has a version too, and its content is None;
* `write` replaces the content if, and only if, the token is still `expected`: one step, which no
  other user of the same kind can come between. It returns the new token. None deletes;
* when it is not, `write` raises `VersionConflictError` and has changed nothing;
* when nobody can say whether it wrote, it raises `StoreError`.

What a token is worth against somebody who brings old bytes back differs from kind to kind; each
says so in its own docstring. It does not know what a branch is.
"""

from typing import Any, Protocol, runtime_checkable

from harness.errors import ConfigError, VersionConflictError
from harness.records.document import Record

__all__ = ["Joinable", "Resource", "Snapshot", "by_id", "conflict"]


class Snapshot(Record, frozen=True, kw_only=True):
    """A resource at one moment: content and version belong together."""

    content: bytes | None
    """None when it is absent."""
    token: str | None
    """None when the store gives no version."""


class Resource(Protocol):
    """One versioned thing; see the module for the contract."""

    @property
    def resource_id(self) -> str:
        """Name it the same in every process."""

    def version(self) -> str | None:
        """Return the token of what is there now."""

    def read(self) -> Snapshot:
        """Return content and token of what is there now."""

    def write(self, content: bytes | None, expected: str) -> str:
        """Replace the version `expected`; return the new token."""


@runtime_checkable
class Joinable(Protocol):
    """A resource that lives in a database, and may live in the gate's own."""

    def within(self, connection: Any) -> Resource | None:
        """Return the resource as part of that transaction, or None in another database."""


def by_id(*resources: Resource) -> dict[str, Resource]:
    """Return resource id -> resource; raise ConfigError when two share an id."""
    named = {resource.resource_id: resource for resource in resources}
    if len(named) != len(resources):
        raise ConfigError("two resources have the same id; give each of them once")
    return named


def conflict(resource_id: str, expected: str, found: str | None) -> VersionConflictError:
    """Return the error of a conditional write that found another version."""
    advice = "nothing was written; read it again"
    return VersionConflictError(f"{resource_id}: expected {expected}, found {found}; {advice}")
