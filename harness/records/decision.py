"""A decision to be scored: one context with its candidate branches, as a JSON line gives it.

Also the item of a commit log's item store: the text behind a content digest, so that a companion
can be computed again.
"""

from harness.records.document import Record

__all__ = ["Branch", "Decision", "Item"]


class Branch(Record, frozen=True, kw_only=True):
    """One candidate."""

    branch_id: str
    """Unique within its decision."""
    text: str
    """What the verifier reads after the context."""
    label: int | None = None
    """1 right, 0 wrong, None unknown; reported, never used for a tolerance."""

    def __post_init__(self) -> None:
        """A branch has a name."""
        if not self.branch_id:
            raise ValueError("branch_id is empty")


class Decision(Record, frozen=True, kw_only=True):
    """A context and the branches that were considered in it."""

    decision_id: str
    """Unique within its file."""
    context: str
    """What all branches share."""
    branches: tuple[Branch, ...]
    """In file order, `[branches]`."""

    def __post_init__(self) -> None:
        """A decision has a name, branches, and no branch twice."""
        if not self.decision_id:
            raise ValueError("decision_id is empty")
        if not self.branches:
            raise ValueError(f"decision {self.decision_id!r} has no branches")
        names = [branch.branch_id for branch in self.branches]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"decision {self.decision_id!r} has branch {twice[0]!r} twice")


class Item(Record, frozen=True, kw_only=True):
    """The text of one row, found again by the digest of its tokens."""

    content_digest: str
    """Digest of the token ids that the model saw."""
    context: str
    """The decision's context."""
    text: str
    """The branch's text."""
