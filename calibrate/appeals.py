"""Appeals: what the guards' reference moved too far is run again in float64, and stored like all.

Which decisions are heard follows from the stored scores alone, so a run that was killed between the
two hears the same ones. See `calibrate.guards.rounding` for what an appeal decides.
"""

from calibrate.config import CalibrationConfig
from calibrate.evidence import ArmEvidence, Snapshot, snapshot
from calibrate.observations import ObservationStore
from calibrate.run import Progress, run_processes
from harness.records.decision import Decision

__all__ = ["hear_appeals"]


def hear_appeals(
    config: CalibrationConfig,
    decisions: tuple[Decision, ...],
    store: ObservationStore,
    progress: Progress,
) -> Snapshot:
    """Run the appeals, if any, of a run that is stored whole; return all that is stored then."""
    run = snapshot(config, store)
    found = [ArmEvidence(run, at).appeal_plan for at in range(len(config.arms))]
    plans = [plan for plan in found if plan is not None]
    if not plans:
        return run
    run_processes(plans, run.planned, decisions, store, progress)
    return snapshot(config, store)
