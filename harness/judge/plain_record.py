"""Decides whether a plain mapping is a record that the published rule can be applied to.

The mapping has the keys `batch_membership` (a set of strings), `precision_mode`, `reduction_order`
(strings) and `scores` (branch id -> number); further keys are ignored. Parameters are compared as
they stand: what they mean is the caller's business.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from harness.errors import InvalidRecordError
from harness.records.document import Record
from harness.records.scores import finite_scores, from_wire, to_wire
from harness.records.verdict import DifferingParameter

__all__ = ["PlainRecord", "differing_plain", "plain_record"]

PARAMETERS = ("batch_membership", "precision_mode", "reduction_order")
"""In the order in which they are compared."""


class PlainRecord(Record, frozen=True, kw_only=True):
    """The parts of a mapping, of the right types; its scores are not looked at yet."""

    batch_membership: frozenset[str]
    """Names of the requests computed together."""
    precision_mode: str
    """As the caller names it."""
    reduction_order: str
    """As the caller names it."""
    scores: Mapping[str, Any]
    """Branch id -> score, unchecked."""

    def finite_scores(self) -> dict[str, float]:
        """Return the scores of a commit; raise InvalidRecordError unless all are finite."""
        return finite_scores(self.scores)

    def numeric_scores(self) -> dict[str, float]:
        """Return the scores of a replay; raise InvalidRecordError unless all are numbers."""
        return from_wire(to_wire(self.scores))


def plain_record(record: object, role: str) -> PlainRecord:
    """Return the parts of a mapping; raise InvalidRecordError, naming `role`, if unusable."""
    if not isinstance(record, Mapping):
        found = type(record).__name__
        raise InvalidRecordError(
            f"the {role} is a mapping, found {found}; "
            "give two mappings, or a commit record and a replay record"
        )
    missing = [key for key in (*PARAMETERS, "scores") if key not in record]
    if missing:
        raise InvalidRecordError(f"the {role} has no {', no '.join(missing)}")
    return PlainRecord(
        batch_membership=_names(record["batch_membership"], role),
        precision_mode=_text(record, "precision_mode", role),
        reduction_order=_text(record, "reduction_order", role),
        scores=_scores(record["scores"], role),
    )


def differing_plain(commit: PlainRecord, replay: PlainRecord) -> tuple[DifferingParameter, ...]:
    """Return the parameters that differ, in the order of `PARAMETERS`."""
    return tuple(
        DifferingParameter(name=name, commit=_shown(commit, name), replay=_shown(replay, name))
        for name in PARAMETERS
        if getattr(commit, name) != getattr(replay, name)
    )


def _names(value: object, role: str) -> frozenset[str]:
    if not isinstance(value, AbstractSet) or not all(isinstance(name, str) for name in value):
        raise InvalidRecordError(
            f"the {role}'s batch_membership is a frozenset of strings, found {value!r}"
        )
    return frozenset(value)


def _text(record: Mapping[str, object], key: str, role: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise InvalidRecordError(f"the {role}'s {key} is a string, found {value!r}")
    return value


def _scores(value: object, role: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidRecordError(f"the {role}'s scores are a mapping, found {type(value).__name__}")
    return value


def _shown(record: PlainRecord, name: str) -> str:
    value = getattr(record, name)
    return repr(sorted(value)) if isinstance(value, frozenset) else repr(value)
