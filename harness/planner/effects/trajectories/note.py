"""The note about an effect that a recorder may leave beside a tool call in a public format.

Public trajectory formats have no place for an idempotency token. Whoever records one writes it as
an object under the key ``effect`` of the tool call (OpenAI) or of the action (mini-SWE-agent)::

    "effect": {"token": "ord-17", "expires_at": "2026-06-01T00:00:00+00:00", "depends_on": ["c1"]}

A call without a note is a side effect without a token: it cannot be verified. The call's own id is
no token; a model made it up, and no service has promised anything for it.
"""

from typing import Any

from harness.planner.effects.step import SideEffectStep, StepEffect, recorded_step
from harness.records.document import Record

__all__ = ["EffectNote", "Response", "noted_step"]


class EffectNote(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recorder knew about a call's effect; every field may be left out."""

    token: str | None = None
    """Idempotency token that the call was sent with."""
    expires_at: str | None = None
    """Instant from which the service forgets the token, ISO 8601 with an offset."""
    read_only: bool = False
    """Whether the call is known to change nothing."""
    depends_on: tuple[str, ...] | None = None
    """Ids of the earlier calls that this one was built on; None where nobody knew."""


class Response(Record, frozen=True, kw_only=True):
    """A response that was recorded; its payload may be null."""

    payload: Any
    """Any JSON value."""


def noted_step(note: EffectNote, response: Response | None, **call: Any) -> SideEffectStep:
    """Return the step of a call, with what the note says and the response, if one was recorded.

    Raises InvalidRecordError when the note breaks a rule of the step.
    """
    call["effect"] = StepEffect.READ_ONLY if note.read_only else StepEffect.SIDE_EFFECT
    call |= {"token": note.token, "expires_at": note.expires_at, "dependencies": note.depends_on}
    if response is None:
        return SideEffectStep(**call)
    return recorded_step(payload=response.payload, **call)
