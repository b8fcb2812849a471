"""What it means for verdicts that batch membership was asked for and not observed, in words."""

from harness.records.tolerance import Equivalence, Tolerance

__all__ = ["requested_membership"]

_ASKED = (
    "Batch membership was asked for, not observed: the server was told which requests come "
    "together, and nobody saw which of them a step really computed together."
)
_INVARIANT = (
    "Nothing that was asked for moved a bit, so this build is certified invariant and replays of "
    "its commits are judged all the same; that certificate too is about what was asked for."
)
_NO_FAULT = (
    "So a replay of a commit scored there is not known to be the same computation: it is a "
    "reconstruction, and never a fault, however far its scores are from the commit's."
)
_LOOSE = (
    "Without the gate (engine.gate) requests that were sent together may even have been computed "
    "one by one, so whatever did not move is certified for nothing."
)
_RECORDING = (
    "Recording would add what is missing: with the flags --scheduler-cls "
    "harness.serving.scheduler.RecordingScheduler and --middleware "
    "harness.serving.route.StepLogRoute (docs/serving.md) vLLM tells the steps that ran, a commit "
    "holds them, a replay can be pinned to them, and a movement beyond the envelope is then a "
    "fault."
)


def requested_membership(tolerance: Tolerance | None, *, gathered: bool) -> str:
    """Return the paragraph; `tolerance` is what was blessed, None when the build was refused.

    `gathered`: whether the server began with a flight when all of it was there.
    """
    invariant = tolerance is not None and tolerance.equivalence is Equivalence.ANY
    means = _INVARIANT if invariant else _NO_FAULT
    return " ".join((_ASKED, *(() if gathered else (_LOOSE,)), means, _RECORDING))
