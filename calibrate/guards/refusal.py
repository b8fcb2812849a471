"""Refusals: what a failed guard usually means, and what to do about it."""

from collections.abc import Sequence

from calibrate.guards.finding import GuardName
from harness.errors import GuardRefusalError
from harness.records import GuardFinding
from harness.records.document import Record

__all__ = ["refuse_if_failed"]


class _Advice(Record, frozen=True, kw_only=True):
    causes: str
    remedy: str


ADVICE = {
    GuardName.ROUNDING: _Advice(
        causes="position ids under left padding, a pooled row chosen by the pad token's id, a "
        "mask that is skipped or shared, an output returned for another row, scores or scales "
        "normalised over the batch, weights that change between loads",
        remedy="score the named decisions alone and batched, find where they part, and mend the "
        "code; a wider tolerance would hide it. If the model branches on near ties (expert "
        "routing) and one decision is named, repeat with float64 as the reference",
    ),
    GuardName.NEIGHBOURS: _Advice(
        causes="expert routing with a capacity, a scale shared by the batch",
        remedy="keep membership equivalence exact",
    ),
    GuardName.LIVE_HEAD: _Advice(
        causes="a head that is missing from the checkpoint and initialised at each load, the "
        "wrong label or token of a head, a prompt that drops the branch",
        remedy="compare the checkpoint's tensor names with the model's, and look at one rendered "
        "prompt",
    ),
    GuardName.DISTINCT_ARMS: _Advice(
        causes="a cast that did not happen, a cached model or result, a switch that this device "
        "ignores",
        remedy="load each arm fresh, in a process of its own, and read its dtypes back",
    ),
    GuardName.FINITE: _Advice(
        causes="a fully masked row, an overflow of float16, a division by a zero count",
        remedy="score the named rows alone and look for the first non-finite activation",
    ),
}
"""What usually makes a guard fail, and what to do."""


def refuse_if_failed(findings: Sequence[GuardFinding]) -> None:
    """Raise GuardRefusalError that lists every failed guard, its causes and what to do."""
    failed = [finding for finding in findings if not finding.passed]
    if failed:
        listed = "\n".join(map(_refusal, failed))
        raise GuardRefusalError(f"no tolerance is issued, {len(failed)} guard(s) failed:\n{listed}")


def _refusal(finding: GuardFinding) -> str:
    text = f"- {finding.guard}: {finding.evidence}"
    if finding.guard not in set(GuardName):
        return text
    advice = ADVICE[GuardName(finding.guard)]
    return f"{text}\n  usual causes: {advice.causes}\n  what to do: {advice.remedy}"
