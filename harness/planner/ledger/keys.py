"""Names a cache entry so that two branches never mean different contents by one name.

Rules kept here:

* an entry belongs to the branch that wrote it: (branch, name, generation) is one content, for ever;
* promotion does not rename an entry, so what was computed from it keeps its meaning;
* `SHARED` is the branch of what no branch wrote: what was in the cache before the ledger;
* an address is injective: no choice of names makes two entries share one.

It does not know what an entry holds, nor who may see it.
"""

from urllib.parse import quote

from harness.errors import InvalidRecordError
from harness.records.document import Record

__all__ = ["SHARED", "CacheKey"]

SHARED = ""
"""Branch of the entries that were there before any branch. It is never in flight, never dead."""


class CacheKey(Record, frozen=True, kw_only=True, order=True, cache_hash=True, gc=False):
    """One cache entry: a name inside the namespace of the branch that wrote it."""

    branch_id: str
    """The branch that wrote it; `SHARED` when none did."""
    name: str
    """The key as the cache's user knows it."""
    generation: int = 0
    """Counts the contents that one branch gave one name; a ledger hands them out."""

    def __post_init__(self) -> None:
        """The name is not empty, the generation not negative, and both can be written as UTF-8."""
        if not self.name or self.generation < 0:
            raise InvalidRecordError(f"no cache key: {self!r}; it has a name and a generation >= 0")
        try:
            self.branch_id.encode()
            self.name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecordError(f"no cache key: {self!r} is not UTF-8 ({error})") from error

    @property
    def address(self) -> str:
        """The key to use in a cache that all branches share: ``branch/name``, then ``@generation``.

        Percent-encoded: the first slash ends the branch, the only ``@`` begins the generation.
        """
        plain = f"{quote(self.branch_id, safe='')}/{quote(self.name, safe='/:')}"
        return f"{plain}@{self.generation}" if self.generation else plain

    def __str__(self) -> str:
        """Return what messages show: the address."""
        return self.address
