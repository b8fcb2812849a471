"""The effect store: what each idempotency token answered, and which branches are contaminated.

Rules every store keeps:

* a token stands for one call and one response, for ever: putting the same again changes nothing,
  anything else under a known token is refused;
* an evicted or superseded token stays known as such, so it is never taken for one never seen, and
  never comes back;
* what is read is the stored bytes; their digest is computed from them, not stored beside them;
* a branch once contaminated stays so, with its first reason.

The store decides nothing about a replay, and holds no clock: expiry is judged by whoever reads.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from harness.codec import canonical_bytes
from harness.errors import InvalidRecordError
from harness.planner.effects.step import SideEffectStep
from harness.records.document import Record

__all__ = ["EffectStore", "StoredEffect", "refuse_conflict", "refuse_retiring", "stored_effect"]


class StoredEffect(Record, frozen=True, kw_only=True):
    """What a store holds under one token."""

    token: str
    """The idempotency token."""
    request_digest: str
    """Digest of the call that the token was sent with."""
    payload: bytes | None
    """Canonical bytes of the response; None once evicted."""
    expires_at: str | None = None
    """Instant from which the service forgets the token, ISO 8601; None where it never does."""
    superseded_by: str | None = None
    """The token whose response took this one's place; None where none did."""

    @property
    def is_retired(self) -> bool:
        """Whether the token was evicted or superseded."""
        return self.payload is None or self.superseded_by is not None

    @property
    def payload_digest(self) -> str | None:
        """Digest of the bytes that are stored now; None once evicted."""
        if self.payload is None:
            return None
        return f"sha256:{hashlib.sha256(self.payload).hexdigest()}"


class EffectStore(Protocol):
    """Where responses are kept by token; `tests/planner/test_effects_store.py` is the contract."""

    def put(self, step: SideEffectStep) -> None:
        """Keep a step's response under its token.

        Raises InvalidRecordError for a step without token or response, and for a token that is
        retired or stands for something else.
        """

    def effects(self, tokens: Iterable[str]) -> Mapping[str, StoredEffect]:
        """Return what is held under each of the tokens that is known, all at one moment."""

    def retire(self, token: str, *, superseded_by: str | None = None) -> None:
        """Evict a token's response, or note the token that supersedes it.

        Raises InvalidRecordError for a token that is not known, or that supersedes itself.
        """

    def contaminate(self, branch_id: str, reason: str) -> None:
        """Mark a branch as contaminated, for ever."""

    def contamination(self, branch_id: str) -> str | None:
        """Return why a branch is contaminated; None where it is not."""


def stored_effect(step: SideEffectStep) -> StoredEffect:
    """Return what a store keeps of a step; raise InvalidRecordError if that is nothing."""
    if step.token is None or not step.is_recorded:
        missing = "idempotency token" if step.token is None else "response"
        raise InvalidRecordError(f"step {step.step_id!r} has no {missing}: it cannot be stored")
    return StoredEffect(
        token=step.token,
        request_digest=step.request_digest,
        payload=canonical_bytes(step.payload),
        expires_at=step.expires_at,
    )


def refuse_conflict(held: StoredEffect | None, new: StoredEffect) -> None:
    """Raise InvalidRecordError if `new` cannot stand where `held` does."""
    if held is not None and held.is_retired:
        raise InvalidRecordError(f"token {new.token!r} is retired; a new call needs a new token")
    if held is not None and held != new:
        differing = [name for name in new.__struct_fields__ if _differs(held, new, name)]
        raise InvalidRecordError(
            f"token {new.token!r} already stands for another {', '.join(differing)}; "
            "give each call its own token"
        )


def refuse_retiring(held: StoredEffect | None, token: str, superseded_by: str | None) -> None:
    """Raise InvalidRecordError if `token` cannot be retired."""
    if held is None:
        raise InvalidRecordError(f"token {token!r} is not known: there is nothing to retire")
    if superseded_by == token:
        raise InvalidRecordError(f"token {token!r} cannot supersede itself")


def _differs(held: StoredEffect, new: StoredEffect, name: str) -> bool:
    return bool(getattr(held, name) != getattr(new, name))
