"""A condition: precision mode and reduction order, and everything that must be set for them.

Each switch belongs to exactly one of the two (the table in `switches` says which), so that no fact
is stored twice. Reading back reports every switch of an owner that exists on the device, asked for
or not: a default that moved in silence is then a difference between two records.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.conditions.precision import precision_switches
from harness.conditions.reduction_order import ReductionOrderSpec, reduction_switches
from harness.conditions.switch import Owner
from harness.conditions.switches import (
    applied,
    environment_of,
    read_switches,
    switch,
)
from harness.records.document import Record
from harness.records.invocation import PrecisionName
from harness.records.switches import SwitchValues
from harness.records.verifier import Device

__all__ = [
    "QUIET",
    "Condition",
    "ConditionSwitches",
    "controlled",
    "environment",
    "label",
    "requested_switches",
    "resolved_switches",
    "split_by_owner",
]

QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "LRU_CACHE_CAPACITY": "16",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Environment of every child. Not numeric, not recorded.

No output of the libraries' own. At most so many compiled CPU kernels in torch's cache and in
oneDNN's below it: by default each holds 1024, of every batch shape seen, which is a gigabyte after
400 shapes. A kernel that was dropped is compiled again, to the same bits."""


class Condition(Record, frozen=True, kw_only=True):
    """The arithmetic and the order of summation that a run asks for."""

    precision: PrecisionName
    """Precision mode."""
    precision_overrides: SwitchValues = {}
    """Single precision switches set otherwise than the mode sets them."""
    reduction_order: ReductionOrderSpec
    """Order of summation."""


class ConditionSwitches(Record, frozen=True, kw_only=True):
    """Switch values, each under its one owner."""

    precision: SwitchValues
    """Those of the precision mode."""
    order: SwitchValues
    """Those of the reduction order."""


def label(condition: Condition) -> str:
    """Return ``bfloat16/vendor``; overrides stand in brackets behind the mode."""
    overrides = ",".join(f"{n}={v}" for n, v in sorted(condition.precision_overrides.items()))
    mode = f"{condition.precision}[{overrides}]" if overrides else str(condition.precision)
    return f"{mode}/{condition.reduction_order.label}"


def requested_switches(condition: Condition, device: Device) -> ConditionSwitches:
    """Return what `condition` asks for on `device`; raises for what the device cannot do."""
    return ConditionSwitches(
        precision=precision_switches(condition.precision, device, condition.precision_overrides),
        order=reduction_switches(condition.reduction_order, device),
    )


def environment(condition: Condition, device: Device) -> dict[str, str | None]:
    """Return what a child's environment must hold before it starts; None: must not be set."""
    requested = requested_switches(condition, device)
    return {**QUIET, **environment_of(requested.precision | requested.order)}


def resolved_switches(device: Device) -> ConditionSwitches:
    """Return every switch that exists on `device`, as this process has it now."""
    return split_by_owner(read_switches(device))


def split_by_owner(values: SwitchValues) -> ConditionSwitches:
    """Return `values` parted into the precision mode's and the reduction order's, sorted."""
    return ConditionSwitches(
        precision={n: values[n] for n in sorted(values) if switch(n).owner is Owner.PRECISION},
        order={n: values[n] for n in sorted(values) if switch(n).owner is Owner.ORDER},
    )


@contextmanager
def controlled(condition: Condition, device: Device) -> Iterator[ConditionSwitches]:
    """Set the switches of `condition`, yield all of the device's as resolved, restore in finally.

    Raises `UnsupportedConditionError` if the process was started without `environment`.
    """
    requested = requested_switches(condition, device)
    with applied(requested.precision | requested.order):
        yield resolved_switches(device)
