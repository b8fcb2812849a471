"""The demo: a whole life of a tolerance, on a real verifier, ending in three replays.

An honest replay repeats the recorded computation. One in other batches is a reconstruction. The
third is planted, and labelled so: a replica that computes in another precision and records what it
was asked for, as a misconfigured server would.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from calibrate.config import CalibrationConfig
from calibrate.power.replicas import misreport, rebatched
from calibrate.power.side_by_side import side_by_side
from calibrate.run import num_processes
from harness.codec import encode
from harness.commit_log import CommitLog
from harness.files import write_atomic
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Decision, Item
from harness.records.document import Record
from harness.records.tolerance import ToleranceFile
from harness.records.verdict import Policy, Verdict
from harness.replay import ReplayAs, replay_commits
from harness.scoring import Advance, score_decisions

__all__ = [
    "NUM_WAYS",
    "Played",
    "Scene",
    "demo_config",
    "misreport",
    "on_stage",
    "play",
    "store_scenes",
]

DEMO_DECISIONS = 60
"""Decisions that the demo commits and replays, at most; a quarter of all if they are fewer."""

NUM_WAYS = 3
"""Ways in which each commit is replayed."""

COMMIT_ROWS = 12
REPLAY_ROWS = 3


class Scene(Record, frozen=True, kw_only=True):
    """One kind of replay of the same commits, judged."""

    title: str
    """What was done."""
    replays: tuple[ReplayRecord, ...]
    """What came of it."""
    verdicts: tuple[Verdict, ...]
    """How it is judged by default."""
    strict: tuple[Verdict, ...]
    """How it is judged under the strict policy."""


class Played(Record, frozen=True, kw_only=True):
    """What the demo committed and replayed."""

    commits: tuple[CommitRecord, ...]
    """The commits."""
    items: tuple[Item, ...]
    """The text behind their content digests."""
    scenes: tuple[Scene, ...]
    """The replays, in the order they are told."""


def demo_config() -> Path:
    """Return the demo's config: beside the code when installed, under configs/ in a checkout."""
    package = Path(__file__).parent
    installed = package / "demo.yaml"
    return installed if installed.is_file() else package.parent / "configs" / "demo.yaml"


def store_scenes(folder: Path, played: Played) -> None:
    """Append the commits to the run's log and write each scene's replays beside it."""
    CommitLog(folder / "commits.jsonl").append(played.commits, played.items)
    for scene in played.scenes:
        lines = b"".join(encode(replay) + b"\n" for replay in scene.replays)
        name = scene.replays[0].replica
        write_atomic(folder / f"replays-{name}.jsonl", lines, overwrite=True)


def on_stage(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return the decisions that the demo commits and replays."""
    return decisions[: max(min(DEMO_DECISIONS, len(decisions) // 4), 1)]


def play(
    config: CalibrationConfig,
    file: ToleranceFile,
    decisions: tuple[Decision, ...],
    advance: Advance = lambda _: None,
) -> Played:
    """Commit `decisions`, replay them in three ways side by side, and judge each.

    `advance` may be called by several threads at a time.
    """
    arm, tolerances = config.arms[0], Tolerances(files=(file,))
    scored = score_decisions(
        config.verifier,
        arm.condition,
        rebatched(arm.batching, COMMIT_ROWS),
        decisions,
        advance=advance,
    )
    commits = scored.commits
    items = {item.content_digest: item for item in scored.items}
    other = arm.reference_on(config.verifier.engine)
    ways = (
        ReplayAs(replica="honest"),
        ReplayAs(replica="rebatched", batching=rebatched(arm.batching, REPLAY_ROWS)),
        ReplayAs(replica="planted", condition=other),
    )
    calls = [partial(replay_commits, commits, items, way) for way in ways]
    honest, smaller, planted = side_by_side(calls, num_processes(config), advance)
    scenes = (
        _scene("the same computation again", commits, honest, tolerances),
        _scene(f"in batches of {REPLAY_ROWS}", commits, smaller, tolerances),
        _scene(
            f"planted: secretly in {other.precision}",
            commits,
            misreport(planted, commits),
            tolerances,
        ),
    )
    return Played(commits=commits, items=scored.items, scenes=scenes)


def _scene(
    title: str,
    commits: Sequence[CommitRecord],
    replays: tuple[ReplayRecord, ...],
    tolerances: Tolerances,
) -> Scene:
    pairs = list(zip(commits, replays, strict=True))
    return Scene(
        title=title,
        replays=replays,
        verdicts=tuple(judge(commit, replay, tolerances) for commit, replay in pairs),
        strict=tuple(judge(c, r, tolerances, policy=Policy.STRICT) for c, r in pairs),
    )
