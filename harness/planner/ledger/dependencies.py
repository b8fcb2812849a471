"""The dependency graph: which cache entry was computed from which.

Rules kept here:

* an edge is added once and never removed: closures only grow;
* cycles are ordinary: every walk visits a key once;
* walks are breadth-first in the order in which edges came, so a path is shortest and repeatable.

It does not know branches; whoever asks says which keys it is looking for.
"""

from collections.abc import Callable, Iterable

from harness.planner.ledger.keys import CacheKey

__all__ = ["DependencyGraph"]

Edges = dict[CacheKey, dict[CacheKey, None]]


class DependencyGraph:
    """Keys and their edges, in both directions."""

    def __init__(self) -> None:
        """Start without edges."""
        self._sources: Edges = {}
        self._readers: Edges = {}

    def add(self, reader: CacheKey, source: CacheKey) -> bool:
        """Record that `reader` was computed from `source`; return whether that was new."""
        sources = self._sources.setdefault(reader, {})
        if source in sources:
            return False
        sources[source] = None
        self._readers.setdefault(source, {})[reader] = None
        return True

    def has(self, reader: CacheKey, source: CacheKey) -> bool:
        """Return whether the edge is known."""
        return source in self._sources.get(reader, ())

    def sources(self, key: CacheKey) -> tuple[CacheKey, ...]:
        """Return what `key` was computed from, directly."""
        return tuple(self._sources.get(key, ()))

    def readers(self, key: CacheKey) -> tuple[CacheKey, ...]:
        """Return what was computed from `key`, directly."""
        return tuple(self._readers.get(key, ()))

    def closure(self, starts: Iterable[CacheKey]) -> dict[CacheKey, None]:
        """Return all that `starts` were computed from, themselves included, nearest first."""
        return _reach(starts, self._sources, ())

    def dependents(
        self, starts: Iterable[CacheKey], without: "set[CacheKey] | tuple[()]" = ()
    ) -> dict[CacheKey, None]:
        """Return all computed from `starts`, themselves included, never entering `without`."""
        return _reach(starts, self._readers, without)

    def path(
        self, starts: Iterable[CacheKey], wanted: Callable[[CacheKey], bool]
    ) -> tuple[CacheKey, ...]:
        """Return a shortest path from one of `starts` to a wanted key; empty without one."""
        came_from: dict[CacheKey, CacheKey | None] = dict.fromkeys(starts)
        queue = list(came_from)
        for key in queue:
            if wanted(key):
                return _retrace(key, came_from)
            for source in self._sources.get(key, ()):
                if source not in came_from:
                    came_from[source] = key
                    queue.append(source)
        return ()


def _reach(
    starts: Iterable[CacheKey], edges: Edges, without: "set[CacheKey] | tuple[()]"
) -> dict[CacheKey, None]:
    found = dict.fromkeys(key for key in starts if key not in without)
    queue = list(found)
    for key in queue:
        for neighbour in edges.get(key, ()):
            if neighbour not in found and neighbour not in without:
                found[neighbour] = None
                queue.append(neighbour)
    return found


def _retrace(key: CacheKey, came_from: dict[CacheKey, CacheKey | None]) -> tuple[CacheKey, ...]:
    path, at = [key], came_from[key]
    while at is not None:
        path.append(at)
        at = came_from[at]
    return tuple(reversed(path))
