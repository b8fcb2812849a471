"""The study of a config: how its decisions are committed and replayed, and how often.

It changes no calibration, so it is not part of a config's digest.
"""

from typing import Annotated

from msgspec import Meta

from harness.records.document import Record

__all__ = ["PowerSpec"]

Count = Annotated[int, Meta(ge=1)]


class PowerSpec(Record, frozen=True, kw_only=True):
    """The study that `scorepin power` makes of the first arm."""

    candidates: Count | None = None
    """Branches of each decision that take part, from the first; None for all."""
    commit_rows: Count = 12
    """Rows in a batch when the decisions are committed."""
    replay_rows: Count = 3
    """Rows in a batch of a reconstruction."""
    honest_replays: Count = 1000
    """Honest replays, at least: all decisions in as many fresh processes as that takes."""
    num_orders: Count = 500
    """Seeded orders of the decisions in which each replica's alarm is watched."""
    alpha: Annotated[float, Meta(gt=0, lt=1)] = 0.01
    """False-alarm bound of the drift alarm."""
    other_checkpoint: str | None = None
    """Another checkpoint of the same model; None: all layers perturbed by 1e-2 stand in for it."""
