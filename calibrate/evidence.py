"""Turns what a run stored into findings and, if all guards pass, into a tolerance file.

Pure: takes a snapshot of the store, gives records. The same snapshot gives the same bytes, however
often the run was interrupted.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

from calibrate.axes import Axis, AxisRows, Placement, compare_axes, required_axes
from calibrate.compositions import REPEATS, plan_compositions
from calibrate.config import Arm, CalibrationConfig
from calibrate.fit import FitInput, fit_tolerance
from calibrate.guards import Arm as GuardArm
from calibrate.guards import (
    HeadEvidence,
    NeighbourFinding,
    RoundingEvidence,
    distinct_arms,
    finite,
    live_head,
    neighbours,
    refuse_if_failed,
    rounding,
)
from calibrate.observations import ObservationStore, ProcessFacts, RunIdentity, StoredRow
from calibrate.plan import ProcessPlan, plan_processes
from calibrate.run import shapes_of
from calibrate.sensitivity import Scores, decision_magnitudes, decision_ranges
from harness.conditions.condition import label
from harness.errors import GuardRefusalError, StoreError
from harness.records.batching import Solo
from harness.records.document import Record
from harness.records.tolerance import CoveredBatches, GuardFinding, Tolerance, ToleranceFile
from harness.verifiers.heads import score_unit

__all__ = ["ArmEvidence", "Snapshot", "snapshot", "tolerance_file"]


class Snapshot(Record, frozen=True, kw_only=True):
    """Everything a finished run stored."""

    config: CalibrationConfig
    """What was asked for."""
    identity: RunIdentity
    """Which run it is, and when it was begun."""
    rows: tuple[StoredRow, ...]
    """All rows, in file order."""
    facts: dict[str, ProcessFacts]
    """Process id -> what it found."""
    scores: dict[str, dict[str, dict[int, float]]]
    """Process id -> composition -> row -> score."""

    @property
    def num_decisions(self) -> int:
        """Return how many decisions the rows belong to."""
        return len(dict.fromkeys(row.decision_id for row in self.rows))


def snapshot(config: CalibrationConfig, store: ObservationStore) -> Snapshot:
    """Read a run out of its store."""
    facts = dict(store.facts())
    return Snapshot(
        config=config,
        identity=store.identity,
        rows=store.rows(),
        facts=facts,
        scores={process_id: store.scores(process_id) for process_id in facts},
    )


class _Measured:
    """The scores of one precision of one arm, as arrays over the same rows."""

    def __init__(self, run: Snapshot, arm: Arm, plans: Sequence[ProcessPlan]) -> None:
        self.plans = plans
        kept = set(list(dict.fromkeys(r.decision_id for r in run.rows))[: plans[0].num_decisions])
        self.rows = tuple(row for row in run.rows if row.decision_id in kept)
        every = plan_compositions(shapes_of(self.rows), arm, run.config.sweep, run.config.seed)
        chosen = {c.name for plan in plans for c in plan.chosen(every)}
        self.compositions = tuple(c for c in every if c.name in chosen)
        stored = {n: s for plan in plans for n, s in run.scores[plan.process_id].items()}
        self.scores = {c.name: self._array(c.name, stored) for c in self.compositions}
        self.facts = run.facts[plans[0].process_id]
        names = {name: at for at, name in enumerate(dict.fromkeys(self._owners()))}
        self.decision_of_row = np.array([names[name] for name in self._owners()])
        self.decision_ids = tuple(names)

    @cached_property
    def matrix(self) -> Scores:
        """All compositions but the repeats, `[compositions, rows]`."""
        return np.stack([s for n, s in self.scores.items() if not n.startswith(REPEATS)])

    @cached_property
    def repeats(self) -> Scores:
        """The first composition, again in the same process, in a fresh one: `[repeats, rows]`."""
        original = self.compositions[0].name
        return np.stack([self.scores[f"{kind}{original}"] for kind in ("", *REPEATS)])

    def movements(self, num_decisions: int | None = None) -> Scores:
        """Return the movement of the first decisions over all that was scored, `[decisions]`."""
        mine = self.decision_of_row < (num_decisions or len(self.decision_ids))
        everything = np.stack(list(self.scores.values()))
        return decision_ranges(everything[:, mine], self.decision_of_row[mine])

    def placements(self) -> list[Placement]:
        """Return where each composition puts each row."""
        num_tokens = np.array([row.num_tokens for row in self.rows])
        return [Placement(composition, num_tokens) for composition in self.compositions]

    def _owners(self) -> list[str]:
        return [row.decision_id for row in self.rows]

    def _array(self, name: str, stored: Mapping[str, Mapping[int, float]]) -> Scores:
        found = stored.get(name, {})
        if len(found) != len(self.rows):
            raise StoreError(
                f"{name}: {len(found)} of {len(self.rows)} rows are stored; resume the run first"
            )
        return np.array([found[row] for row in range(len(self.rows))])


class ArmEvidence:
    """All that was found out about one arm."""

    def __init__(self, run: Snapshot, at: int) -> None:
        """Read arm number `at` of `run`; raise StoreError when a score is missing."""
        self.run, self.arm = run, run.config.arms[at]
        plans = [p for p in plan_processes(run.config, run.num_decisions) if p.arm == at]
        self.measured = _Measured(run, self.arm, [p for p in plans if not p.is_reference])
        self.reference = _Measured(run, self.arm, [p for p in plans if p.is_reference])
        self.finite = self._finite()

    @property
    def title(self) -> str:
        """The arm in one line: condition and batching."""
        covered = self._covered()
        return f"{label(self.arm.condition)}, {covered.mode}, up to {covered.max_rows} rows"

    @cached_property
    def axes(self) -> tuple[AxisRows, ...]:
        """The evidence about every axis; needs finite scores."""
        measured = self.measured
        return compare_axes(measured.placements(), measured.scores, measured.decision_of_row)

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
        return (self._rounding(), self._live_head(), self._distinct_arms(), self.finite)

    def tolerance(self) -> Tolerance:
        """Return the tolerance; raise GuardRefusalError when a guard failed."""
        refuse_if_failed(self.guards)
        claim, measured = self.run.config.claim, self.measured
        condition, covered = measured.facts.condition, self._covered()
        return fit_tolerance(
            FitInput(
                precision_mode=condition.precision_mode,
                reduction_order=condition.reduction_order,
                batches=covered,
                decision_of_row=measured.decision_of_row,
                compositions=measured.matrix,
                repeats=(measured.repeats,),
                axes=tuple(rows.finding(claim.confidence) for rows in self.axes),
                required_axes=required_axes(self.arm.batching),
                neighbours=self.neighbours,
                guards=self.guards,
                coverage=claim.coverage,
                confidence=claim.confidence,
            )
        )

    def _covered(self) -> CoveredBatches:
        """Return what the tolerance speaks for: the arm's own side, however many were measured.

        The other side is measured at one batch size, to see what it does; it widens the envelope.
        """
        batching = self.arm.batching
        batches = [batch for c in self.measured.compositions for batch in c.batches]
        return CoveredBatches(
            mode=str(batching.__struct_config__.tag),
            max_rows=max(len(batch.rows) for batch in batches),
            max_width=max(batch.width for batch in batches),
            sides=() if isinstance(batching, Solo) else (batching.side,),
        )

    def _finite(self) -> GuardFinding:
        arms = {
            f"{m.facts.condition.precision_mode.name}, {name}": scores
            for m in (self.measured, self.reference)
            for name, scores in m.scores.items()
        }
        names = [f"{row.decision_id}/{row.branch_id}" for row in self.measured.rows]
        return finite(arms, names)

    def _rounding(self) -> GuardFinding:
        reference, count = self.reference, len(self.reference.decision_ids)
        magnitudes = decision_magnitudes(reference.matrix[0], reference.decision_of_row)
        evidence = RoundingEvidence(
            low=self.arm.precision,
            reference=reference.facts.condition.precision_mode.name,
            low_movements=self.measured.movements(count),
            reference_movements=reference.movements(),
            magnitudes=magnitudes,
            names=reference.decision_ids,
        )
        return rounding(
            evidence, seed=self.run.config.seed, confidence=self.run.config.claim.confidence
        )

    def _live_head(self) -> GuardFinding:
        original, _, fresh = self.measured.repeats
        digests = [
            self.run.facts[p.process_id].condition.loaded_digest for p in self.measured.plans
        ]
        return live_head(
            HeadEvidence(
                precision=self.arm.precision,
                scores=original,
                fresh_scores=(fresh,),
                decision_of_row=self.measured.decision_of_row,
                weights_digests=tuple(digests),
            )
        )

    def _distinct_arms(self) -> GuardFinding:
        name = next(n for n in self.reference.scores if n in self.measured.scores)
        size = len(self.reference.rows)
        return distinct_arms(
            _guard_arm("measured", self.measured, name, size),
            _guard_arm("reference", self.reference, name, size),
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


def _guard_arm(name: str, measured: _Measured, composition: str, size: int) -> GuardArm:
    return GuardArm(
        name=name,
        precision=measured.facts.condition.precision_mode,
        scores=measured.scores[composition][:size].copy(),
    )
