"""Decides whether two invocations are parameterised identically, and names what differs.

Rules kept here:

* resolved values are compared, never what was asked for;
* the order is fixed: build, batch membership, precision mode, reduction order;
* every difference carries both values, as short text.

It never sees a score.
"""

from collections.abc import Mapping

from harness.judge.membership import UNOBSERVED, differing_membership
from harness.records.build import Build, differing_facts
from harness.records.invocation import Invocation, PrecisionMode, ReductionOrder
from harness.records.switches import SwitchValue, differing_switches
from harness.records.tolerance import Equivalence
from harness.records.verdict import DifferingParameter

__all__ = [
    "differing_build",
    "differing_order",
    "differing_parameters",
    "differing_precision",
    "not_the_same",
]

SHOWN = 48
"""Longest value shown whole, characters: a digest is cut, a version or a device name is not."""


def differing_parameters(
    commit: Invocation, replay: Invocation, equivalence: Equivalence = Equivalence.EXACT
) -> tuple[DifferingParameter, ...]:
    """Return every parameter in which the two differ; nothing when they are the same computation.

    `equivalence` says when two memberships count as equal.
    """
    return (
        *differing_build(commit.build, replay.build),
        *differing_membership(commit.batch_membership, replay.batch_membership, equivalence),
        *differing_precision(commit.precision_mode, replay.precision_mode),
        *differing_order(commit.reduction_order, replay.reduction_order),
    )


def differing_build(commit: Build, replay: Build) -> tuple[DifferingParameter, ...]:
    """Return the checked facts in which two builds differ."""
    left, right = commit.checked(), replay.checked()
    return tuple(
        _differs(f"build.{name}", _fact(left, name), _fact(right, name))
        for name in differing_facts(commit, replay)
    )


def differing_precision(
    commit: PrecisionMode, replay: PrecisionMode
) -> tuple[DifferingParameter, ...]:
    """Return the name and the resolved switches in which two precision modes differ."""
    return (
        *_named("precision_mode", commit.name, replay.name),
        *_switched("precision_mode", commit.resolved, replay.resolved),
    )


def differing_order(
    commit: ReductionOrder, replay: ReductionOrder
) -> tuple[DifferingParameter, ...]:
    """Return the name, resolved switches and fingerprints in which two reduction orders differ."""
    return (
        *_named("reduction_order", commit.name, replay.name),
        *_switched("reduction_order", commit.resolved, replay.resolved),
        *_switched("reduction_order.fingerprints", commit.fingerprints, replay.fingerprints),
    )


def not_the_same(differing: tuple[DifferingParameter, ...]) -> str:
    """Return why two computations that differ so are no evidence about each other."""
    if all(one.name == UNOBSERVED for one in differing):
        what = "not known to be the same computation"
    else:
        what = "another computation"
    return f"{what}, no evidence about the commit: {'; '.join(map(_clause, differing))}"


def _clause(one: DifferingParameter) -> str:
    values = f"{one.commit} at commit and {one.replay} at replay"
    if one.name == UNOBSERVED:
        return f"who was computed together was {values}, and this build is not certified invariant"
    return f"{one.name} was {values}"


def _fact(checked: Mapping[str, object], name: str) -> str:
    """Return the text of a checked fact; the first dot parts a field from its entry."""
    field, _, entry = name.partition(".")
    value = checked[field]
    if entry and isinstance(value, Mapping):
        value = value.get(entry, "absent")
    return str(value)


def _named(parameter: str, commit: str, replay: str) -> tuple[DifferingParameter, ...]:
    if commit == replay:
        return ()
    return (_differs(f"{parameter}.name", str(commit), str(replay)),)


def _switched(
    parameter: str, commit: Mapping[str, SwitchValue], replay: Mapping[str, SwitchValue]
) -> tuple[DifferingParameter, ...]:
    return tuple(
        _differs(f"{parameter}.{name}", _setting(commit, name), _setting(replay, name))
        for name in differing_switches(commit, replay)
    )


def _setting(values: Mapping[str, SwitchValue], name: str) -> str:
    if name not in values:
        return "absent"
    value = values[name]
    return "not available" if value is None else str(value)


def _differs(name: str, commit: str, replay: str) -> DifferingParameter:
    start = _first_difference(commit, replay)
    return DifferingParameter(name=name, commit=_cut(commit, start), replay=_cut(replay, start))


def _first_difference(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _cut(text: str, start: int) -> str:
    """Return `text`, or the stretch of it around `start` when it is long."""
    if len(text) <= SHOWN:
        return text
    begin = max(0, start - SHOWN // 2)
    end = begin + SHOWN
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
