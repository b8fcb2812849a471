"""Decides in what two batch memberships differ, under a certified equivalence.

Rules kept here:

* `exact`: per step the same shape, padding and inert rows included, and, row by row, the same
  contents and token counts, scoring the same branches. Request ids are labels and are not compared;
* `shape`: the decision's own rows as under `exact`; a companion only by its token counts;
* `any`: the branches' own contents, wherever and with whomever they were computed;
* a membership that was only requested, not observed, is equal to none, except under `any`.

It does not know whether an equivalence is deserved; a calibration certifies that.
"""

from collections.abc import Iterator

from harness.records.membership import BatchMembership, MembershipSource, Slot, Step
from harness.records.tolerance import Equivalence
from harness.records.verdict import DifferingParameter

__all__ = ["UNOBSERVED", "differing_membership"]

NAME = "batch_membership"
UNOBSERVED = f"{NAME}.source"
"""Name of the parameter in which two memberships differ when one of them was only requested."""


def differing_membership(
    commit: BatchMembership, replay: BatchMembership, equivalence: Equivalence
) -> tuple[DifferingParameter, ...]:
    """Return what differs, in the first step that differs; nothing when the two are equal."""
    if equivalence is Equivalence.ANY:
        return tuple(_differing_contents(commit, replay))
    return (*_differing_steps(commit, replay, equivalence), *_unobserved(commit, replay))


def _differing_contents(
    commit: BatchMembership, replay: BatchMembership
) -> Iterator[DifferingParameter]:
    left, right = _contents(commit), _contents(replay)
    for branch_id in sorted(left.keys() | right.keys()):
        here, there = left.get(branch_id, ()), right.get(branch_id, ())
        if here != there:
            yield _differs(f"contents[{branch_id}]", _listed(here), _listed(there))


def _contents(membership: BatchMembership) -> dict[str, tuple[str, ...]]:
    """Return branch -> the distinct contents that scored it, in the order they ran."""
    found: dict[str, dict[str, None]] = {}
    for step in membership.steps:
        for slot in step.slots:
            if slot.branch_id is not None:
                found.setdefault(slot.branch_id, {})[slot.content_digest] = None
    return {branch_id: tuple(digests) for branch_id, digests in found.items()}


def _differing_steps(
    commit: BatchMembership, replay: BatchMembership, equivalence: Equivalence
) -> tuple[DifferingParameter, ...]:
    if len(commit.steps) != len(replay.steps):
        return (_differs("num_steps", _size(commit), _size(replay)),)
    for at, (left, right) in enumerate(zip(commit.steps, replay.steps, strict=True)):
        found = tuple(_differing_parts(left, right, equivalence, f"steps[{at}]"))
        if found:
            return found
    return ()


def _differing_parts(
    commit: Step, replay: Step, equivalence: Equivalence, at: str
) -> Iterator[DifferingParameter]:
    if commit.padded_width != replay.padded_width:
        width = str(commit.padded_width), str(replay.padded_width)
        yield _differs(f"{at}.padded_width", *width)
    if commit.padding_side != replay.padding_side:
        yield _differs(f"{at}.padding_side", str(commit.padding_side), str(replay.padding_side))
    if commit.padded_rows != replay.padded_rows:
        yield _differs(f"{at}.padded_rows", str(commit.padded_rows), str(replay.padded_rows))
    if len(commit.slots) != len(replay.slots):
        yield _differs(f"{at}.num_rows", str(len(commit.slots)), str(len(replay.slots)))
        return
    for row, (left, right) in enumerate(zip(commit.slots, replay.slots, strict=True)):
        if _compared(left, equivalence) != _compared(right, equivalence):
            yield _differs(f"{at}.slots[{row}]", _told(left), _told(right))
            return


def _compared(slot: Slot, equivalence: Equivalence) -> tuple[str | None, str, int, int]:
    """Return what must be equal in a slot."""
    content, num_tokens, num_computed = slot.computation()
    if equivalence is Equivalence.SHAPE and slot.branch_id is None:
        content = ""
    return slot.branch_id, content, num_tokens, num_computed


def _unobserved(commit: BatchMembership, replay: BatchMembership) -> tuple[DifferingParameter, ...]:
    if MembershipSource.REQUESTED in (commit.source, replay.source):
        return (_differs("source", commit.source.value, replay.source.value),)
    return ()


def _differs(part: str, commit: str, replay: str) -> DifferingParameter:
    return DifferingParameter(name=f"{NAME}.{part}", commit=commit, replay=replay)


def _size(membership: BatchMembership) -> str:
    return f"{len(membership.steps)} (up to {membership.max_rows} rows of {membership.max_width})"


def _told(slot: Slot) -> str:
    who = "companion" if slot.branch_id is None else f"branch {slot.branch_id}"
    after = f" after {slot.num_computed_tokens}" if slot.num_computed_tokens else ""
    return f"{who}: {_short(slot.content_digest)}, {slot.num_tokens} tokens{after}"


def _listed(digests: tuple[str, ...]) -> str:
    return ", ".join(_short(one) for one in digests) or "absent"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
