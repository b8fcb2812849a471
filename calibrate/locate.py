"""Locates where a decision's scores part: chooses two batches, and compares them in a process.

The search scores only the batches that hold the decision's own rows, in every composition of the
arm. The comparison is made in the condition's process, where the tensors are.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from calibrate.compositions import REPEATS, Composition, plan_compositions
from calibrate.config import Arm, CalibrationConfig
from calibrate.flight_compositions import flight_traits
from calibrate.located import BatchShown, Located
from calibrate.parted_trees import parted_trees
from calibrate.run import shapes_of, stored_rows
from harness.conditions.attention import Attention
from harness.conditions.batching import Batch
from harness.conditions.condition import Condition, label
from harness.decisions import read_decisions, row_texts
from harness.errors import ConfigError, InputFileError, UnsupportedConditionError, nearest
from harness.records.decision import Decision
from harness.runner import ConditionProcess
from harness.verifiers.divergence import Cause, Divergence
from harness.verifiers.protocol import EncodedRow

__all__ = ["Pair", "farthest", "locate"]

RowScores = Mapping[str, Mapping[int, float]]
"""Composition -> row -> score."""


class Pair(NamedTuple):
    """A row and two compositions."""

    row: int
    """Index of the row."""
    left: str
    """One composition."""
    right: str
    """The other."""


def locate(  # noqa: PLR0913 - options of one comparison
    config: CalibrationConfig,
    decision_id: str,
    *,
    arm: int = 0,
    left: str | None = None,
    right: str | None = None,
    trees: bool = False,
) -> Located:
    """Return where the computations of a decision part in two compositions of an arm.

    `left` and `right` are names of compositions; what is not given is chosen so that the decision
    moves most; `trees` measures the summation orders of the operator that differs, which takes some
    seconds more. Raises ConfigError or InputFileError for what is not there.
    """
    if not 0 <= arm < len(config.arms):
        raise ConfigError(f"--arm {arm}: the config's arms are 0 to {len(config.arms) - 1}")
    decisions = read_decisions(config.decisions, config.num_decisions)
    own = _own_rows(decisions, decision_id)
    condition = config.arms[arm].condition
    with _process(config, condition, decisions) as (process, rows):
        compositions = _compositions(config, config.arms[arm], decisions, rows)
        _refuse_unknown(compositions, left, right)
        asked = _asked(compositions, left, right)
        scores = _scores(process, asked, own)
        pair = farthest(scores, left, right) or _unmoved(asked, own[0], left, right)
        batches = [_batch_of(compositions[name], pair.row) for name in (pair.left, pair.right)]
        divergence = process.trace(batches[0], batches[1], pair.row)
        adds = _trees(process, divergence, batches) if trees else ()
    branches = [branch.branch_id for decision in decisions for branch in decision.branches]
    located = Located(
        decision_id=decision_id,
        branch_id=branches[pair.row],
        num_tokens=len(rows[pair.row].token_ids),
        condition=label(condition),
        num_searched=len(asked),
        left=_shown(pair.left, batches[0], pair.row),
        right=_shown(pair.right, batches[1], pair.row),
        divergence=divergence,
        trees=adds,
    )
    return _in_one_order(located, config, condition, decisions, batches, pair.row)


def farthest(scores: RowScores, left: str | None = None, right: str | None = None) -> Pair | None:
    """Return the row and the compositions between which it moves most; None when nothing moves.

    A score that is no number is farther from one that is than any two numbers are.
    """
    lefts = [left] if left else list(scores)
    rights = [right] if right else list(scores)
    found = [
        (_apart(scores[a][row], scores[b][row]), Pair(row, a, b))
        for a in lefts
        for b in rights
        if a != b
        for row in scores[a]
    ]
    moved = [(apart, pair) for apart, pair in found if apart > 0]
    return max(moved, key=lambda item: item[0])[1] if moved else None


def _apart(left: float, right: float) -> float:
    if math.isnan(left) or math.isnan(right):
        return 0.0 if math.isnan(left) and math.isnan(right) else math.inf
    return 0.0 if left == right else abs(left - right)


def _unmoved(
    compositions: Mapping[str, Composition], row: int, left: str | None, right: str | None
) -> Pair:
    """Return the pair to compare where no score moved: the smallest batch and the largest."""
    sizes = {name: len(_batch_of(c, row).rows) for name, c in compositions.items()}
    smallest = left or min(sizes, key=lambda name: sizes[name])
    rest = {name: size for name, size in sizes.items() if name != smallest} or sizes
    return Pair(row, smallest, right or max(rest, key=lambda name: rest[name]))


def _own_rows(decisions: Sequence[Decision], decision_id: str) -> list[int]:
    owners = [decision.decision_id for decision in decisions for _ in decision.branches]
    found = [at for at, owner in enumerate(owners) if owner == decision_id]
    if not found:
        advice = nearest(decision_id, dict.fromkeys(owners))
        raise InputFileError(f"--decision {decision_id}: not among the decisions; {advice}")
    return found


@contextmanager
def _process(
    config: CalibrationConfig, condition: Condition, decisions: tuple[Decision, ...]
) -> "Iterator[tuple[ConditionProcess, tuple[EncodedRow, ...]]]":
    with ConditionProcess(config.verifier, condition, row_texts(decisions)) as process:
        yield process, process.ready().rows


def _compositions(
    config: CalibrationConfig, arm: Arm, decisions: Sequence[Decision], rows: Sequence[EncodedRow]
) -> dict[str, Composition]:
    shapes = shapes_of(stored_rows(decisions, rows))
    planned = plan_compositions(
        shapes, arm, config.sweep, config.seed, flight_traits(config.verifier)
    )
    return {c.name: c for c in planned if not c.name.startswith(REPEATS)}


def _asked(
    compositions: Mapping[str, Composition], left: str | None, right: str | None
) -> Mapping[str, Composition]:
    """Return the compositions to score: all where one is to be chosen, else the two."""
    if left is None or right is None:
        return compositions
    return {name: compositions[name] for name in (left, right)}


def _refuse_unknown(compositions: Mapping[str, Composition], *names: str | None) -> None:
    for name in names:
        if name is not None and name not in compositions:
            raise ConfigError(f"no composition {name!r} in this arm; {nearest(name, compositions)}")


def _scores(
    process: ConditionProcess, compositions: Mapping[str, Composition], own: Sequence[int]
) -> RowScores:
    """Score the batches that hold the rows `own`, each batch once."""
    held = {name: {row: _batch_of(c, row) for row in own} for name, c in compositions.items()}
    batches = list(dict.fromkeys(batch for rows in held.values() for batch in rows.values()))
    scored = dict(zip(batches, process.score(batches), strict=True))
    return {
        name: {row: scored[batch][batch.rows.index(row)] for row, batch in rows.items()}
        for name, rows in held.items()
    }


def _batch_of(composition: Composition, row: int) -> Batch:
    return next(batch for batch in composition.batches if row in batch.rows)


def _shown(composition: str, batch: Batch, row: int) -> BatchShown:
    return BatchShown(
        composition=composition,
        num_rows=batch.num_rows or len(batch.rows),
        width=batch.width,
        side=batch.side,
        slot=batch.rows.index(row),
    )


def _trees(
    process: ConditionProcess, divergence: Divergence, batches: Sequence[Batch]
) -> tuple[str, ...]:
    """Return in which order the operator adds that makes the two part, where order is the cause."""
    parting = divergence.parting
    if parting is None or parting.cause is not Cause.ORDER:
        return ()
    return parted_trees(process.probe(batches), parting)


def _in_one_order(  # noqa: PLR0913, PLR0917 - what a comparison takes
    located: Located,
    config: CalibrationConfig,
    condition: Condition,
    decisions: tuple[Decision, ...],
    batches: Sequence[Batch],
    row: int,
) -> Located:
    """Compare the two again with every sum in one order, where rounding may hide something."""
    parting = located.divergence.parting
    order = condition.reduction_order
    if parting is None or parting.cause is not Cause.ORDER or order.name == "batch_invariant":
        return located
    kept = order.attention if order.attention is not Attention.EAGER else Attention.AUTO
    one_order = replace(
        order, name="batch_invariant", split_k=None, num_threads=None, attention=kept
    )
    try:
        return replace(
            located,
            in_one_order=_traced(
                config, replace(condition, reduction_order=one_order), decisions, batches, row
            ),
        )
    except UnsupportedConditionError as error:
        return replace(located, no_order=str(error))


def _traced(
    config: CalibrationConfig,
    condition: Condition,
    decisions: tuple[Decision, ...],
    batches: Sequence[Batch],
    row: int,
) -> Divergence:
    left, right = batches
    with _process(config, condition, decisions) as (process, _):
        return process.trace(left, right, row)
