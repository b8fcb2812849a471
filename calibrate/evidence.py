"""Turns what a run stored into findings and, if all guards pass, into a tolerance file.

Pure: takes a snapshot of the store, gives records. The same snapshot gives the same bytes, however
often the run was interrupted.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

import calibrate
from calibrate.axes import Axis, AxisRows, Placement, compare_axes, required_axes
from calibrate.config import Arm, CalibrationConfig
from calibrate.fit import FitInput, fit_tolerance
from calibrate.guards import Arm as GuardArm
from calibrate.guards import (
    HeadEvidence,
    RoundingEvidence,
    distinct_arms,
    finite,
    live_head,
    neighbours,
    refuse_if_failed,
    rounding,
)
from calibrate.observations import ObservationStore, ProcessFacts, StoredRow
from calibrate.plan import REPEATS, ProcessPlan, plan_compositions, plan_processes
from calibrate.run import shapes_of
from calibrate.sensitivity import Scores, decision_magnitudes, decision_ranges
from harness.errors import StoreError
from harness.records.batching import PaddingSide, Solo
from harness.records.document import Record
from harness.records.tolerance import CoveredBatches, GuardFinding, Tolerance, ToleranceFile
from harness.verifiers.heads import score_unit

__all__ = ["ArmEvidence", "Snapshot", "snapshot", "tolerance_file"]


class Snapshot(Record, frozen=True, kw_only=True):
    """Everything a finished run stored."""

    config: CalibrationConfig
    """What was asked for."""
    decisions_digest: str
    """Digest of the decisions."""
    created_at: str
    """When the run was begun."""
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


def snapshot(
    config: CalibrationConfig, store: ObservationStore, decisions_digest: str, created_at: str
) -> Snapshot:
    """Read a run out of its store."""
    facts = dict(store.facts())
    return Snapshot(
        config=config,
        decisions_digest=decisions_digest,
        created_at=created_at,
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
        """The repeated composition and its repeats, `[repeats, rows]`."""
        again = [name for name in self.scores if name.startswith(REPEATS)]
        original = again[0].removeprefix(REPEATS[0])
        return np.stack([self.scores[name] for name in (original, *again)])

    def movements(self, num_decisions: int | None = None) -> Scores:
        """Return the movement of the first decisions over all compositions, `[decisions]`."""
        mine = self.decision_of_row < (num_decisions or len(self.decision_ids))
        matrix = self.matrix
        if any(name.startswith(REPEATS) for name in self.scores):
            matrix = np.concatenate([matrix, self.repeats])
        return decision_ranges(matrix[:, mine], self.decision_of_row[mine])

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
        """Read arm number `at` of `run`; raise GuardRefusalError for a non-finite score."""
        self.run, self.arm = run, run.config.arms[at]
        plans = [p for p in plan_processes(run.config, run.num_decisions) if p.arm == at]
        self.measured = _Measured(run, self.arm, [p for p in plans if not p.is_reference])
        self.reference = _Measured(run, self.arm, [p for p in plans if p.is_reference])
        self._refuse_other_builds(plans)
        self.finite = self._finite()
        refuse_if_failed([self.finite])

    @cached_property
    def axes(self) -> tuple[AxisRows, ...]:
        """The evidence about every axis."""
        measured = self.measured
        return compare_axes(measured.placements(), measured.scores, measured.decision_of_row)

    @cached_property
    def guards(self) -> tuple[GuardFinding, ...]:
        """Every guard's finding but that of the neighbours."""
        return (self._rounding(), self._live_head(), self._distinct_arms(), self.finite)

    def tolerance(self) -> Tolerance:
        """Return the tolerance; raise GuardRefusalError when a guard failed."""
        run, measured = self.run, self.measured
        confidence = run.config.claim.confidence
        by_axis = {rows.axis: rows for rows in self.axes}
        companions = by_axis[Axis.COMPANIONS]
        pairs = [(companions.left, companions.right)] if companions.left.size else []
        condition = measured.facts.condition
        return fit_tolerance(
            FitInput(
                precision_mode=condition.precision_mode,
                reduction_order=condition.reduction_order,
                batches=self._covered(),
                decision_of_row=measured.decision_of_row,
                compositions=measured.matrix,
                repeats=(measured.repeats,),
                axes=tuple(rows.finding(confidence) for rows in self.axes),
                required_axes=required_axes(self.arm.batching, len(self._covered().sides)),
                neighbours=neighbours(
                    pairs, companions.decision_of_row, companions.settings, confidence
                ),
                guards=self.guards,
                coverage=run.config.claim.coverage,
                confidence=confidence,
            )
        )

    def _covered(self) -> CoveredBatches:
        batches = [batch for c in self.measured.compositions for batch in c.batches]
        return CoveredBatches(
            mode=_mode(self.arm),
            max_rows=max(len(batch.rows) for batch in batches),
            max_width=max(batch.width for batch in batches),
            sides=tuple(side for side in PaddingSide if any(b.side is side for b in batches)),
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
        original, *fresh = self.measured.repeats
        digests = [
            self.run.facts[p.process_id].condition.loaded_digest for p in self.measured.plans
        ]
        return live_head(
            HeadEvidence(
                precision=self.arm.precision,
                scores=original,
                fresh_scores=(fresh[-1],),
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

    def _refuse_other_builds(self, plans: Sequence[ProcessPlan]) -> None:
        builds = {self.run.facts[plan.process_id].build.build_id for plan in plans}
        if len(builds) > 1:
            raise StoreError("the processes of one run found different builds; begin it again")


def tolerance_file(run: Snapshot, arms: Sequence[ArmEvidence]) -> ToleranceFile:
    """Return the tolerance file of a run, not yet sealed.

    Raises GuardRefusalError when a guard failed for any arm.
    """
    created = datetime.fromisoformat(run.created_at)
    days = run.config.valid_days
    build = arms[0].measured.facts.build
    return ToleranceFile(
        scorepin_version=calibrate.__version__,
        created_at=run.created_at,
        expires_at=None if days is None else (created + timedelta(days=days)).isoformat(),
        score_unit=score_unit(run.config.verifier.head),
        config_digest=run.config.digest,
        decisions_digest=run.decisions_digest,
        num_truncated=sum(row.num_dropped > 0 for row in run.rows),
        build=build,
        tolerances=tuple(arm.tolerance() for arm in arms),
    )


def _mode(arm: Arm) -> str:
    return "solo" if isinstance(arm.batching, Solo) else str(arm.batching.__struct_config__.tag)


def _guard_arm(name: str, measured: _Measured, composition: str, size: int) -> GuardArm:
    return GuardArm(
        name=name,
        precision=measured.facts.condition.precision_mode,
        scores=measured.scores[composition][:size].copy(),
    )
