"""Traces one row through two batches: where its bits first differ, why, and how far it goes.

Two forwards a batch. In the first every module's inputs and outputs are kept, cut to the row's own
tokens (`alignment`), and compared bit by bit. In the second the operators are recorded inside the
module where the two part: the innermost one that gets equal bits and gives others.

Rules kept here: watching changes no bit; hooks and modes are gone when it ends; what cannot be
compared is counted, never taken for equal.

What it does not know: a difference that ends before it reaches a module's output, and code that
does not go through torch's dispatcher.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from harness.conditions.batching import Batch
from harness.verifiers.alignment import RowPlace
from harness.verifiers.divergence import Cause, Divergence, Parting
from harness.verifiers.inputs import first_columns
from harness.verifiers.module_trace import ModuleCall, ModulePair, module_calls
from harness.verifiers.operator_trace import (
    OperatorCall,
    OperatorPair,
    first_difference,
    operator_calls,
)
from harness.verifiers.protocol import EncodedRow, Verifier

if TYPE_CHECKING:
    from torch import Tensor

    from harness.verifiers.forwards import Inputs, Reads

__all__ = ["RowInBatch", "Traceable", "Watch", "trace"]

Forward = Callable[["Inputs", "Reads"], "Tensor"]
"""Runs the model; returns the logits at the places."""

Watch = Callable[[Any, Forward, "Inputs", "Reads"], "Tensor"]
"""Called with model, forward, inputs and places in place of each forward; returns its logits."""


class Traceable(Verifier, Protocol):
    """What a backend offers to be watched."""

    def watched(self, watch: Watch) -> AbstractContextManager[None]:
        """Hand every forward inside the context to `watch`."""


class RowInBatch(NamedTuple):
    """One row of a batch."""

    batch: Batch
    """The batch."""
    rows: Sequence[EncodedRow]
    """Its rows, in slot order."""
    slot: int
    """The row's slot."""

    def place(self, inputs: "Inputs", reads: "Reads") -> RowPlace:
        """Return where the row's tokens are in the tensors of a forward."""
        num_rows, width = inputs["input_ids"].shape
        return RowPlace(
            row=self.slot,
            start=first_columns(self.rows, width, self.batch.side)[self.slot],
            length=len(self.rows[self.slot].token_ids),
            num_rows=num_rows,
            width=width,
            reads=reads,
        )


class _Tracer:
    """Runs one of the two batches and watches."""

    def __init__(self, verifier: Traceable, target: RowInBatch) -> None:
        self._verifier, self._target = verifier, target
        self.calls: list[ModuleCall] = []
        self.score = self._watched(self._modules)

    def operators(self, origin: ModulePair | None) -> list[OperatorCall]:
        """Return the operators that run inside the call `origin`; of the caller's code, none."""
        calls: list[OperatorCall] = []
        if origin is None:
            return calls

        def watch(model: Any, forward: Forward, inputs: "Inputs", reads: "Reads") -> "Tensor":
            place = self._target.place(inputs, reads)
            with operator_calls(model, origin.name, place, calls):
                return forward(inputs, reads)

        self._watched(watch)
        return calls

    def _modules(self, model: Any, forward: Forward, inputs: "Inputs", reads: "Reads") -> "Tensor":
        place = self._target.place(inputs, reads)
        self.positions = place.own(inputs["position_ids"])
        with module_calls(model, place, self.calls):
            return forward(inputs, reads)

    def _watched(self, watch: Watch) -> float:
        batch, rows, slot = self._target
        with self._verifier.watched(watch):
            return self._verifier.score(rows, batch.width, batch.side, batch.num_rows)[slot]


def trace(verifier: Traceable, left: RowInBatch, right: RowInBatch) -> Divergence:
    """Return where the computations of one row in a left and a right batch part."""
    tracers = _Tracer(verifier, left), _Tracer(verifier, right)
    pairs = _matched(*(tracer.calls for tracer in tracers))
    compared = [pair for pair in pairs if pair.outputs]
    first = next((pair for pair in compared if not pair.same_output), None)
    parting = None
    if first is not None:
        origin = _origin(first, pairs)
        operators = first_difference(*(tracer.operators(origin) for tracer in tracers))
        positions = [tracer.positions for tracer in tracers]
        parting = _parting(first, origin, operators, positions)
    names = {call.name for tracer in tracers for call in tracer.calls}
    return Divergence(
        parting=parting,
        modules=tuple(pair.growth() for pair in compared),
        num_not_compared=len(names) - len(compared),
        left_score=tracers[0].score,
        right_score=tracers[1].score,
    )


def _matched(left: Sequence[ModuleCall], right: Sequence[ModuleCall]) -> list[ModulePair]:
    others = {call.name: call for call in right}
    return [ModulePair(call, others[call.name]) for call in left if call.name in others]


def _origin(first: ModulePair, pairs: Sequence[ModulePair]) -> ModulePair | None:
    """Return the innermost call around `first`, or itself, whose inputs are equal; None: no call.

    A call that was given no tensor shows nothing, and is passed over.
    """
    by_name = {pair.name: pair for pair in pairs}
    at: ModulePair | None = first
    while at is not None and (at.differing_inputs() or not at.left.inputs):
        at = by_name.get(at.left.parent)
    return at


def _parting(
    first: ModulePair,
    origin: ModulePair | None,
    operators: OperatorPair | None,
    positions: "Sequence[Tensor | None]",
) -> Parting:
    inputs = first.differing_inputs()
    return Parting(
        module=first.name,
        kind=first.left.kind,
        origin="" if origin is None else origin.name,
        cause=_module_cause(first, inputs, positions) or _operator_cause(operators),
        differing_inputs=inputs,
        left=operators.left.shown if operators else None,
        right=operators.right.shown if operators else None,
    )


def _module_cause(
    first: ModulePair, inputs: Sequence[str], positions: "Sequence[Tensor | None]"
) -> Cause | None:
    """Return what differs at the input of the first module; None for nothing but its values."""
    if any("mask" in name for name in inputs):
        return Cause.ATTENTION_MASK
    integers = [name for name in inputs if first.is_integer(name)]
    named = any("position" in name for name in (*integers, first.name))
    if integers and (named or any(first.holds(name, positions) for name in integers)):
        return Cause.POSITION_IDS
    return Cause.TOKEN_IDS if integers else None


def _operator_cause(operators: OperatorPair | None) -> Cause:
    """Return what differs at the input of the first operator inside the origin."""
    if operators is None:
        return Cause.HIDDEN_STATE
    if operators.sees_differ:
        return Cause.ATTENTION_MASK
    if not operators.same_choices:
        return Cause.CHOICE
    if not operators.same_shared:
        return Cause.SHARED
    return Cause.ORDER if operators.same_inputs else Cause.HIDDEN_STATE
