"""Runs what a study needs: the commits once, then every replica on them, several at a time.

Each replay of all commits has a fresh process, so no cache of an earlier one can help it.
"""

import math
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from calibrate.config import CalibrationConfig
from calibrate.power.replicas import (
    Planted,
    planted_replicas,
    rebatched,
    reordered,
    replay_planted,
)
from calibrate.power.side_by_side import side_by_side
from calibrate.run import num_processes
from harness.records.batching import Solo
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Decision
from harness.records.document import Record
from harness.replay import ReplayAs, replay_commits
from harness.scoring import Advance, score_decisions

__all__ = ["Staged", "num_runs", "stage", "taking_part"]

Replays = tuple[ReplayRecord, ...]


class Staged(Record, frozen=True, kw_only=True):
    """What was committed and replayed; each tuple of replays is in the commits' order."""

    commits: tuple[CommitRecord, ...]
    """The commits."""
    honest: tuple[Replays, ...]
    """The committed computation again, once a fresh process."""
    reconstruction: Replays
    """In smaller batches, and recorded so."""
    retried: Replays
    """The reconstruction executed again."""
    elsewhere: Replays
    """As the reconstruction, every decision in another batch of that size."""
    planted: tuple[Planted, ...]
    """Replicas that lie."""


def taking_part(
    decisions: Sequence[Decision], candidates: int | None, limit: int | None = None
) -> tuple[Decision, ...]:
    """Return the first `limit` decisions with their first `candidates` branches."""
    return tuple(replace(one, branches=one.branches[:candidates]) for one in decisions[:limit])


def num_runs(config: CalibrationConfig, num_decisions: int) -> int:
    """Return how often the decisions are scored in all, the commits included."""
    return 1 + len(_honest_ways(config, num_decisions)) + 3 + len(planted_replicas(config))


def stage(
    config: CalibrationConfig, decisions: tuple[Decision, ...], advance: Advance = lambda _: None
) -> Staged:
    """Commit `decisions` and replay them in every way; `advance` may be called by threads."""
    arm, rows = config.arms[0], config.power
    own = arm.batching
    batching = own if isinstance(own, Solo) else rebatched(own, rows.commit_rows)
    scored = score_decisions(
        config.verifier, arm.condition, batching, decisions, seed=config.seed, advance=advance
    )
    items = {item.content_digest: item for item in scored.items}
    smaller = rebatched(own, rows.replay_rows)
    ways = (
        *_honest_ways(config, len(decisions)),
        ReplayAs(replica="reconstruction", batching=smaller),
        ReplayAs(replica="retried", batching=smaller),
        ReplayAs(replica="elsewhere", batching=reordered(smaller)),
    )
    told = [partial(replay_commits, scored.commits, items, way) for way in ways]
    lying = [
        partial(replay_planted, config.verifier, replica, scored.commits, items)
        for replica in planted_replicas(config)
    ]
    at_a_time = num_processes(config)
    *same, reconstruction, retried, elsewhere = side_by_side(told, at_a_time, advance)
    return Staged(
        commits=scored.commits,
        honest=tuple(same),
        reconstruction=reconstruction,
        retried=retried,
        elsewhere=elsewhere,
        planted=tuple(side_by_side(lying, at_a_time, advance)),
    )


def _honest_ways(config: CalibrationConfig, num_decisions: int) -> tuple[ReplayAs, ...]:
    num = math.ceil(config.power.honest_replays / num_decisions)
    return tuple(ReplayAs(replica=f"honest-{at}") for at in range(num))
