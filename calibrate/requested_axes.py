"""Axes of batches that were asked of a foreign server: how many, in which order, with whom, when.

Nobody saw which of the requests a step really computed together, so every finding here is about
what was asked for, and its words say so. An axis that moves is a fact all the same; one that does
not is invariant as far as asking goes.
"""

from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from calibrate.axes import Axis, AxisRows, AxisRule
from calibrate.compositions import Composition

__all__ = ["RequestedPlacement", "as_requested"]

REQUESTED_RULES = {
    Axis.NUM_ROWS: AxisRule("num_rows", ("slot",)),
    Axis.COMPANIONS: AxisRule("members", ("num_rows", "slot", "shape")),
    Axis.ROW_ORDER: AxisRule("moment", ("arrangement",)),
    Axis.ARRIVAL_ORDER: AxisRule("arrangement", ("members",)),
}
"""The axes of which a client can say anything."""


class RequestedPlacement:
    """How one composition asks for each row; see `calibrate.axes.Placed`."""

    rules: Final = REQUESTED_RULES

    def __init__(self, composition: Composition, num_tokens: NDArray[np.int64]) -> None:
        """Read off the flights of `composition`; `num_tokens` are the prompts'."""
        self.name = composition.name
        size = len(num_tokens)
        self.num_rows = np.zeros(size, np.int64)
        self.slot = np.zeros(size, np.int64)
        self.moment = np.zeros(size, np.int64)
        self.members = np.zeros(size, np.int64)
        self.arrangement = np.zeros(size, np.int64)
        self.shape = np.zeros(size, np.int64)
        for moment, batch in enumerate(composition.batches):
            rows = list(batch.rows)
            self.num_rows[rows] = len(rows)
            self.slot[rows] = range(len(rows))
            self.moment[rows] = moment
            self.members[rows] = hash(frozenset(rows))
            self.arrangement[rows] = hash(batch.rows)
            self.shape[rows] = hash(tuple(num_tokens[rows].tolist()))


def as_requested(rows: AxisRows) -> AxisRows:
    """Return the evidence with words that say what it is about."""
    if not rows.settings:
        return rows
    known = "requested, not observed"
    if rows.axis is Axis.REPEAT_FRESH_PROCESS:
        known += "; a fresh client, the same server"
    return replace(rows, settings=(known, *rows.settings))
