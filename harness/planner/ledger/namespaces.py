"""Decides which entry a branch means by a name, and which name an entry holds for all.

Rules kept here:

* a branch sees its own entry, else the one that was promoted under the name, else the shared one;
  never what a sibling wrote and has not promoted;
* another content under a name is another generation, and so is a clean content after an evicted
  one: what was computed from the old entry stays bound to the old entry;
* an evicted entry is not seen any more, by anyone, and never comes back; the name that it held
  falls to the latest entry promoted before it that is not evicted.

It does not know why an entry is evicted, nor what it was computed from.
"""

from collections.abc import Iterable, Iterator

from harness.errors import IllegalMoveError
from harness.planner.ledger.keys import SHARED, CacheKey

__all__ = ["Namespaces"]


class Namespaces:
    """The entries of every branch, and those promoted for all."""

    def __init__(self) -> None:
        """Start empty."""
        self._latest: dict[tuple[str, str], CacheKey] = {}
        self._versions: dict[CacheKey, str] = {}
        self._promoted: dict[str, list[CacheKey]] = {}
        self._of_branch: dict[str, dict[CacheKey, None]] = {}
        self.evicted: set[CacheKey] = set()
        """Entries that nobody sees any more."""

    def write(self, branch_id: str, name: str, version: str, *, clean: bool) -> CacheKey:
        """Return the entry that a write makes or repeats; `clean`: nothing it read is evicted."""
        key = self.written(branch_id, name, version, clean=clean)
        self._versions[key] = version
        self._admit(key)
        return key

    def written(self, branch_id: str, name: str, version: str, *, clean: bool) -> CacheKey:
        """Return the entry that such a write would make or repeat."""
        latest = self._latest.get((branch_id, name))
        if latest is None:
            return CacheKey(branch_id=branch_id, name=name)
        same = self._versions.get(latest, version) == version
        if same and not (clean and latest in self.evicted):
            return latest
        return CacheKey(branch_id=branch_id, name=name, generation=latest.generation + 1)

    def has_version(self, key: CacheKey, version: str) -> bool:
        """Return whether `key` was written, with this version."""
        return self._versions.get(key) == version

    def refuse_unknown(self, key: CacheKey) -> None:
        """Raise IllegalMoveError for a generation that was never handed out.

        Generation 0 may be read before its write is reported: reports come in any order.
        """
        latest = self._latest.get((key.branch_id, key.name))
        newest = 0 if latest is None else latest.generation
        if key.generation > newest:
            advice = "use the keys that the ledger returned"
            message = f"{key}: {key.name!r} is at generation {newest} there; {advice}"
            raise IllegalMoveError(message)

    def admit(self, key: CacheKey) -> None:
        """Take note of an entry that was read, or is a draft, whether or not it was written."""
        self.refuse_unknown(key)
        if key.generation == 0:
            self._admit(key)

    def visible(self, branch_id: str, name: str) -> CacheKey:
        """Return the entry that `branch_id` means by `name`."""
        own = self._latest.get((branch_id, name))
        if own is not None and own in self._versions and own not in self.evicted:
            return own
        return self.holder(name) or CacheKey(branch_id=SHARED, name=name)

    def holder(self, name: str) -> CacheKey | None:
        """Return the promoted entry that holds `name` for all."""
        promoted = reversed(self._promoted.get(name, ()))
        return next((key for key in promoted if key not in self.evicted), None)

    def promote(self, key: CacheKey) -> None:
        """Let `key` hold its name for all."""
        self._promoted.setdefault(key.name, []).append(key)

    def unpromoted(self, branch_id: str) -> tuple[CacheKey, ...]:
        """Return the branch's newest written entries that were not promoted yet."""
        return tuple(
            key
            for key in self._of_branch.get(branch_id, ())
            if key in self._versions
            and self._latest[branch_id, key.name] == key
            and key not in self._promoted.get(key.name, ())
        )

    def same_content(self, left: CacheKey, right: CacheKey) -> bool:
        """Return whether both were written with one version, and that version is known."""
        version = self._versions.get(left)
        return bool(version) and version == self._versions.get(right)

    def of(self, branch_id: str) -> tuple[CacheKey, ...]:
        """Return every entry of the branch, of every generation."""
        return tuple(self._of_branch.get(branch_id, ()))

    def named(self, name: str, branch_ids: Iterable[str]) -> Iterator[CacheKey]:
        """Yield the entries that bear `name`, of these branches and the shared one."""
        for branch_id in (SHARED, *branch_ids):
            latest = self._latest.get((branch_id, name))
            for generation in range(0 if latest is None else latest.generation + 1):
                yield CacheKey(branch_id=branch_id, name=name, generation=generation)

    def is_written(self, key: CacheKey) -> bool:
        """Return whether a write of `key` was reported."""
        return key in self._versions

    def _admit(self, key: CacheKey) -> None:
        place = key.branch_id, key.name
        if place not in self._latest or key.generation > self._latest[place].generation:
            self._latest[place] = key
        self._of_branch.setdefault(key.branch_id, {})[key] = None
