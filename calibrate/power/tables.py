"""The tables of a study for a terminal; intervals stand in brackets, everything in per cent."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

from calibrate.power.findings import PowerReport, ReplicaFinding, StudySetting
from calibrate.power.published import REPORTED
from calibrate.power.words import NONE, counted, delay, interval

__all__ = ["print_power"]


def print_power(report: PowerReport, console: Console) -> None:
    """Print a whole study."""
    _print(console, _heading(report.setting), style="bold")
    for title, table in (
        ("planted replicas, found by ours", _replicas_table(report.replicas)),
        (
            "every rule on the same commits and replays: called faults, planted faults missed",
            _rules_table(report),
        ),
        ("the published setting's quantities", _published_table(report)),
    ):
        _print(console, f"\n{title}", style="bold")
        console.print(table)
    _print(console, "")
    for name, reason in report.left_out.items():
        _print(console, f"left out: {name}: {reason}")
    _print(console, _with_alarm(report))
    for target in report.targets:
        _print(console, f"{'met' if target.met else 'MISSED'}: {target.words}: {target.found}")
    alarms = report.honest.false_alarms
    counts = f"{alarms.num_events} of {alarms.num_trials} honest streams"
    _print(
        console, f"false alarms: {counts}, {interval(alarms)} %; bound {report.setting.alpha:.0%}"
    )


def _heading(setting: StudySetting) -> str:
    return (
        f"{setting.config}: {setting.num_decisions} decisions of {setting.num_rows} branches, "
        f"committed in batches of {setting.commit_rows}, rebuilt in batches of "
        f"{setting.replay_rows}; floor {setting.floor:.6g}, envelope {setting.envelope:.6g} "
        f"{setting.score_unit}"
    )


def _replicas_table(replicas: Sequence[ReplicaFinding]) -> Table:
    table = _table("replica", numbers=("moved", "shift", "default finds", "strict finds", "alarm"))
    for one in replicas:
        table.add_row(
            one.name,
            str(one.moved.num_events),
            NONE if one.largest_shift is None else f"{one.largest_shift:.2g}",
            interval(one.faults),
            interval(one.strict_faults),
            delay(one.until_alarm),
        )
    return table


def _rules_table(report: PowerReport) -> Table:
    table = _table("rule", numbers=("honest", "rebuilt", "planted missed", "unseen"))
    num_faulty = len(_faulty(report))
    for rule in report.rules:
        table.add_row(
            rule.name,
            interval(rule.honest_faults),
            interval(rule.reconstruction_faults),
            interval(rule.missed_moved),
            f"{len(rule.replicas_missed)}/{num_faulty}",
        )
    return table


def _published_table(report: PowerReport) -> Table:
    table = _table("quantity", numbers=("reported", "this build"))
    for one in REPORTED:
        table.add_row(one.words, one.figure, counted(getattr(report.published, one.field)))
    return table


def _faulty(report: PowerReport) -> list[ReplicaFinding]:
    """Return the replicas that moved at all."""
    return [one for one in report.replicas if one.moved.num_events]


def _with_alarm(report: PowerReport) -> str:
    """Say which replicas neither a fault under `default` nor the alarm tells in every order."""
    faulty = _faulty(report)
    unseen = [
        one.name
        for one in faulty
        if not one.faults.num_events and one.until_alarm.num_raised < one.until_alarm.num_streams
    ]
    names = f": {', '.join(unseen)}" if unseen else ""
    return f"default and its alarm leave {len(unseen)} of {len(faulty)} replicas unseen{names}"


def _table(first: str, numbers: Sequence[str]) -> Table:
    columns = [Column(first, no_wrap=True)]
    columns += [Column(number, justify="right", no_wrap=True) for number in numbers]
    return Table(
        *columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False)
