"""What a run stored, and the scores of one precision of one arm out of it, as arrays.

Pure: a snapshot in, arrays over the same rows out. A score that is missing is an error, never a
gap.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from calibrate.axes import Placed, Placement
from calibrate.boundaries import refined
from calibrate.boundary_search import searches_by_arm
from calibrate.compositions import REPEATS, Composition, plan_compositions
from calibrate.config import CalibrationConfig
from calibrate.engine_axes import EnginePlacement
from calibrate.flight_compositions import flight_traits
from calibrate.observations import ObservationStore, ProcessFacts, RunIdentity, StoredRow
from calibrate.plan import ProcessPlan, process_compositions
from calibrate.requested_axes import RequestedPlacement
from calibrate.run import shapes_of
from calibrate.sensitivity import Scores, decision_ranges
from calibrate.strata import RowSizes
from harness.conditions.flight import EngineStep
from harness.errors import StoreError
from harness.records.document import Record
from harness.records.tolerance import AxisSearch

__all__ = ["Measured", "Snapshot", "snapshot"]


class Snapshot(Record, frozen=True, kw_only=True):
    """Everything that a run stored."""

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
    steps: dict[str, dict[str, dict[int, tuple[EngineStep, ...]]]] = {}
    """Process id -> composition -> batch -> the steps that an engine made of it."""
    searches: dict[int, tuple[AxisSearch, ...]] = {}
    """Arm -> where its results switch; none of an arm that was not searched."""

    @property
    def planned(self) -> CalibrationConfig:
        """What was asked for, with the sweep that was planned around what the searches found."""
        return refined(self.config, self.searches)

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
        steps={process_id: store.steps(process_id) for process_id in facts},
        searches=searches_by_arm(config, store),
    )


class Measured:
    """The scores of one precision of one arm, as arrays over the same rows."""

    def __init__(self, run: Snapshot, plans: Sequence[ProcessPlan]) -> None:
        """Read the scores of `plans`, which share the work of one arm in one precision.

        Raises StoreError when a process has not run or a score is missing.
        """
        self.plans = plans
        ids = list(dict.fromkeys(r.decision_id for r in run.rows))[: plans[0].num_decisions]
        planned = [row for row in run.rows if row.decision_id in set(ids)]
        kept = set(plans[0].decision_ids or ids)
        self.numbers = [at for at, row in enumerate(planned) if row.decision_id in kept]
        self.rows = tuple(planned[at] for at in self.numbers)
        self.compositions = _compositions(run, plans, planned)
        stored = {n: s for p in plans for n, s in run.scores.get(p.process_id, {}).items()}
        self.scores = {c.name: self._array(c.name, stored) for c in self.compositions}
        self.facts = run.facts[plans[0].process_id]
        self.precision = self.facts.condition.precision_mode.name
        self.traits = flight_traits(run.config.verifier)
        self._steps = {n: s for p in plans for n, s in run.steps.get(p.process_id, {}).items()}
        names = {name: at for at, name in enumerate(dict.fromkeys(self._owners()))}
        self.decision_of_row = np.array([names[name] for name in self._owners()])
        self.decision_ids = tuple(names)

    @cached_property
    def everything(self) -> Scores:
        """All compositions, repeats too, `[compositions, rows]`."""
        return np.stack(list(self.scores.values()))

    @cached_property
    def matrix(self) -> Scores:
        """All compositions but the repeats, `[compositions, rows]`."""
        return np.stack([s for n, s in self.scores.items() if not n.startswith(REPEATS)])

    @cached_property
    def repeats(self) -> Scores:
        """The first composition, again in the same process, in a fresh one: `[repeats, rows]`."""
        original = self.compositions[0].name
        return np.stack([self.scores[f"{kind}{original}"] for kind in ("", *REPEATS)])

    @property
    def alone(self) -> Scores:
        """Each row alone, `[rows]`."""
        return self.scores.get("solo", self.scores[self.compositions[0].name])

    def movements(self, num_decisions: int | None = None) -> Scores:
        """Return the movement of the first decisions over all that was scored, `[decisions]`."""
        mine = self.decision_of_row < (num_decisions or len(self.decision_ids))
        return decision_ranges(self.everything[:, mine], self.decision_of_row[mine])

    @cached_property
    def placements(self) -> Sequence[Placed]:
        """Where each composition puts each row."""
        num_tokens = np.array([row.num_tokens for row in self.rows])
        if not self._packed:
            return [Placement(composition, num_tokens) for composition in self.compositions]
        if self.is_requested:
            return [RequestedPlacement(one, num_tokens) for one in self.compositions]
        return [
            EnginePlacement(composition, self._ran(composition), num_tokens, self.traits)
            for composition in self.compositions
        ]

    def sizes(self) -> RowSizes | None:
        """Return the sizes that movement may depend on, over the compositions of `matrix`.

        None where an engine packed the rows: nothing is padded there.
        """
        if self._packed:
            return None
        padded = [
            placement
            for placement in self.placements
            if isinstance(placement, Placement) and not placement.name.startswith(REPEATS)
        ]
        return RowSizes(
            num_tokens=np.array([row.num_tokens for row in self.rows]),
            widths=np.stack([placement.width for placement in padded]),
        )

    @property
    def is_requested(self) -> bool:
        """Whether batch membership is what was asked for, and nobody saw what ran."""
        return self._packed and self.traits.is_foreign

    @property
    def _packed(self) -> bool:
        return any(b.flight is not None for c in self.compositions for b in c.batches)

    def _ran(self, composition: Composition) -> list[tuple[EngineStep, ...]]:
        """Return the steps of each of a composition's flights."""
        found = self._steps.get(composition.name, {})
        missing = [at for at in range(len(composition.batches)) if at not in found]
        if missing:
            raise StoreError(
                f"{composition.name}: the steps of {len(missing)} of {len(composition.batches)} "
                "flights are not stored; resume the run first"
            )
        return [found[at] for at in range(len(composition.batches))]

    def _owners(self) -> list[str]:
        return [row.decision_id for row in self.rows]

    def _array(self, name: str, stored: Mapping[str, Mapping[int, float]]) -> Scores:
        found = stored.get(name, {})
        num_found = sum(row in found for row in self.numbers)
        if num_found != len(self.numbers) or not found:
            raise StoreError(
                f"{name}: {num_found} of {len(self.numbers)} rows are stored; resume the run first"
            )
        return np.array([found[row] for row in self.numbers])


def _compositions(
    run: Snapshot, plans: Sequence[ProcessPlan], rows: Sequence[StoredRow]
) -> tuple[Composition, ...]:
    """Return what `plans` run between them, in the order of the arm's compositions."""
    config, shapes = run.planned, shapes_of(rows)
    found = {c.name: c for plan in plans for c in process_compositions(config, plan, shapes)}
    every = plan_compositions(
        shapes,
        config.arms[plans[0].arm],
        config.sweep,
        config.seed,
        flight_traits(config.verifier),
    )
    return tuple(found[c.name] for c in every if c.name in found)
