"""A run that orders, pays and mails: change one step, see where the boundary goes."""

from typing import Any

from msgspec.structs import replace

from harness.planner.effects import (
    MemoryEffectStore,
    SideEffectStep,
    StepEffect,
    Trajectory,
    recorded_step,
)

NOW = "2026-01-01T00:00:00+00:00"
LATER = "2026-06-01T00:00:00+00:00"


def clock() -> str:
    return NOW


def a_step(name: str, **changes: Any) -> SideEffectStep:
    """Return a side effect that has nothing in common with a step of another name."""
    fields: dict[str, Any] = {
        "step_id": name,
        "tool": "post",
        "arguments": {"to": f"{name}asked"},
        "token": f"token-{name}",
        "payload": {"id": f"{name}got"},
        "dependencies": (),
    }
    return recorded_step(**{**fields, **changes})


def a_read(name: str, **changes: Any) -> SideEffectStep:
    """Return a read-only step without a token."""
    return a_step(name, tool="get", effect=StepEffect.READ_ONLY, token=None, **changes)


def unrecorded(step: SideEffectStep) -> SideEffectStep:
    """Return the step as it would be had its response been lost."""
    return replace(step, payload=None, payload_digest=None)


def untokened(step: SideEffectStep) -> SideEffectStep:
    """Return the step as it would be had no token been recorded."""
    return replace(step, token=None)


def a_trajectory(*steps: SideEffectStep) -> Trajectory:
    return Trajectory(source="run", steps=steps)


def a_store(*steps: SideEffectStep) -> MemoryEffectStore:
    """Return a store that holds every step with a token and a response."""
    store = MemoryEffectStore()
    for step in steps:
        if step.token is not None and step.is_recorded:
            store.put(step)
    return store
