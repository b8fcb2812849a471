"""Values of numeric switches as records hold them: requested beside resolved."""

from collections.abc import Mapping

__all__ = ["SwitchValue", "SwitchValues", "differing_switches"]

SwitchValue = bool | int | str | None
"""None: the switch does not exist on this device or in this library version."""

SwitchValues = dict[str, SwitchValue]
"""Switch name -> value; names are those of `harness.conditions.switches`."""


def differing_switches(
    commit: Mapping[str, SwitchValue], replay: Mapping[str, SwitchValue]
) -> tuple[str, ...]:
    """Return the names whose values differ, a name absent on one side included, sorted.

    Values of different types differ, as their digests do: `True` is not `1`.
    """
    names = sorted(commit.keys() | replay.keys())
    return tuple(name for name in names if _typed(commit, name) != _typed(replay, name))


def _typed(values: Mapping[str, SwitchValue], name: str) -> tuple[bool, type, SwitchValue]:
    value = values.get(name)
    return name in values, type(value), value
