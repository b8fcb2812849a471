"""Decides what a branch is: its steps, the versions it saw, what it would write, its verdict.

Rules kept here:

* a branch that writes names the bytes it would write, and None where it would delete;
* a version is what the store said (`token`) together with how often the gate had changed that
  resource by then (`generation`). The bytes of an old version that come back are the same token
  in many stores; they are never the same generation;
* a tool result carries the versions of what it read; a resource whose store gave no version is
  written down as None, never left out.

It does not know how a resource is read or where a branch is stored.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from harness.codec import digest
from harness.errors import InvalidRecordError
from harness.records.document import Document, Record

__all__ = [
    "Branch",
    "BranchVerdict",
    "Read",
    "ReadSet",
    "ResourceVersion",
    "Step",
    "StepKind",
    "WriteSet",
    "effects_digest",
    "reads_of",
]


class StepKind(StrEnum):
    """What one step of a branch is."""

    THOUGHT = "thought"
    """Reasoning; touches nothing."""
    TOOL_CALL = "tool_call"
    """What was asked of a tool."""
    TOOL_RESULT = "tool_result"
    """What the tool answered, with the versions it read."""


class ResourceVersion(Record, frozen=True, kw_only=True):
    """One version of one resource, as it was seen."""

    token: str
    """What the store calls it: a counter, an ETag, a digest; opaque, compared for equality."""
    generation: int = 0
    """How many writes the gate had made to the resource before it was read; 0 is none."""

    def __post_init__(self) -> None:
        """A token says something; a generation counts."""
        if not self.token:
            raise InvalidRecordError("a version's token is empty; use None for a missing version")
        if self.generation < 0:
            raise InvalidRecordError(f"generation {self.generation} is below 0")

    def __str__(self) -> str:
        """Short enough for a message."""
        return f"{self.token} (generation {self.generation})"


ReadSet = dict[str, ResourceVersion | None]
"""Resource id -> the version seen; None when its store gave none."""
WriteSet = dict[str, bytes | None]
"""Resource id -> the new content; None deletes."""


class Step(Record, frozen=True, kw_only=True):
    """One step of a branch, in the order it happened."""

    kind: StepKind
    """What it is."""
    text: str
    """The thought, the call, or the result."""
    reads: ReadSet = {}
    """What a tool result rests on."""

    def __post_init__(self) -> None:
        """Only a tool result reads."""
        if self.reads and self.kind is not StepKind.TOOL_RESULT:
            raise InvalidRecordError(f"a {self.kind} reads nothing; pin its tool result instead")


class BranchVerdict(Record, frozen=True, kw_only=True):
    """What the verifier said of the branch's reasoning, at the versions in its read set."""

    accepted: bool
    """Whether the branch may be committed."""
    score: float | None = None
    """The verifier's score, if it gives one."""
    note: str = ""
    """Its words."""

    def __post_init__(self) -> None:
        """A score is a finite number."""
        if self.score is not None and not abs(self.score) < float("inf"):
            raise InvalidRecordError(f"the verdict's score is {self.score!r}, not a finite number")


class Branch(Document, frozen=True, kw_only=True):
    """One candidate way to go on, and what it rests on."""

    branch_id: str
    """Unique in its store."""
    decision_id: str
    """The decision it is a candidate of; branches of one decision are siblings."""
    steps: tuple[Step, ...] = ()
    """In order."""
    read_set: ReadSet = {}
    """What it read beside the tool results of its steps."""
    write_set: WriteSet = {}
    """What it would change."""
    verdict: BranchVerdict | None = None
    """None until it is verified."""

    def __post_init__(self) -> None:
        """A branch and its decision have names."""
        if not self.branch_id or not self.decision_id:
            raise InvalidRecordError("a branch needs a branch_id and a decision_id")


class Read(Record, frozen=True, kw_only=True):
    """One resource at one version, as one branch saw it."""

    resource: str
    """Its id."""
    version: ResourceVersion | None
    """None when the store gave none."""


def reads_of(branch: Branch) -> Iterator[Read]:
    """Yield everything the branch read, each resource and version once, in order.

    A branch that saw a resource move has read two versions of it; both are yielded.
    """
    seen = set()
    for reads in (branch.read_set, *(step.reads for step in branch.steps)):
        for read in _each(reads):
            if read not in seen:
                seen.add(read)
                yield read


def effects_digest(branch: Branch) -> str:
    """Return a digest of what committing the branch would do, whatever it was verified against."""
    return digest([branch.branch_id, branch.decision_id, branch.write_set])


def _each(reads: Mapping[str, ResourceVersion | None]) -> Iterator[Read]:
    return (Read(resource=name, version=version) for name, version in reads.items())
