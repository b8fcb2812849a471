"""What a study is to show, and whether it does. Nothing follows from a target that is missed."""

from collections.abc import Sequence

from calibrate.power.findings import HonestFinding, ReplicaFinding, Target
from calibrate.power.replicas import Difference

__all__ = ["targets"]

ENOUGH = 1000
"""Honest replays without a fault."""
SOON = 5
"""Replays within which the alarm is to find another precision mode."""


def targets(honest: HonestFinding, replicas: Sequence[ReplicaFinding]) -> tuple[Target, ...]:
    """Return the targets; a precision mode that leaves no floor is none to be found."""
    modes = [
        one
        for one in replicas
        if one.difference is Difference.PRECISION and one.beyond_floor.num_events
    ]
    return _no_false_fault(honest), _at_once(modes), _soon(modes)


def _no_false_fault(honest: HonestFinding) -> Target:
    faults, decisions = honest.strict_faults, honest.decisions
    return Target(
        words=f"no false fault in at least {ENOUGH} honest replays",
        met=faults.num_events == 0 and faults.num_trials >= ENOUGH,
        found=f"{faults.num_events} of {faults.num_trials}, at most {faults.upper:.2%} of replays; "
        f"{decisions.num_events} of {decisions.num_trials} decisions, at most "
        f"{decisions.upper:.2%}",
    )


def _at_once(modes: Sequence[ReplicaFinding]) -> Target:
    counts = [(one.strict_faults.num_events, one.beyond_floor.num_events) for one in modes]
    told = [
        f"{one.name}: {found} of {beyond}, first at replay {_most(one.until_strict_fault.longest)}"
        for one, (found, beyond) in zip(modes, counts, strict=True)
    ]
    return Target(
        words="strict finds another precision mode in every replay beyond the floor",
        met=bool(modes) and all(found == beyond for found, beyond in counts),
        found="; ".join(told) or "none beyond the floor",
    )


def _soon(modes: Sequence[ReplicaFinding]) -> Target:
    longest = {one.name: one.until_alarm.longest for one in modes}
    return Target(
        words=f"the alarm finds it within {SOON} replays in every order",
        met=bool(modes) and all(one is not None and one <= SOON for one in longest.values()),
        found="; ".join(f"{name}: {_most(one)}" for name, one in longest.items())
        or "none beyond the floor",
    )


def _most(longest: int | None) -> str:
    return "never in some order" if longest is None else f"{longest} at most"
