"""What measured reduction orders say of batch shapes, set beside the bits that batches gave.

Two numbers of rows are predicted to agree when every measured sum of the first row is added by the
same trees at both; they are observed to agree when that row's last hidden states and score have
equal bits. Pure: a probe in, classes and disagreements out.

Neither side is proof of the other. Other trees may round alike on one row, so predicted apart and
observed alike is likely and harmless. Predicted alike and observed apart means that something adds,
or rounds, that was not measured: that is a finding.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from msgspec.structs import replace

from harness.conditions.batching import Batch
from harness.decisions import row_texts
from harness.orders.fingerprint import BatchOrders, OrderProbe, Rung
from harness.records.batching import FixedWidth, Padded, PaddingSide
from harness.records.decision import Decision
from harness.records.document import Record
from harness.runner import ConditionProcess
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from calibrate.config import Arm, CalibrationConfig

__all__ = [
    "Disagreement",
    "ProbeReport",
    "disagreements",
    "observed_classes",
    "predicted_classes",
    "probe_arm",
    "probed_rows",
]

ALWAYS = (1, 2, 3, 4, 8, 16)
"""Numbers of rows that are tried beside those of the config's sweep."""

RowClasses = tuple[tuple[int, ...], ...]
"""Numbers of rows in classes, each sorted."""


class Disagreement(Record, frozen=True, kw_only=True):
    """Numbers of rows that are predicted one way and observed the other, each with each."""

    left: tuple[int, ...]
    """Numbers of rows that are alike in both ways."""
    right: tuple[int, ...]
    """Others that are."""
    predicted_alike: bool
    """Whether the trees are the same; the bits then are not, and the other way round."""
    reason: str
    """What can be said of it."""


class ProbeReport(Record, frozen=True, kw_only=True):
    """A probe with what follows from it."""

    found: OrderProbe
    """What was measured."""
    seconds: float
    """Wall time of it all, with loading the model."""
    width: int
    """Padded width of the batches, tokens."""
    predicted: RowClasses
    """Classes of numbers of rows by their trees."""
    observed: RowClasses
    """Classes by the bits of the first row."""
    disagreements: tuple[Disagreement, ...]
    """All on which the two differ."""
    stale: tuple[str, ...]
    """Shape classes whose cached fingerprint is another; empty without a cache."""


def probe_arm(
    config: "CalibrationConfig", arm: "Arm", decisions: tuple[Decision, ...]
) -> ProbeReport:
    """Probe one arm in a fresh process under its condition, and compare the two sides."""
    started = time.perf_counter()
    sizes = probed_rows(arm, config.sweep.rows)
    texts = row_texts(decisions)[: max(sizes)]
    order = replace(arm.reduction_order, fingerprint=False)  # a probe measures, whatever is cached
    condition = replace(arm.condition, reduction_order=order)
    with ConditionProcess(config.verifier, condition, texts) as process:
        batches = _batches(process.ready().rows, arm, sizes)
        found = process.probe(batches)
    return ProbeReport(
        found=found,
        seconds=time.perf_counter() - started,
        width=batches[0].width,
        predicted=predicted_classes(found.batches),
        observed=observed_classes(found.batches),
        disagreements=disagreements(found),
        stale=_stale(found),
    )


def probed_rows(arm: "Arm", sweep: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of rows to try: those of the sweep and a few more, as the arm allows."""
    most = arm.batching.max_rows if isinstance(arm.batching, Padded | FixedWidth) else max(ALWAYS)
    return tuple(sorted({size for size in (*sweep, *ALWAYS) if size <= most}))


def predicted_classes(batches: Sequence[BatchOrders]) -> RowClasses:
    """Return the numbers of rows in classes of equal trees of the first row."""
    return tuple(map(_rows, _grouped(batches, _marks)))


def observed_classes(batches: Sequence[BatchOrders]) -> RowClasses:
    """Return the numbers of rows in classes of equal bits of the first row."""
    return tuple(map(_rows, _grouped(batches, lambda one: one.observed)))


def disagreements(found: OrderProbe) -> tuple[Disagreement, ...]:
    """Return all batches that trees and bits tell apart differently."""
    alike_in_both = _grouped(found.batches, lambda one: (_marks(one), one.observed))
    return tuple(
        Disagreement(
            left=_rows(left),
            right=_rows(right),
            predicted_alike=alike,
            reason=(_unexplained if alike else _rounded_alike)(found, left[0], right[0]),
        )
        for left, right in combinations(alike_in_both, 2)
        if (alike := _marks(left[0]) == _marks(right[0])) != (left[0].observed == right[0].observed)
    )


def _rounded_alike(_: OrderProbe, left: BatchOrders, right: BatchOrders) -> str:
    ours, theirs = _trees(left), _trees(right)
    names = [name for name in ours if ours[name] != theirs.get(name)]
    return f"other trees in {'; '.join(names)}, and the sums of this row round alike"


def _unexplained(found: OrderProbe, left: BatchOrders, right: BatchOrders) -> str:
    """Name what was not measured and may have told the two apart."""
    refused = {
        f"{name} was refused ({rung.refused})"
        for one in (left, right)
        for name, rung in one.rungs.items()
        if rung.refused
    }
    missing = [*sorted(refused), *(f"{name} has no box" for name in found.orders.unmeasured)]
    known = "scores and denominators inside fused attention, and functions of one value, have none"
    return "; ".join([*missing, known])


def _trees(one: BatchOrders) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return class name -> the trees that add the first row's results, with their columns."""
    return {name: _of_first(rung, one.batch.width, name) for name, rung in one.rungs.items()}


def _of_first(rung: Rung, width: int, name: str) -> tuple[tuple[str, str], ...]:
    own = range(1 if name.endswith("flat") else width)
    return tuple(
        ("all" if one.places.startswith("rows ") else one.places, one.tree)
        for one in rung.trees
        if not one.places.startswith("rows ") or _holds(one.places, own)
    )


def _holds(places: str, rows: range) -> bool:
    """Return whether ``rows 0-3,8`` names one of `rows`."""
    for part in places.removeprefix("rows ").split(","):
        first, _, last = part.partition("-")
        if int(first) < rows.stop and int(last or first) >= rows.start:
            return True
    return False


def _marks(one: BatchOrders) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return what two batches of equal trees share."""
    return tuple(_trees(one).items())


def _grouped(
    batches: Sequence[BatchOrders], key: Callable[[BatchOrders], object]
) -> list[list[BatchOrders]]:
    found: dict[object, list[BatchOrders]] = {}
    for one in sorted(batches, key=lambda one: one.batch.rows):
        found.setdefault(key(one), []).append(one)
    return list(found.values())


def _rows(batches: Sequence[BatchOrders]) -> tuple[int, ...]:
    return tuple(one.batch.rows for one in batches)


def _batches(rows: Sequence[EncodedRow], arm: "Arm", sizes: Sequence[int]) -> tuple[Batch, ...]:
    """Return batches that all begin with the first row, padded to one width."""
    longest = max(len(row.token_ids) for row in rows)
    width = arm.batching.width if isinstance(arm.batching, FixedWidth) else longest
    side = getattr(arm.batching, "side", PaddingSide.RIGHT)
    return tuple(
        Batch(rows=tuple(at % len(rows) for at in range(size)), width=width, side=side)
        for size in sizes
    )


def _stale(found: OrderProbe) -> tuple[str, ...]:
    if found.cached is None:
        return ()
    measured = found.orders.fingerprints
    names = sorted(found.cached.keys() | measured.keys())
    return tuple(name for name in names if found.cached.get(name) != measured.get(name))
