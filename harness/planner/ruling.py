"""Decides, from records alone, whether a branch may be committed: the gate's pure core.

The rule, over the union of what the branch and its unresolved siblings read:

1. a resource without a version, when it was read or now, refuses the branch;
2. a write to something that the branch itself never read refuses it: that is a blind write;
3. a stale read of a resource that the branch writes refuses it;
4. any other stale read holds it: the reasoning may stand, and must be verified again;
5. otherwise it commits.

Siblings count because the choice between them was made on what each of them saw. A version is
current when its token and its generation both are: equal bytes under a new generation are stale.

It does not read a resource, a store or a clock.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from harness.errors import CommitRefusedError, StaleVerificationError
from harness.planner.branch import Branch, ResourceVersion, reads_of
from harness.records.document import Record

__all__ = [
    "Found",
    "Refusal",
    "RefusalReason",
    "Ruling",
    "StaleRead",
    "refusal_error",
    "rule",
    "union_of_reads",
]


class RefusalReason(StrEnum):
    """Why a branch will never be committed."""

    UNVERSIONED = "unversioned"
    """A resource that was read has no version, so nothing can be compared."""
    BLIND_WRITE = "blind-write"
    """It writes a resource that it never read."""
    STALE_WRITE = "stale-write"
    """It writes a resource that has moved since it, or a sibling, was verified."""
    REJECTED = "rejected"
    """Its verifier did not accept it."""
    WORLD_KEEPS_MOVING = "world-keeps-moving"
    """It was verified again as often as allowed, and each time something had moved."""
    OVERTAKEN = "overtaken"
    """Somebody outside the gate wrote while the commit was being applied; it was taken back."""


class Found(Record, frozen=True, kw_only=True):
    """A resource as it is now."""

    version: ResourceVersion | None
    """None when its store gives none."""
    written_by: str = ""
    """Branch whose write through the gate was the last; empty when there was none."""


class StaleRead(Record, frozen=True, kw_only=True):
    """A read whose resource has moved."""

    resource: str
    """Its id."""
    read_by: str
    """The branch that read it: the one to be committed, or a sibling."""
    verified: ResourceVersion | None
    """The version that was verified against."""
    found: ResourceVersion | None
    """The version that is there now."""
    written_by: str = ""
    """The branch that last wrote it through the gate since; empty when somebody else did."""

    def __str__(self) -> str:
        """One clause of a message."""
        writer = f"branch {self.written_by!r} wrote it" if self.written_by else "writer unknown"
        seen = f"branch {self.read_by!r} was verified against {self.resource} at {self.verified}"
        return f"{seen}, found {self.found} ({writer})"


class Refusal(Record, frozen=True, kw_only=True):
    """Why a branch was refused."""

    branch_id: str
    """The branch."""
    reason: RefusalReason
    """The rule it broke."""
    reads: tuple[StaleRead, ...] = ()
    """The reads that broke it, the first one foremost."""
    note: str = ""
    """What the reason needs beside them: a verifier's words, what could not be taken back."""

    def __str__(self) -> str:
        """What was wrong, where, and what to do."""
        about = "; ".join([*map(str, self.reads), *filter(None, [self.note])])
        return f"branch {self.branch_id!r} refused ({self.reason}): {about}; {ADVICE[self.reason]}"


ADVICE = {
    RefusalReason.UNVERSIONED: "read it through a store that gives versions, and verify again",
    RefusalReason.BLIND_WRITE: "read it first, as absent if it is, and verify that",
    RefusalReason.STALE_WRITE: "fork a new branch from the current version",
    RefusalReason.REJECTED: "fork another branch",
    RefusalReason.WORLD_KEEPS_MOVING: "commit when its resources are quieter, from a new branch",
    RefusalReason.OVERTAKEN: "fork a new branch from the current version",
}


class Ruling(Record, frozen=True, kw_only=True):
    """What the gate decides: refuse, else hold, else commit."""

    refusal: Refusal | None = None
    """Set: never to be committed."""
    stale: tuple[StaleRead, ...] = ()
    """Not empty: to be verified again first."""

    @property
    def commits(self) -> bool:
        """Whether nothing stands against it."""
        return self.refusal is None and not self.stale


def rule(branch: Branch, siblings: Iterable[Branch], found: Mapping[str, Found]) -> Ruling:
    """Return the ruling on `branch`, given every resource of the union as it is now.

    `found` must hold each resource in `union_of_reads`; KeyError otherwise.
    """
    stale = tuple(_stale([branch, *siblings], found))
    unversioned = [r for r in stale if r.verified is None or r.found is None]
    written = [r for r in stale if r.resource in branch.write_set]
    if unversioned:
        return _refused(branch, RefusalReason.UNVERSIONED, unversioned)
    if blind := _never_read(branch):
        note = f"it writes {', '.join(blind)} without having read it"
        return _refused(branch, RefusalReason.BLIND_WRITE, (), note)
    if written:
        return _refused(branch, RefusalReason.STALE_WRITE, written)
    return Ruling(stale=stale)


def union_of_reads(branches: Iterable[Branch]) -> list[str]:
    """Return the ids of every resource that any of `branches` read, sorted."""
    return sorted({read.resource for branch in branches for read in reads_of(branch)})


def refusal_error(refusal: Refusal) -> CommitRefusedError:
    """Return the error that says `refusal`."""
    stale = refusal.reason is RefusalReason.STALE_WRITE
    return (StaleVerificationError if stale else CommitRefusedError)(str(refusal), refusal)


def _stale(branches: Iterable[Branch], found: Mapping[str, Found]) -> Iterator[StaleRead]:
    for branch in branches:
        for read in reads_of(branch):
            now = found[read.resource]
            if now.version is None or read.version != now.version:
                yield StaleRead(
                    resource=read.resource,
                    read_by=branch.branch_id,
                    verified=read.version,
                    found=now.version,
                    written_by=_writer(read.version, now),
                )


def _writer(seen: ResourceVersion | None, now: Found) -> str:
    """Name the last writer through the gate, if it wrote after the read."""
    if seen is None or now.version is None or now.version.generation <= seen.generation:
        return ""
    return now.written_by


def _never_read(branch: Branch) -> list[str]:
    return sorted(branch.write_set.keys() - {read.resource for read in reads_of(branch)})


def _refused(
    branch: Branch, reason: RefusalReason, reads: Iterable[StaleRead], note: str = ""
) -> Ruling:
    refusal = Refusal(branch_id=branch.branch_id, reason=reason, reads=tuple(reads), note=note)
    return Ruling(refusal=refusal)
