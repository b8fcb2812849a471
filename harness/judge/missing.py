"""Says what to calibrate when a record has no tolerance. Words only; no decision is taken here."""

from collections.abc import Iterable, Sequence

from harness.judge.parameters import differing_build, differing_order, differing_precision
from harness.records.batching import Lane
from harness.records.build import Build
from harness.records.invocation import Invocation
from harness.records.membership import BatchMembership
from harness.records.tolerance import CoveredBatches, Tolerance
from harness.records.verdict import DifferingParameter
from harness.records.withdrawal import Withdrawal

__all__ = ["batching_mode", "no_batches", "no_build", "no_condition", "withdrawn"]


def no_build(build: Build, calibrated: Sequence[Build]) -> str:
    """Return why no calibrated build speaks for `build`, and in what the nearest differs."""
    if not calibrated:
        return f"no tolerance file is given; calibrate build {_short(build.build_id)}"
    alike = [other for other in calibrated if other.device == build.device]
    if not alike:
        return _other_device(build, calibrated)
    nearest = min(alike, key=lambda other: (len(differing_build(build, other)), other.build_id))
    facts = _facts(differing_build(build, nearest))
    return (
        f"no tolerance for build {_short(build.build_id)}; the nearest calibrated build, "
        f"{_short(nearest.build_id)}, differs in {facts}; calibrate this build"
    )


def no_condition(invocation: Invocation, measured: Sequence[Tolerance]) -> str:
    """Return why a calibrated build does not speak for this precision and order."""
    wanted = f"{invocation.precision_mode.name} with order {invocation.reduction_order.name}"
    nearest = min((_differing_condition(invocation, one) for one in measured), key=len, default=())
    facts = f"; the nearest condition differs in {_facts(nearest)}" if nearest else ""
    return f"this build is calibrated, but not for {wanted}{facts}; calibrate that condition"


def no_batches(membership: BatchMembership, measured: Iterable[CoveredBatches]) -> str:
    """Return why a calibrated condition does not speak for this batch."""
    sides = sorted({step.padding_side for step in membership.steps if step.padding_side})
    mode = batching_mode(membership)
    found = _batches(mode, membership.max_rows, membership.max_width, sides)
    known = " or ".join(
        _batches(one.mode, one.max_rows, one.max_width, sorted(one.sides)) + _lanes(one.lanes)
        for one in measured
    )
    found += _lanes(dict.fromkeys(step.lane for step in membership.steps if step.lane))
    return f"the batch ({found}) lies outside what was measured ({known}); calibrate such batches"


def withdrawn(found: Withdrawal) -> str:
    """Return why a tolerance that an alarm has put out of use speaks for nothing."""
    counts = f"{found.num_exceeded} of {found.num_observed} replays beyond the floor"
    return (
        f"the tolerance was withdrawn at {found.withdrawn_at}: replica {found.replica!r} raised "
        f"the drift alarm with commit {found.commit_id!r} ({counts}; an honest build raises it "
        f"with probability {found.alpha} at most); find out what changed, then calibrate again"
    )


def batching_mode(membership: BatchMembership) -> str | None:
    """Return the batching mode that was asked for; None where an engine decided."""
    if membership.requested is None:
        return None
    return str(type(membership.requested).__struct_config__.tag)


def _other_device(build: Build, calibrated: Sequence[Build]) -> str:
    devices = " and ".join(sorted({other.device for other in calibrated}))
    return (
        f"the tolerances given are for {devices} builds and this is a {build.device} record, for "
        f"which they never count; calibrate build {_short(build.build_id)} on its own device"
    )


def _differing_condition(
    invocation: Invocation, measured: Tolerance
) -> tuple[DifferingParameter, ...]:
    return (
        *differing_precision(invocation.precision_mode, measured.precision_mode),
        *differing_order(invocation.reduction_order, measured.reduction_order),
    )


def _batches(mode: str | None, max_rows: int, max_width: int, sides: Iterable[str]) -> str:
    padding = "".join(f", padded {side}" for side in sides)
    return f"{mode or 'engine'}, up to {max_rows} rows of {max_width} tokens{padding}"


def _lanes(lanes: Iterable[Lane]) -> str:
    words = ", ".join(f"{lane.rows}x{lane.width}" for lane in lanes)
    return f", in lanes {words}" if words else ""


def _facts(differing: Iterable[DifferingParameter]) -> str:
    return ", ".join(f"{one.name} ({one.commit} here, {one.replay} there)" for one in differing)


def _short(build_id: str) -> str:
    return build_id.removeprefix("sha256:")[:12]
