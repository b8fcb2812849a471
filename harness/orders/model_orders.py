"""The reduction orders of one loaded model: its fingerprints, and what they mean for its batches.

Fingerprints come from the cache where it holds them for this build and condition. A probe always
measures anew (and fills an empty cache), over the ladder and at the very shapes of the batches that
it is given, and keeps the bits of each batch's first row beside them, so that what the trees
predict can be compared with what happens. Bits are those of the last hidden states, finer than a
score that was rounded once more.
"""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from harness.codec import digest
from harness.conditions.batching import Batch
from harness.orders.cache import load_fingerprints, store_fingerprints
from harness.orders.fingerprint import BatchOrders, BatchShape, OrderProbe
from harness.orders.survey import Survey
from harness.records.batching import PaddingSide
from harness.verifiers.forwards import Reads
from harness.verifiers.inputs import first_columns, padded_inputs
from harness.verifiers.protocol import EncodedRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelOrders", "Probeable"]

Score = Callable[[Sequence[EncodedRow], int, PaddingSide | None], list[float]]


class Probeable(Protocol):
    """A verifier whose sums can be probed."""

    @property
    def orders(self) -> "ModelOrders":
        """Its orders."""


class ModelOrders:
    """The orders of one model under the switches of this process."""

    def __init__(  # noqa: PLR0913 - what a forward takes
        self,
        model: Any,
        forward: Callable[..., "Tensor"],
        score: Score,
        *,
        ids: dict[str, int],
        longest: int,
        key: str,
    ) -> None:
        """`forward` takes inputs and `Reads`; `ids` are `padded_inputs`'s; `key` is the cache's."""
        self._model, self._forward, self._score = model, forward, score
        self._ids, self._longest, self._key = ids, longest, key

    def fingerprints(self) -> dict[str, str]:
        """Return class name -> fingerprint, measured unless the cache has them."""
        found = load_fingerprints(self._key)
        if found is None:
            found = self._survey.orders().fingerprints
            store_fingerprints(self._key, found)
        return found

    def probe(self, rows: Sequence[EncodedRow], batches: Sequence[Batch]) -> OrderProbe:
        """Measure the ladder and the shapes of `batches` of `rows`, and run the batches."""
        started = time.perf_counter()
        orders = self._survey.orders()
        seconds = time.perf_counter() - started
        shapes = [BatchShape(rows=len(batch.rows), width=batch.width) for batch in batches]
        rungs = self._survey.at(shapes)
        cached = load_fingerprints(self._key)
        if cached is None:
            store_fingerprints(self._key, orders.fingerprints)
        found = tuple(
            BatchOrders(batch=shape, rungs=own, observed=self._bits(rows, batch))
            for shape, own, batch in zip(shapes, rungs, batches, strict=True)
        )
        return OrderProbe(
            orders=orders,
            seconds=seconds,
            batches=found,
            trees=self._survey.trees,
            cached=cached,
        )

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self._model, self._run_lengths, self._longest)

    def _bits(self, rows: Sequence[EncodedRow], batch: Batch) -> str:
        """Return the digest of what the first row of `batch` comes to."""
        import torch  # noqa: PLC0415 - not on the planner's side

        own = [rows[at] for at in batch.rows]
        starts = first_columns(own, batch.width, batch.side)
        columns = slice(starts[0], starts[0] + len(own[0].token_ids))
        with torch.inference_mode():
            inputs = self._inputs(own, starts, batch.width)
            hidden = self._model.base_model(**inputs).last_hidden_state[0, columns]
        score = self._score(own, batch.width, batch.side)[0]
        return digest([hidden.to(torch.float64).cpu().tolist(), score])

    def _run_lengths(self, lengths: Sequence[int]) -> None:
        """Run one forward on rows of so many tokens each, read at their last."""
        import torch  # noqa: PLC0415 - not on the planner's side

        token = next(found for found in range(3) if found != self._ids["padding"])
        rows = [
            EncodedRow(token_ids=(token,) * length, branch_start=0, branch_end=length)
            for length in lengths
        ]
        width = max(lengths)
        starts = first_columns(rows, width, PaddingSide.RIGHT)
        reads = Reads(rows=list(range(len(rows))), columns=[length - 1 for length in lengths])
        with torch.inference_mode():
            self._forward(self._inputs(rows, starts, width), reads)

    def _inputs(
        self, rows: Sequence[EncodedRow], starts: Sequence[int], width: int
    ) -> "dict[str, Tensor]":
        padding, first_position = self._ids["padding"], self._ids["first_position"]
        inputs = padded_inputs(rows, starts, width, padding=padding, first_position=first_position)
        return {name: tensor.to(self._model.device) for name, tensor in inputs.items()}
