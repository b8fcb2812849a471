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
        "normalised over the batch, expert routing with a capacity, weights that change between "
        "loads, a reference that secretly computes in the low precision",
        remedy="score the named decisions alone and batched, find where they part, and mend the "
        "code; a wider tolerance would hide it. If the model branches on near ties (expert "
        "routing, a quantiser's steps) and no appeal was heard, raise appeal_decisions",
    ),
    GuardName.NEIGHBOURS: _Advice(
        causes="expert routing with a capacity, a scale shared by the batch",
        remedy="keep membership equivalence exact",
    ),
    GuardName.LIVE_HEAD: _Advice(
        causes="a head that is missing from the checkpoint and initialised at each load, the "
        "wrong label or token of a head, a prompt that drops the branch, a row pooled before its "
        "branch begins",
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
    GuardName.OWN_ERROR: _Advice(
        causes="tables (rotary, positions) or constants rounded to the low precision, an overflow "
        "that is clamped, a kernel or a branch that only the low precision takes; of the "
        "reference: autocast, a cast that is undone",
        remedy="compare activations of one named decision in the low precision and in float32, "
        "layer by layer; if it is routing that flips, set exact_decisions to 0",
    ),
    GuardName.CANARY: _Advice(
        causes="scores that hardly differ between decisions, or movement as large as that "
        "difference: then no guard can tell a fault",
        remedy="calibrate on decisions whose scores differ, or in a finer precision",
    ),
    GuardName.INVARIANCE: _Advice(
        causes="logic that follows the batch (a mask, a position, a shared scale), an operator "
        "that a library replaces behind the dispatcher, another library than the one tested",
        remedy="run scorepin locate on a named decision under this arm: it names the first module "
        "and operator that still part",
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
