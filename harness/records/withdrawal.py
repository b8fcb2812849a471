"""Withdrawals: tolerances that a drift alarm has put out of use before their time."""

from harness.records.document import Document, Record

__all__ = ["Withdrawal", "Withdrawals"]


class Withdrawal(Record, frozen=True, kw_only=True):
    """One tolerance, put out of use by the alarm of one replica."""

    file_digest: str
    """Digest of the tolerance file: another file, calibrated since, is not meant."""
    tolerance_id: str
    """The tolerance in it."""
    replica: str
    """The server whose replays raised the alarm."""
    commit_id: str
    """The commit whose replay raised it."""
    withdrawn_at: str
    """When, UTC, ISO 8601."""
    alpha: float
    """False-alarm bound of the alarm."""
    num_exceeded: int
    """Replays beyond the floor, up to the last that was judged."""
    num_observed: int
    """Replays counted."""


class Withdrawals(Document, frozen=True, kw_only=True):
    """The file beside a tolerance file that says which of its tolerances are out of use."""

    withdrawals: tuple[Withdrawal, ...]
    """One a tolerance at most: the first alarm counts."""
    digest: str = ""
    """Digest of the whole file without this field; set when it is written."""
