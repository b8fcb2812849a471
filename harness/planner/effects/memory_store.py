"""An effect store in memory: for tests, and for a run that keeps nothing."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from harness.planner.effects.step import SideEffectStep
from harness.planner.effects.store import (
    StoredEffect,
    refuse_conflict,
    refuse_retiring,
    stored_effect,
)

__all__ = ["MemoryEffectStore"]


class MemoryEffectStore:
    """Token -> response, in a dictionary; ends with the process."""

    def __init__(self) -> None:
        """Start empty."""
        self._effects: dict[str, StoredEffect] = {}
        self._contaminated: dict[str, str] = {}

    def put(self, step: SideEffectStep) -> None:
        """Keep a step's response under its token."""
        new = stored_effect(step)
        refuse_conflict(self._effects.get(new.token), new)
        self._effects[new.token] = new

    def effects(self, tokens: Iterable[str]) -> Mapping[str, StoredEffect]:
        """Return what is held under each of the tokens that is known."""
        held = self._effects
        return {token: held[token] for token in tokens if token in held}

    def retire(self, token: str, *, superseded_by: str | None = None) -> None:
        """Evict a token's response, or note the token that supersedes it."""
        held = self._effects.get(token)
        refuse_retiring(held, token, superseded_by)
        change = {"payload": None} if superseded_by is None else {"superseded_by": superseded_by}
        self._effects[token] = replace(self._effects[token], **change)

    def contaminate(self, branch_id: str, reason: str) -> None:
        """Mark a branch as contaminated; the first reason stays."""
        self._contaminated.setdefault(branch_id, reason)

    def contamination(self, branch_id: str) -> str | None:
        """Return why a branch is contaminated; None where it is not."""
        return self._contaminated.get(branch_id)
