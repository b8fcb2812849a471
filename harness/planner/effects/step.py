"""One step of a trajectory: a tool call, the token it was sent with, and the response it gave.

Rules kept here:

* a step is a side effect unless it is declared read-only: nobody can know that a call changed
  nothing, so the cautious reading is the default;
* the full response is kept, and its digest is the digest of exactly these bytes;
* an idempotency token is a promise of the service that was called. The id that a model gave its
  tool call promises nothing and is never taken for one.

It does not know whether the token still holds: that is asked of a store, at a time.
"""

from enum import StrEnum
from typing import Any

from msgspec.structs import force_setattr

from harness.codec import digest
from harness.errors import InvalidRecordError
from harness.planner.effects.instant import instant
from harness.records.document import Record

__all__ = ["SideEffectStep", "StepEffect", "recorded_step", "request_digest"]


class StepEffect(StrEnum):
    """What a call does to the world."""

    SIDE_EFFECT = "side_effect"
    """It may change something; also whatever is not known to be read-only."""
    READ_ONLY = "read_only"
    """Declared to change nothing; its recorded response can be shown again."""


class SideEffectStep(Record, frozen=True, kw_only=True):
    """One tool call and its response, as they were recorded."""

    step_id: str
    """Name of the step, unique in its trajectory."""
    tool: str
    """Name of the tool that was called."""
    arguments: Any
    """The call's arguments, any JSON value."""
    request_digest: str = ""
    """Digest of tool and arguments; computed where it is left out."""
    effect: StepEffect = StepEffect.SIDE_EFFECT
    """What the call does to the world."""
    token: str | None = None
    """Idempotency token that the call was sent with; None where none was recorded."""
    payload: Any = None
    """The full response, any JSON value; None also where no response was recorded."""
    payload_digest: str | None = None
    """Digest of the canonical bytes of `payload`; None exactly where no response was recorded."""
    expires_at: str | None = None
    """Instant from which the service forgets the token, ISO 8601; None where it never does."""
    dependencies: tuple[str, ...] | None = None
    """Ids of the earlier steps that this one was built on; None where that was not declared."""

    def __post_init__(self) -> None:
        """Names are not empty, the expiry is an instant, and digests are of what stands there."""
        if not self.step_id or not self.tool:
            raise InvalidRecordError(f"step {self.step_id!r}: step_id and tool cannot be empty")
        if self.token == "":
            raise InvalidRecordError(f"step {self.step_id!r}: an empty token is none; leave it out")
        if self.expires_at is not None:
            instant(self.expires_at, f"step {self.step_id!r}: expires_at")
        if self.request_digest == "":
            force_setattr(self, "request_digest", request_digest(self.tool, self.arguments))
        else:
            self._check_digest("request_digest", [self.tool, self.arguments])
        if self.payload_digest is not None or self.payload is not None:
            self._check_digest("payload_digest", self.payload)

    @property
    def is_side_effect(self) -> bool:
        """Whether the call may have changed the world."""
        return self.effect is StepEffect.SIDE_EFFECT

    @property
    def is_recorded(self) -> bool:
        """Whether the response was recorded."""
        return self.payload_digest is not None

    def _check_digest(self, name: str, value: Any) -> None:
        found, given = digest(value), getattr(self, name)
        if found != given:
            raise InvalidRecordError(
                f"step {self.step_id!r}: {name} is {given}, but what stands there has {found}; "
                "take the step as it was recorded, or leave the digest to recorded_step()"
            )


def request_digest(tool: str, arguments: Any) -> str:
    """Return the digest of a call: its tool and its arguments."""
    return digest([tool, arguments])


def recorded_step(*, payload: Any, **fields: Any) -> SideEffectStep:
    """Return a step with the digest of its response.

    Raises InvalidRecordError when a field breaks a rule, also for what JSON cannot hold.
    """
    return SideEffectStep(payload=payload, payload_digest=digest(payload), **fields)
