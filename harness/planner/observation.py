"""Decides how the gate sees the world: each resource's version now, and what a write would replace.

A generation is read before the token, never after: a write that comes between then makes the pair
older than the world, which is stale by mistake, never current by mistake.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from harness.errors import ConfigError, nearest
from harness.planner.branch import ResourceVersion
from harness.planner.resources.resource import Joinable, Resource, Snapshot
from harness.planner.ruling import Found
from harness.records.document import Record

if TYPE_CHECKING:
    from harness.planner.commit_store import CommitStore, GateTransaction
    from harness.planner.gate_records import Head

__all__ = ["Pinned", "World", "pin"]


class Pinned(Record, frozen=True, kw_only=True):
    """What a branch read, with the version to put in its read set."""

    content: bytes | None
    """None when the resource is absent."""
    version: ResourceVersion | None
    """None when its store gives none: the gate will refuse a branch that rests on it."""


def pin(resource: Resource, store: "CommitStore") -> Pinned:
    """Read a resource for a branch."""
    generation = store.generation(resource.resource_id)
    snapshot = resource.read()
    return Pinned(content=snapshot.content, version=_version(snapshot.token, generation))


class World:
    """The resources, seen from inside one transaction of the gate."""

    def __init__(
        self,
        transaction: "GateTransaction",
        resources: Mapping[str, Resource],
        names: Iterable[str],
    ) -> None:
        """See `names`; see `look_up`."""
        self._transaction, self._resources = transaction, resources
        self.heads: dict[str, Head] = {}
        self._handles: dict[str, Resource] = {}
        self.look_up(names)

    def look_up(self, names: Iterable[str]) -> None:
        """Look up the heads of `names` as well; the resources are asked when they are needed.

        Raises ConfigError when one of them is not among the gate's resources.
        """
        if new := [name for name in names if name not in self.heads]:
            self._handles |= {name: self._handle(name) for name in new}
            self.heads |= self._transaction.heads(new)

    def handle(self, name: str) -> Resource:
        """Return the resource, joined to the transaction if it lives in the same database."""
        return self._handles[name]

    def is_inside(self, name: str) -> bool:
        """Whether the resource is written in the gate's own transaction."""
        return self._handles[name] is not self._resources[name]

    def found(self, token: Mapping[str, str | None]) -> dict[str, Found]:
        """Return every resource as it is now; where `token` knows it, it is not asked again."""
        return {
            name: Found(
                version=_version(
                    token[name] if name in token else self._handles[name].version(),
                    head.generation,
                ),
                written_by=head.branch_id,
            )
            for name, head in self.heads.items()
        }

    def snapshots(self, names: Iterable[str]) -> dict[str, Snapshot]:
        """Return content and token of each resource now."""
        return {name: self._handles[name].read() for name in names}

    def _handle(self, name: str) -> Resource:
        if name not in self._resources:
            advice = nearest(name, self._resources) if self._resources else "none is"
            raise ConfigError(f"resource {name!r} is not among the gate's resources; {advice}")
        resource = self._resources[name]
        joined = None
        if isinstance(resource, Joinable):
            joined = resource.within(self._transaction.connection)
        return joined or resource


def _version(token: str | None, generation: int) -> ResourceVersion | None:
    return None if token is None else ResourceVersion(token=token, generation=generation)
