"""Judges everything that was staged by every rule, and counts.

A strict fault is a replay beyond the floor, so the same flags feed the drift alarm. A replay that
could not be run is in no count.
"""

from collections.abc import Sequence

from calibrate.power.detection import (
    CONFIDENCE,
    Delay,
    Until,
    delay_over,
    first_fault,
    rate,
    rate_if_any,
    until_alarm,
)
from calibrate.power.findings import HonestFinding, ReplicaFinding, RuleFinding, StudySetting
from calibrate.power.published import largest_shift, reproduces
from calibrate.power.replicas import Planted
from calibrate.power.rules import OURS, STRICT, Rule, beyond
from calibrate.power.stage import Staged
from calibrate.statistics import Rate, rate_interval
from harness.records.commit import ReplayRecord
from harness.records.document import Record

__all__ = ["Judged"]


class _Calls(Record, frozen=True, kw_only=True):
    """What every rule calls one replica's replays, `[decisions]` each."""

    by_rule: dict[str, tuple[bool, ...]]
    moved: tuple[bool, ...]
    beyond_floor: tuple[bool, ...]

    @property
    def strict(self) -> tuple[bool, ...]:
        """Which replays are judged to be beyond the floor."""
        return self.by_rule[STRICT]


class Judged:
    """Everything that was staged, as every rule calls it."""

    def __init__(self, staged: Staged, table: Sequence[Rule], setting: StudySetting) -> None:
        """Judge every replay by every rule of `table`."""
        self._commits, self._table, self._setting = staged.commits, table, setting
        self._watch = until_alarm(setting.exceedance_rate, setting.alpha)
        self._planted = [one for one in staged.planted if one.left_out is None]
        self._honest = [self._calls(replays) for replays in staged.honest]
        self._rebuilt = self._calls(staged.reconstruction)
        self._lying = [self._calls(one.replays) for one in self._planted]

    def honest(self) -> HonestFinding:
        """Return what the honest replicas gave."""
        by_decision = zip(*(calls.strict for calls in self._honest), strict=True)
        return HonestFinding(
            num_processes=len(self._honest),
            moved=rate(flag for calls in self._honest for flag in calls.moved),
            faults=rate(self._honest_flags(OURS)),
            strict_faults=rate(self._honest_flags(STRICT)),
            decisions=rate(any(flags) for flags in by_decision),
            false_alarms=self._false_alarms(),
        )

    def replicas(self) -> tuple[ReplicaFinding, ...]:
        """Return what the planted replicas gave."""
        return tuple(map(self._replica, self._planted, self._lying))

    def our_faults(self) -> list[bool]:
        """Return which decisions ours calls a fault, rebuilt or computed again, `[decisions]`."""
        told = (self._rebuilt, *self._honest)
        return [any(flags) for flags in zip(*(c.by_rule[OURS] for c in told), strict=True)]

    def rule(self, rule: Rule) -> RuleFinding:
        """Return what one rule makes of everything."""
        lying = self._lying
        missed = [not flag for calls in lying for flag in calls.by_rule[rule.name]]
        moved = [flag for calls in lying for flag in calls.moved]
        return RuleFinding(
            name=rule.name,
            definition=rule.definition,
            honest_faults=rate(self._honest_flags(rule.name)),
            reconstruction_faults=rate(self._rebuilt.by_rule[rule.name]),
            missed=rate(missed),
            missed_moved=rate_if_any(m for m, had in zip(missed, moved, strict=True) if had),
            replicas_missed=tuple(
                one.replica.name
                for one, calls in zip(self._planted, lying, strict=True)
                if any(calls.moved) and not any(calls.by_rule[rule.name])
            ),
        )

    def _replica(self, planted: Planted, calls: _Calls) -> ReplicaFinding:
        replica = planted.replica
        return ReplicaFinding(
            name=replica.name,
            difference=replica.difference,
            differs=replica.differs,
            num_weights_changed=planted.num_weights_changed,
            moved=rate(calls.moved),
            beyond_floor=rate(calls.beyond_floor),
            largest_shift=largest_shift(self._commits, planted.replays),
            winner_changed=rate(calls.by_rule["argmax"]),
            faults=rate(calls.by_rule[OURS]),
            strict_faults=rate(calls.strict),
            until_strict_fault=self._delay(calls, first_fault),
            until_alarm=self._delay(calls, self._watch),
            found_by={name: sum(flags) for name, flags in calls.by_rule.items()},
        )

    def _calls(self, replays: Sequence[ReplayRecord]) -> _Calls:
        pairs = list(zip(self._commits, replays, strict=True))
        leaves = beyond(self._setting.floor)
        return _Calls(
            by_rule={
                rule.name: tuple(rule.is_fault(*pair) for pair in pairs) for rule in self._table
            },
            moved=tuple(not reproduces(*pair) for pair in pairs),
            beyond_floor=tuple(leaves(*pair) for pair in pairs),
        )

    def _honest_flags(self, rule: str) -> list[bool]:
        return [flag for calls in self._honest for flag in calls.by_rule[rule]]

    def _false_alarms(self) -> Rate:
        found = [self._delay(calls, self._watch) for calls in self._honest]
        raised, streams = sum(d.num_raised for d in found), sum(d.num_streams for d in found)
        return rate_interval(raised, streams, CONFIDENCE)

    def _delay(self, calls: _Calls, until: Until) -> Delay:
        return delay_over(calls.strict, self._setting.num_orders, self._setting.seed, until)
