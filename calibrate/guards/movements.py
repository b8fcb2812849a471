"""Movements of the same decisions in two precisions: what the rounding guard compares.

Rules: the reference is finer; every array is over the same decisions. Not known here: whether the
movements are rounding.
"""

import numpy as np

from calibrate.sensitivity import Scores
from harness.conditions.precision import unit_roundoff
from harness.errors import ConfigError, InvalidRecordError
from harness.records import PrecisionName
from harness.records.document import Record

__all__ = ["RoundingEvidence"]


class RoundingEvidence(Record, frozen=True, kw_only=True, eq=False):
    """The same decisions and compositions in two precisions, from the same stored weights."""

    low: PrecisionName
    """The precision that is calibrated."""
    reference: PrecisionName
    """A finer one."""
    low_movements: Scores
    """`[decisions]`: movement in the low precision."""
    reference_movements: Scores
    """`[decisions]`: movement in the reference precision."""
    magnitudes: Scores
    """`[decisions]`: largest absolute score of each decision, in either precision."""
    companion_movements: Scores = np.zeros(0)
    """`[decisions]`: movement in the reference precision when only the neighbours' content changes,
    at a fixed shape; empty where that was not exercised."""
    names: tuple[str, ...] = ()
    """Decision ids for the evidence; empty to number them."""

    def __post_init__(self) -> None:
        """The reference is finer, and all arrays are over the same decisions."""
        if self.roundoff_ratio >= 1:
            raise ConfigError(
                f"{self.reference} is no reference for {self.low}: its unit roundoff must be less"
            )
        arrays = [self.low_movements, self.reference_movements, self.magnitudes]
        if self.companion_movements.size:
            arrays.append(self.companion_movements)
        shapes = {array.shape for array in arrays}
        if len(shapes) != 1 or self.low_movements.ndim != 1:
            raise InvalidRecordError(f"the arrays are not all `[decisions]`: {sorted(shapes)}")
        if self.names and len(self.names) != len(self.low_movements):
            raise InvalidRecordError("`names` has another length than the movements")

    @property
    def roundoff_ratio(self) -> float:
        """Unit roundoff of the reference over that of the low precision: what rounding predicts."""
        return unit_roundoff(self.reference) / unit_roundoff(self.low)
