"""Decides whether one recorded step can be verified now, and if not, why.

`RULES` is the whole decision: the first rule that applies gives the reason, and only a side effect
that none applies to is verified. The table in `docs/effects.md` is made from it.

It does not know the rest of the trajectory, and reads no clock: the time is passed in.
"""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from harness.planner.effects.instant import instant
from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.store import StoredEffect
from harness.records.document import Record

__all__ = ["RULES", "Rule", "StepReason", "verify_step"]


class StepReason(StrEnum):
    """What verification found about a step."""

    READ_NOT_RECORDED = "read_not_recorded"
    """Changes nothing, but its response was not recorded, so it cannot be shown again."""
    READ_ONLY = "read_only"
    """Changes nothing; its recorded response is shown again and needs no token."""
    TOKEN_NOT_RECORDED = "token_not_recorded"  # noqa: S105 - a finding, no secret
    """A side effect without an idempotency token: sent again, it would happen again."""
    RESPONSE_NOT_RECORDED = "response_not_recorded"
    """A side effect whose response was not recorded: nothing to hold the store's answer against."""
    TOKEN_UNKNOWN = "token_unknown"  # noqa: S105 - a finding, no secret
    """The store never saw the token."""
    SUPERSEDED = "superseded"
    """Another token's response has taken this one's place."""
    EVICTED = "evicted"
    """The store has dropped the token's response."""
    EXPIRED = "expired"
    """The service has forgotten the token: sent again, it would happen again."""
    REQUEST_CHANGED = "request_changed"
    """The store holds the token for another tool or other arguments."""
    PAYLOAD_CHANGED = "payload_changed"
    """The stored response is not, byte for byte, the one that the run saw."""
    VERIFIED = "verified"
    """The store holds the token, for this call, with this response, and it has not expired."""

    @property
    def is_boundary(self) -> bool:
        """Whether a step of this kind is an unverifiable side effect."""
        return self not in _NO_BOUNDARY


_NO_BOUNDARY = {StepReason.READ_ONLY, StepReason.READ_NOT_RECORDED, StepReason.VERIFIED}


class Rule(Record, frozen=True, kw_only=True):
    """One line of the decision."""

    reason: StepReason
    """What is found when the rule applies."""
    applies: Callable[[SideEffectStep, StoredEffect | None, datetime], bool]
    """Asked with the step, what the store holds under its token, and the time; every rule may
    rely on none before it having applied."""


def _has_expired(step: SideEffectStep, stored: StoredEffect | None, now: datetime) -> bool:
    """Whichever of the two instants comes first counts, and the instant itself is too late."""
    ends = {step.expires_at, stored.expires_at if stored else None}
    return any(now >= instant(end, "expires_at") for end in ends if end is not None)


RULES = (
    Rule(
        reason=StepReason.READ_NOT_RECORDED,
        applies=lambda step, _stored, _now: not (step.is_side_effect or step.is_recorded),
    ),
    Rule(
        reason=StepReason.READ_ONLY,
        applies=lambda step, _stored, _now: not step.is_side_effect,
    ),
    Rule(
        reason=StepReason.TOKEN_NOT_RECORDED,
        applies=lambda step, _stored, _now: step.token is None,
    ),
    Rule(
        reason=StepReason.RESPONSE_NOT_RECORDED,
        applies=lambda step, _stored, _now: not step.is_recorded,
    ),
    Rule(
        reason=StepReason.TOKEN_UNKNOWN,
        applies=lambda _step, stored, _now: stored is None,
    ),
    Rule(
        reason=StepReason.SUPERSEDED,
        applies=lambda _step, stored, _now: bool(stored and stored.superseded_by is not None),
    ),
    Rule(
        reason=StepReason.EVICTED,
        applies=lambda _step, stored, _now: bool(stored and stored.payload is None),
    ),
    Rule(reason=StepReason.EXPIRED, applies=_has_expired),
    Rule(
        reason=StepReason.REQUEST_CHANGED,
        applies=lambda step, stored, _now: (
            stored is None or stored.request_digest != step.request_digest
        ),
    ),
    Rule(
        reason=StepReason.PAYLOAD_CHANGED,
        applies=lambda step, stored, _now: (
            stored is None or stored.payload_digest != step.payload_digest
        ),
    ),
)
"""In the order they are asked."""


def verify_step(step: SideEffectStep, stored: StoredEffect | None, now: datetime) -> StepReason:
    """Return what is found about `step`, given what the store holds under its token at `now`."""
    for rule in RULES:
        if rule.applies(step, stored, now):
            return rule.reason
    return StepReason.VERIFIED
