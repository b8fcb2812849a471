"""Turns what a run stored into findings and, if all guards pass, into a tolerance file.

Pure: takes a snapshot of the store, gives records. The same snapshot gives the same bytes, however
often the run was interrupted.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from calibrate.axes import Axis, AxisRows, compare_axes, find_axis, required_axes
from calibrate.fit import FitInput, fit_tolerance
from calibrate.guards import (
    Appeal,
    CanaryEvidence,
    HeadEvidence,
    InvarianceEvidence,
    NeighbourFinding,
    OwnErrorEvidence,
    RoundingEvidence,
    canary,
    decisions_beyond,
    distinct_arms,
    finite,
    invariance,
    live_head,
    neighbours,
    own_error,
    own_error_of,
    own_error_unmeasured,
    refuse_if_failed,
    rounding,
)
from calibrate.guards import Arm as GuardArm
from calibrate.lane_compositions import measured_lanes
from calibrate.measured import Measured, Snapshot, snapshot
from calibrate.plan import ProcessPlan, Purpose, plan_appeal, plan_processes
from calibrate.requested_axes import as_requested
from calibrate.run import shapes_of
from calibrate.sensitivity import Indices, Scores, decision_magnitudes
from harness.conditions.condition import label
from harness.conditions.precision import unit_roundoff
from harness.errors import GuardRefusalError
from harness.records.batching import InFlight, Lanes, Solo
from harness.records.invocation import PrecisionName
from harness.records.tolerance import (
    CoveredBatches,
    Equivalence,
    GuardFinding,
    OwnError,
    Tolerance,
    ToleranceFile,
)
from harness.records.verifier import ProcessReward
from harness.verifiers.heads import score_unit

__all__ = ["ArmEvidence", "Snapshot", "snapshot", "tolerance_file"]


class ArmEvidence:
    """All that was found out about one arm."""

    def __init__(self, run: Snapshot, at: int) -> None:
        """Read arm number `at` of `run`; raise StoreError when a score is missing."""
        self.run, self.at, self.arm = run, at, run.config.arms[at]
        plans = [p for p in plan_processes(run.config, run.num_decisions) if p.arm == at]
        self.measured = Measured(run, [p for p in plans if p.purpose is Purpose.MEASURE])
        self.reference = Measured(run, [p for p in plans if p.purpose is Purpose.REFERENCE])
        control = [p for p in plans if p.purpose is Purpose.CONTROL]
        self._control = Measured(run, control) if control else None
        exact = [p for p in plans if p.purpose is Purpose.EXACT]
        can_run = all(plan.process_id in run.facts for plan in exact)
        self._exact = Measured(run, exact) if exact and can_run else None
        self.finite = self._finite([self.measured, self.reference, self._control, self._exact])

    @property
    def is_requested(self) -> bool:
        """Whether batch membership is what was asked for, and nobody saw what ran."""
        return self.measured.is_requested

    @property
    def title(self) -> str:
        """The arm in one line: condition and batching."""
        covered = self._covered()
        return f"{label(self.arm.condition)}, {covered.mode}, up to {covered.max_rows} rows"

    @cached_property
    def axes(self) -> tuple[AxisRows, ...]:
        """The evidence about every axis; needs finite scores."""
        measured = self.measured
        found = compare_axes(measured.placements, measured.scores, measured.decision_of_row)
        return tuple(map(as_requested, found)) if self.is_requested else found

    @cached_property
    def neighbours(self) -> NeighbourFinding:
        """Whether a neighbour's content moves scores at a fixed shape; needs finite scores."""
        rows = next(rows for rows in self.axes if rows.axis is Axis.COMPANIONS)
        pairs = [(rows.left, rows.right)] if rows.left.size else []
        confidence = self.run.config.claim.confidence
        return neighbours(pairs, rows.decision_of_row, rows.settings, confidence)

    @cached_property
    def guards(self) -> tuple[GuardFinding, ...]:
        """Every guard's finding but that of the neighbours; of scores not finite, that alone."""
        if not self.finite.passed:
            return (self.finite,)
        heard = self._finite([self.appeal]) if self.appeal else self.finite
        if not heard.passed:
            return (heard,)
        return (
            self._rounding(),
            self._live_head(),
            distinct_arms(*self._guard_arms()),
            self.finite,
            *self._own_error(),
            *self._invariance(),
            self._canary(),
        )

    @cached_property
    def appeal_plan(self) -> ProcessPlan | None:
        """The process that hears the decisions beyond what rounding allows; None for no appeal."""
        if not self.finite.passed or self._not_heard:
            return None
        named = [self.reference.decision_ids[at] for at in sorted(self._beyond)]
        config, num = self.run.config, self.run.num_decisions
        return plan_appeal(config, self.at, num, named) if named else None

    @cached_property
    def appeal(self) -> Measured | None:
        """What they did in float64; None for no appeal, or where float64 cannot run."""
        plan = self.appeal_plan
        return Measured(self.run, [plan]) if plan and plan.process_id in self.run.facts else None

    @cached_property
    def own_error(self) -> OwnError | None:
        """The distance from float64; None where it was not measured. Needs finite scores."""
        return own_error_of(self.own_error_evidence) if self.own_error_evidence else None

    def tolerance(self) -> Tolerance:
        """Return the tolerance; raise GuardRefusalError when a guard failed."""
        refuse_if_failed(self.guards)
        claim, measured = self.run.config.claim, self.measured
        condition, covered = measured.facts.condition, self._covered()
        tolerance = fit_tolerance(
            FitInput(
                precision_mode=condition.precision_mode,
                reduction_order=condition.reduction_order,
                batches=covered,
                decision_of_row=measured.decision_of_row,
                compositions=measured.matrix,
                repeats=(measured.repeats,),
                axes=tuple(rows.finding(claim.confidence) for rows in self.axes),
                required_axes=required_axes(self.arm.batching, measured.placements[0].rules),
                neighbours=self.neighbours,
                guards=self.guards,
                own_error=self.own_error,
                coverage=claim.coverage,
                confidence=claim.confidence,
                searches=self.run.searches.get(self.at, ()),
                sizes=measured.sizes(),
                seed=self.run.config.seed,
            )
        )
        if self.is_requested and not self._is_certified(tolerance.equivalence):
            return replace(tolerance, equivalence=Equivalence.EXACT)
        return tolerance

    def _is_certified(self, equivalence: Equivalence) -> bool:
        """Return whether asking alone can certify so much.

        Nobody saw a shape. And where flights are not gathered they may have been computed one by
        one, so that nothing moved because nothing was tried.
        """
        return equivalence is Equivalence.ANY and self.measured.traits.gathers

    def _covered(self) -> CoveredBatches:
        """Return what the tolerance speaks for: the arm's own side, however many were measured.

        The other side is measured at one batch size, to see what it does; it widens the envelope.
        """
        batching = self.arm.batching
        batches = [batch for c in self.measured.compositions for batch in c.batches]
        rows = shapes_of(self.measured.rows)
        return CoveredBatches(
            mode=str(batching.__struct_config__.tag),
            max_rows=max(batch.num_rows or len(batch.rows) for batch in batches),
            max_width=max(batch.width for batch in batches),
            sides=() if isinstance(batching, Solo | InFlight) else (batching.side,),
            lanes=measured_lanes(rows, batching) if isinstance(batching, Lanes) else (),
        )

    @cached_property
    def rounding_evidence(self) -> RoundingEvidence:
        """The guards' decisions in both precisions; needs finite scores."""
        low, fine = self._coarser, self._finer
        ids, owners = self.reference.decision_ids, self.reference.decision_of_row
        return RoundingEvidence(
            low=low.precision,
            reference=fine.precision,
            low_movements=low.movements(len(ids)),
            reference_movements=fine.movements(len(ids)),
            magnitudes=decision_magnitudes(fine.matrix[0][: owners.size], owners),
            companion_movements=self._companion_movements(),
            names=ids,
        )

    @property
    def _is_finer(self) -> bool:
        """Whether the arm is in the finer of the two precisions that the guards compare."""
        return unit_roundoff(self.measured.precision) < unit_roundoff(self.reference.precision)

    @property
    def _coarser(self) -> Measured:
        return self.reference if self._is_finer else self.measured

    @property
    def _finer(self) -> Measured:
        return self.measured if self._is_finer else self.reference

    @cached_property
    def own_error_evidence(self) -> OwnErrorEvidence | None:
        """The distances from float64; None where it was not measured. Needs finite scores."""
        asked = self.run.config.exact_decisions
        is_exact = self.rounding_evidence.reference is PrecisionName.FLOAT64
        exact = self.reference if is_exact else self._exact
        if asked == 0 or exact is None:
            return None
        mine = exact.decision_of_row < asked
        owners, alone = exact.decision_of_row[mine], exact.alone[mine]

        def distances(measured: Measured) -> Scores:
            return decision_magnitudes(measured.alone[: alone.size] - alone, owners)

        reference = None if is_exact else self.rounding_evidence.reference
        num = int(owners.max()) + 1
        return OwnErrorEvidence(
            low=self.arm.precision,
            low_errors=distances(self.measured),
            low_movements=self.measured.movements(num),
            magnitudes=decision_magnitudes(alone, owners),
            reference=reference,
            reference_errors=distances(self.reference) if reference else np.zeros(0),
            names=exact.decision_ids[:num],
        )

    @cached_property
    def _beyond(self) -> Indices:
        return decisions_beyond(self.rounding_evidence)

    @property
    def _not_heard(self) -> str:
        """Why no appeal is heard, as the guard's evidence says it; empty when one is."""
        limit = self.run.config.appeal_decisions
        if self.rounding_evidence.reference is PrecisionName.FLOAT64:
            return "no appeal: the reference is float64 already"
        if limit == 0:
            return "no appeal: appeal_decisions is 0"
        if self._beyond.size > limit:
            return f"no appeal: more than the {limit} decisions of appeal_decisions"
        return ""

    def _companion_movements(self) -> Scores:
        """Return the finer movement where only neighbours' content changes, `[decisions]`."""
        fine, num_decisions = self._finer, len(self.reference.decision_ids)
        rows = find_axis(Axis.COMPANIONS, fine.placements, fine.scores, fine.decision_of_row)
        moved = np.zeros(len(fine.decision_ids))
        np.maximum.at(moved, rows.decision_of_row, np.abs(rows.left - rows.right))
        return moved[:num_decisions] if rows.left.size else np.zeros(0)

    def _finite(self, precisions: Sequence[Measured | None]) -> GuardFinding:
        found = [one for one in precisions if one is not None]
        arms = {
            f"{m.facts.condition.precision_mode.name}, {name}": scores
            for m in found
            for name, scores in m.scores.items()
        }
        names = [f"{row.decision_id}/{row.branch_id}" for row in found[0].rows]
        return finite(arms, names)

    def _rounding(self) -> GuardFinding:
        config = self.run.config
        return rounding(
            self.rounding_evidence,
            seed=config.seed,
            confidence=config.claim.confidence,
            appeal=self._heard(),
            not_heard=self._not_heard or "no appeal: float64 does not run this model here",
        )

    def _heard(self) -> Appeal | None:
        if self.appeal is None:
            return None
        apart = [
            np.abs(self.reference.scores[name][self.appeal.numbers] - scores)
            for name, scores in self.appeal.scores.items()
        ]
        return Appeal(
            decisions=np.sort(self._beyond),
            movements=self.appeal.movements(),
            distances=decision_magnitudes(np.min(apart, axis=0), self.appeal.decision_of_row),
        )

    def _live_head(self) -> GuardFinding:
        measured = self.measured
        original, _, fresh = measured.repeats
        digests = [self.run.facts[p.process_id].condition.loaded_digest for p in measured.plans]
        # branches may share the step that decides a reduced score
        shares = isinstance(self.run.config.verifier.head, ProcessReward)
        found = live_head(
            HeadEvidence(
                precision=self.arm.precision,
                scores=original,
                fresh_scores=(fresh,),
                decision_of_row=measured.decision_of_row,
                weights_digests=tuple(digests),
                fine_scores=(
                    np.zeros(0) if shares else self._finer.alone[: len(self.reference.rows)]
                ),
                contents=tuple(row.content_digest for row in measured.rows),
                names=measured.decision_ids,
            )
        )
        if not self.is_requested:
            return found
        declared = "the weights are declared for the server, not read from it; "
        return replace(found, evidence=declared + found.evidence)

    def _guard_arms(self) -> Iterator[GuardArm]:
        """Yield the measured and the reference arm, in a composition that both hold."""
        name = next(n for n in self.reference.scores if n in self.measured.scores)
        size = len(self.reference.rows)
        for title, found in (("measured", self.measured), ("reference", self.reference)):
            yield GuardArm(
                name=title,
                precision=found.facts.condition.precision_mode,
                scores=found.scores[name][:size].copy(),
            )

    def _own_error(self) -> Iterator[GuardFinding]:
        if self.own_error_evidence is not None:
            confidence = self.run.config.claim.confidence
            yield own_error(self.own_error_evidence, confidence=confidence)
        elif self.run.config.exact_decisions:
            yield own_error_unmeasured("float64 does not run this model here")

    def _invariance(self) -> Iterator[GuardFinding]:
        if self._control is not None:
            resolved = self.measured.facts.condition.reduction_order.resolved
            yield invariance(
                InvarianceEvidence(
                    implementation=str(resolved.get("batch_invariant", "")),
                    movements=self.measured.movements(),
                    control_movements=self._control.movements(),
                    names=self.measured.decision_ids,
                )
            )

    def _canary(self) -> GuardFinding:
        arms = tuple(self._guard_arms())
        coarse, fine = reversed(arms) if self._is_finer else arms
        num_rows = len(self.reference.rows)
        return canary(
            CanaryEvidence(
                movements=self.rounding_evidence,
                low_scores=self._coarser.everything[:, :num_rows],
                reference_scores=self._finer.matrix[:, :num_rows],
                decision_of_row=self.reference.decision_of_row,
                measured=coarse,
                reference=fine,
            )
        )


def tolerance_file(run: Snapshot, arms: Sequence[ArmEvidence]) -> ToleranceFile:
    """Return the tolerance file of a run, not yet sealed.

    Raises GuardRefusalError, naming every arm for which a guard failed.
    """
    identity, days = run.identity, run.config.valid_days
    expires = datetime.fromisoformat(identity.created_at) + timedelta(days=days or 0)
    return ToleranceFile(
        scorepin_version=identity.scorepin_version,
        created_at=identity.created_at,
        expires_at=expires.isoformat() if days else None,
        score_unit=score_unit(run.config.verifier.head),
        config_digest=identity.config_digest,
        decisions_digest=identity.decisions_digest,
        num_truncated=sum(row.num_dropped > 0 for row in run.rows),
        build=arms[0].measured.facts.build,
        tolerances=_tolerances(arms),
    )


def _tolerances(arms: Sequence[ArmEvidence]) -> tuple[Tolerance, ...]:
    tolerances, refusals = [], []
    for arm in arms:
        try:
            tolerances.append(arm.tolerance())
        except GuardRefusalError as refusal:
            refusals.append(str(refusal) if len(arms) == 1 else f"{arm.title}: {refusal}")
    if refusals:
        raise GuardRefusalError("\n".join(refusals))
    return tuple(tolerances)
