"""What a person reads in a terminal: results on standard output, the rest on standard error.

Every table fits 80 columns: names and numbers are never broken, long sentences are wrapped under
their own beginning.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from harness.judge.missing import withdrawn
from harness.records.tolerance import AxisStatus
from harness.records.verdict import Verdict, VerdictKind
from harness.withdrawals import sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from calibrate.comparison import Comparison, ToleranceChange
    from calibrate.demo import Played
    from calibrate.doctor import Diagnosis
    from calibrate.lanes import LanePlan
    from harness.judge.alarm import AlarmReport
    from harness.records.batching import Lane
    from harness.records.tolerance import (
        AxisFinding,
        AxisSearch,
        GuardFinding,
        Strata,
        Tolerance,
        ToleranceFile,
    )
    from harness.records.withdrawal import Withdrawal

__all__ = [
    "errors",
    "print_comparison",
    "print_diagnosis",
    "print_lanes",
    "print_line",
    "print_paths",
    "print_scenes",
    "print_tolerances",
    "print_verdicts",
    "print_withdrawals",
    "print_withdrawn",
    "results",
]

results = Console()
"""Standard output."""
errors = Console(stderr=True)
"""Standard error."""

NOT_COMPARED = "not compared"
MOST = 6
"""Differing parameters that a summary lists."""

STATUS = {
    AxisStatus.NOT_EXERCISED: "not exercised",
    AxisStatus.INVARIANT: "invariant",
    AxisStatus.MOVED: "moved",
}
"""How an axis's status is said in a table."""


def print_tolerances(file: "ToleranceFile") -> None:
    """Print a tolerance file for people."""
    build = file.build
    facts = Table.grid(padding=(0, 2))
    facts.add_row("verifier", build.verifier.model)
    facts.add_row("build", build.build_id.removeprefix("sha256:")[:16])
    libraries = (f"{name} {version}" for name, version in build.libraries.items())
    facts.add_row("engine", ", ".join([build.engine, *libraries]))
    facts.add_row("device", f"{build.device_name}, {build.device_capability}")
    facts.add_row("calibrated", f"{file.created_at}, {_expiry(file)}")
    facts.add_row("truncated", f"{file.num_truncated} rows")
    results.print(facts)
    for tolerance in file.tolerances:
        _print_tolerance(file, tolerance)


def print_withdrawals(
    file: "ToleranceFile", withdrawals: "Sequence[Withdrawal]", console: Console
) -> None:
    """Print which tolerances of `file` are out of use, and why."""
    for tolerance in file.tolerances:
        for one in withdrawals:
            if (one.file_digest, one.tolerance_id) == (file.digest, file.tolerance_id(tolerance)):
                label = f"{tolerance.precision_mode.name}, {tolerance.reduction_order.name}"
                console.print()
                _print_under(f"withdrawn: {label}", withdrawn(one), console)


def print_withdrawn(paths: "Sequence[Path]", console: Console) -> None:
    """Print of which files tolerances were withdrawn, and how to undo it."""
    for path in paths:
        told = (
            f"{path}: replays that it would judge are unjudged from now on; calibrate the build "
            f"again, or, if the alarm was a false one, remove {sidecar(path)}"
        )
        console.print()
        _print_under("withdrawn", told, console)


def print_verdicts(
    verdicts: Sequence[Verdict],
    alarms: "dict[str, AlarmReport]",
    num_rejected: int,
    console: Console,
) -> None:
    """Print how many replays got which verdict, an example of each kind, and what stands out."""
    table = _table("verdict", numbers=("replays", "faults", "largest delta", "winner changed"))
    by_kind = {kind: [v for v in verdicts if v.kind is kind] for kind in VerdictKind}
    for kind, mine in by_kind.items():
        if mine:
            faults = sum(verdict.fault for verdict in mine)
            table.add_row(kind, str(len(mine)), str(faults), _largest(mine), _changed(mine))
    console.print(table)
    for kind, mine in by_kind.items():
        if mine and kind is not VerdictKind.EXACT:
            console.print()
            _print_example(kind, mine, console)
    if num_rejected:
        console.print(f"\n[red]unusable records: {num_rejected}[/]; see the rejects file")
    for replica, report in alarms.items():
        if report.raised:
            counts = f"{report.alarm.num_exceeded} of {report.alarm.num_observed}"
            console.print(
                f"\n[red]drift alarm[/] for replica {replica!r}, raised by commit "
                f"{report.raised_by}: {counts} replays moved beyond the floor"
            )


def print_comparison(comparison: "Comparison") -> None:
    """Print what differs between two tolerance files, and what became of each bound."""
    facts = _table("fact of the build")
    facts.add_column("old", overflow="fold")
    facts.add_column("new", overflow="fold")
    differing = [one for change in comparison.changes for one in change.differing]
    for one in (*comparison.facts, *differing):
        facts.add_row(one.name, one.commit, one.replay)
    results.print(facts if facts.row_count else "the same build", highlight=False)
    for change in comparison.changes:
        results.print(f"\n{change.label}", style="bold", markup=False, highlight=False)
        if change.old_batches != change.new_batches:
            told = f"old: {change.old_batches}; new: {change.new_batches}"
            results.print(told, markup=False, highlight=False)
        results.print(_changes_table(change))
    for words, labels in (("old", comparison.only_old), ("new", comparison.only_new)):
        for label in labels:
            results.print(f"\nonly in the {words} file: {label}", markup=False, highlight=False)
    told = "worse" if comparison.is_worse else "no worse, as far as these decisions show"
    results.print(f"\n{told}: allowed is {comparison.allowed:g} times the old", highlight=False)


def print_scenes(played: "Played") -> None:
    """Print the demo's replays, and the worst verdict of each in full."""
    results.print(f"\n{len(played.commits)} commits, replayed in three ways", style="bold")
    table = _table("replay", "verdicts", numbers=("faults", "strict faults"))
    for scene in played.scenes:
        kinds = Counter(verdict.kind for verdict in scene.verdicts)
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        faults = [sum(v.fault for v in verdicts) for verdicts in (scene.verdicts, scene.strict)]
        table.add_row(scene.title, words, *map(str, faults))
    results.print(table)
    for scene in played.scenes:
        results.print()
        worst = max(scene.strict, key=lambda v: (v.fault, v.delta or 0.0))
        _print_under(f"{scene.title}: {worst.kind}", worst.reason, results)


def print_diagnosis(diagnosis: "Diagnosis") -> None:
    """Print the facts of a machine."""
    table = _facts_table("this machine")
    table.add_row("python", f"{diagnosis.python}, {diagnosis.platform}")
    table.add_row("cores", str(diagnosis.num_cores))
    for name, version in diagnosis.packages.items():
        table.add_row(name, version or "not installed")
    for name, value in diagnosis.kernel_environment.items():
        table.add_row(name, value)
    results.print(table)
    results.print()
    if not diagnosis.devices:
        advice = "no torch: judging works, scoring needs pip install 'scorepin[calibrate]'"
        results.print(advice, markup=False, highlight=False)
    for device, facts in diagnosis.devices.items():
        results.print(_device_table(device, facts))


def print_lanes(plan: "LanePlan") -> None:
    """Print lanes, what goes through each, and which share of it is padding."""
    table = _table("lane", numbers=("rows", "forwards", "padding"))
    for use in plan.uses:
        counts = map(str, (use.num_rows, use.num_forwards))
        table.add_row(_lane(use.lane), *counts, f"{use.padding_share:.1%}")
    sums = (sum(use.num_rows for use in plan.uses), sum(use.num_forwards for use in plan.uses))
    table.add_row("together", *map(str, sums), f"{plan.padding_share:.1%}")
    results.print(table)


def print_paths(paths: dict[str, Any]) -> None:
    """Print what was written where, one file a line."""
    width = max(map(len, paths))
    for name, path in paths.items():
        print_line(f"{name:<{width}}  {path}")


def print_line(text: str) -> None:
    """Print one line as it is, never wrapped: a machine or a shell may take it up."""
    results.print(text, markup=False, highlight=False, soft_wrap=True)


def _changes_table(change: "ToleranceChange") -> Table:
    table = _table("bound", numbers=("old", "new", "at least", "new / old"))
    table.add_column("finding", no_wrap=True)
    for bound in change.bounds:
        ratio = "-" if bound.ratio is None else f"{bound.ratio:.3g}"
        numbers = (f"{value:.5g}" for value in (bound.old, bound.new, bound.new_lower))
        table.add_row(bound.bound, *numbers, ratio, bound.finding.replace("_", " "))
    return table


def _table(*texts: str, numbers: Sequence[str] = ()) -> Table:
    """Return a table of unbroken texts, then of numbers aligned to the right."""
    columns = [Column(text, no_wrap=True) for text in texts]
    columns += [Column(number, justify="right", no_wrap=True) for number in numbers]
    return Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _lane(lane: "Lane") -> str:
    return f"{lane.rows} x {lane.width}"


def _facts_table(title: str) -> Table:
    table = _table(title)
    table.add_column("value", overflow="fold")
    return table


def _device_table(device: str, facts: dict[str, Any]) -> Table:
    table = _facts_table(device)
    table.add_row("name", facts["name"])
    table.add_row("capability", facts["capability"])
    for name, value in (facts["libraries"] | facts["switches"]).items():
        table.add_row(name, "not set" if value is None else str(value))
    return table


def _print_tolerance(file: "ToleranceFile", tolerance: "Tolerance") -> None:
    batches = tolerance.batches
    results.print(
        f"\n[bold]{tolerance.precision_mode.name}, {tolerance.reduction_order.name}[/]",
        highlight=False,
    )
    results.print(
        f"{batches.mode} batches of up to {batches.max_rows} rows and {batches.max_width} tokens, "
        f"padded {' or '.join(batches.sides) or 'not at all'}; equivalence of memberships: "
        f"{tolerance.equivalence}",
        highlight=False,
    )
    if batches.lanes:
        print_line(f"lanes: {', '.join(map(_lane, batches.lanes))}")
    tables = [_bounds_table(file, tolerance), _axes_table(tolerance.axes)]
    tables += [_searches_table(tolerance.searches)] if tolerance.searches else []
    tables += [_strata_table(tolerance.strata)] if tolerance.strata else []
    for table in (*tables, _guards_table(tolerance.guards)):
        results.print()
        results.print(table)


def _bounds_table(file: "ToleranceFile", tolerance: "Tolerance") -> Table:
    numbers = (f"value, {file.score_unit}", "coverage", "confidence", "decisions", "beyond it")
    table = _table("bound", numbers=numbers)
    for name in ("floor", "envelope"):
        bound = getattr(tolerance, name)
        table.add_row(
            name,
            f"{bound.value:.6g}",
            f"{bound.coverage:.3g}",
            f"{bound.confidence:.3g}",
            str(bound.num_decisions),
            f"<= {bound.exceedance_rate_upper:.3g}",
        )
    return table


def _axes_table(axes: "Sequence[AxisFinding]") -> Table:
    table = _table("axis", "finding", numbers=("decisions moved", "rate", "largest"))
    for axis in axes:
        compared = axis.num_decisions > 0
        table.add_row(
            axis.axis,
            STATUS[axis.status],
            f"{axis.num_decisions_moved} of {axis.num_decisions}",
            f"<= {axis.moved_rate_upper:.3g}" if compared else "unknown",
            f"{axis.max_movement:.3g}" if compared else "unknown",
        )
    return table


def _searches_table(searches: "Sequence[AxisSearch]") -> Table:
    table = _table("searched", "sizes tried")
    table.add_column("results switch between", overflow="fold")
    for search in searches:
        tried = f"{len(search.sizes)} from {search.sizes[0]} to {search.sizes[-1]}"
        switches = (f"{switch.last} and {switch.first}" for switch in search.switches)
        table.add_row(search.axis, tried, ", ".join(switches) or "none seen")
    return table


def _strata_table(strata: "Sequence[Strata]") -> Table:
    table = _table("movement by", "p-value")
    table.add_column("envelope", overflow="fold")
    for one in strata:
        table.add_row(one.axis, f"{one.p_value:.3g}", _by_size(one))
    return table


def _by_size(strata: "Strata") -> str:
    """Say what follows from a test of whether movement depends on a size."""
    if strata.p_value > strata.level:
        return "one for all sizes"
    if strata.num_missing:
        return f"depends on it; {strata.num_missing} more decisions for one by size"
    if not strata.strata:
        return "depends on it; by the other size, which tells more"
    parts = (f"{one.lower}-{one.upper}: {one.envelope.value:.3g}" for one in strata.strata)
    return ", ".join(parts)


def _guards_table(guards: "Sequence[GuardFinding]") -> Table:
    table = _table("guard", "passed")
    table.add_column("evidence", overflow="fold")
    for guard in guards:
        table.add_row(guard.guard, "yes" if guard.passed else "no", guard.evidence)
    return table


def _expiry(file: "ToleranceFile") -> str:
    return f"expires {file.expires_at}" if file.expires_at else "does not expire"


def _largest(verdicts: Sequence[Verdict]) -> str:
    deltas = [verdict.delta for verdict in verdicts if verdict.delta is not None]
    return f"{max(deltas):.6g}" if deltas else NOT_COMPARED


def _changed(verdicts: Sequence[Verdict]) -> str:
    """Say how many decisions would have had another winner."""
    impacts = [verdict.impact for verdict in verdicts if verdict.impact is not None]
    return str(sum(impact.top1_changed for impact in impacts)) if impacts else NOT_COMPARED


def _print_example(kind: VerdictKind, verdicts: Sequence[Verdict], console: Console) -> None:
    """Print the reason of the verdict that moved most, and how often which parameter differs."""
    worst = max(verdicts, key=lambda v: (v.fault, v.delta or 0.0))
    told = f"commit {worst.commit_id}: {worst.reason}"
    differing = Counter(one.name for verdict in verdicts for one in verdict.differing)
    if differing:
        counts = ", ".join(f"{name} ({count})" for name, count in differing.most_common(MOST))
        rest = f" and {len(differing) - MOST} more" if len(differing) > MOST else ""
        told = f"{told}\nparameters that differ: {counts}{rest}"
    _print_under(f"{kind}, for example", told, console)


def _print_under(head: str, text: str, console: Console) -> None:
    console.print(head, markup=False, highlight=False, style="bold")
    console.print(Padding(Text(text), (0, 0, 0, 2)), highlight=False)
