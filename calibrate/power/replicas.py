"""The table of replicas that differ in secret from the committed build.

Each says what it really runs. Whatever it runs, it records the committed invocation: a
misconfigured server reports what it was asked for. A replica whose scores keep every bit is no
fault that anyone could find, so how many moved is told beside how many were found.

Sources of the cases: a config that was changed on one node (precision, attention kernel), a
quantised or partly synced checkpoint, a prompt edited in place, a batcher that logs the batch it
planned instead of the one it ran.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from calibrate.config import Arm, CalibrationConfig
from calibrate.power.derived import Change, ForgottenMerges, Int8, Noise, derive
from harness.conditions.attention import Attention
from harness.conditions.condition import Condition, requested_switches
from harness.conditions.precision import torch_dtype_name
from harness.errors import CallerError, UnsupportedConditionError
from harness.records.batching import (
    Batching,
    FixedWidth,
    InFlight,
    Lanes,
    Order,
    Padded,
    Solo,
)
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.decision import Item
from harness.records.document import Record
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device, Prompt, VerifierSpec
from harness.replay import ReplayAs, replay_commits
from harness.scoring import Advance

__all__ = [
    "Difference",
    "Planted",
    "Replica",
    "misreport",
    "planted_replicas",
    "rebatched",
    "reordered",
    "replay_planted",
]


class Difference(StrEnum):
    """What differs in secret."""

    PRECISION = "precision"
    """Another precision mode."""
    ATTENTION = "attention"
    """Another attention kernel."""
    WEIGHTS = "weights"
    """Weights that are nearly the committed ones."""
    CHECKPOINT = "checkpoint"
    """Another checkpoint of the same model."""
    PROMPT = "prompt"
    """Another template or tokenizer."""
    MEMBERSHIP = "membership"
    """Other batches than the recorded ones."""


class Replica(Record, frozen=True, kw_only=True):
    """One replica that lies."""

    name: str
    """Short, unique in the table."""
    difference: Difference
    """What kind of thing differs."""
    differs: str
    """What differs, in words."""
    replay_as: ReplayAs = ReplayAs()
    """What it runs; by default what was committed."""
    change: Change | None = None
    """What was done to the checkpoint that it runs; None for the committed one."""


class Planted(Record, frozen=True, kw_only=True):
    """What one replica gave."""

    replica: Replica
    """The replica."""
    replays: tuple[ReplayRecord, ...]
    """As it reports them; empty when it could not be run."""
    num_weights_changed: int | None = None
    """Weights that differ once loaded; None where the checkpoint was not derived."""
    left_out: str | None = None
    """Why it could not be run; None when it was."""


def planted_replicas(config: CalibrationConfig) -> tuple[Replica, ...]:
    """Return the replicas that this config's verifier can be; a fake has no checkpoint to change.

    An attention kernel that the device lacks is found out by running it.
    """
    arm, rows = config.arms[0], config.power
    return (
        *_precisions(arm.condition, config.verifier.device),
        *_attentions(arm.condition),
        *(_checkpoints(config) if not config.verifier.model.startswith("fake:") else ()),
        Replica(
            name="template: a space",
            difference=Difference.PROMPT,
            differs="a space before the branch",
            replay_as=ReplayAs(
                verifier=replace(config.verifier, prompt=_spaced(config.verifier.prompt))
            ),
        ),
        *_memberships(arm, rows.commit_rows, rows.replay_rows),
    )


def replay_planted(
    verifier: VerifierSpec,
    replica: Replica,
    commits: Sequence[CommitRecord],
    items: Mapping[str, Item],
    advance: Advance,
) -> Planted:
    """Run one replica and return its replays as it reports them.

    One that this device or model cannot be is left out, with the reason.
    """
    with TemporaryDirectory(prefix="scorepin-") as folder:
        way, changed = replica.replay_as, None
        try:
            if replica.change is not None:
                dtype = torch_dtype_name(commits[0].invocation.precision_mode.name)
                target = Path(folder) / "model"
                derived = derive(verifier.model, verifier.revision, replica.change, dtype, target)
                other = replace(verifier, model=str(target), revision=None)
                way, changed = replace(way, verifier=other), derived.num_changed
            named = replace(way, replica=replica.name)
            replays = replay_commits(commits, items, named, advance)
        except CallerError as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return Planted(replica=replica, replays=(), left_out=reason)
    return Planted(
        replica=replica, replays=misreport(replays, commits), num_weights_changed=changed
    )


def misreport(
    replays: Sequence[ReplayRecord], commits: Sequence[CommitRecord]
) -> tuple[ReplayRecord, ...]:
    """Return `replays` as a replica would record them that reports what it was asked for."""
    return tuple(
        replace(replay, invocation=commit.invocation)
        for replay, commit in zip(replays, commits, strict=True)
    )


def rebatched(batching: Batching, rows: int) -> Padded | FixedWidth | Lanes | InFlight:
    """Return `batching` with at most `rows` in a batch; rows that ran alone are put together."""
    if isinstance(batching, Solo):
        return Padded(max_rows=rows)
    return replace(batching, max_rows=min(rows, batching.max_rows or rows))


def reordered(batching: Padded | FixedWidth | Lanes | InFlight) -> Batching:
    """Return `batching` with rows entering in another order: other companions, as many."""
    order = Order.GIVEN if batching.order is Order.SHUFFLED else Order.SHUFFLED
    return replace(batching, order=order)


def _precisions(committed: Condition, device: Device) -> Iterator[Replica]:
    """Yield every other precision mode of the device."""
    for name in PrecisionName:
        if name is committed.precision:
            continue
        condition = replace(committed, precision=name, precision_overrides={})
        try:
            requested_switches(condition, device)
        except UnsupportedConditionError:
            continue
        yield Replica(
            name=str(name),
            difference=Difference.PRECISION,
            differs=f"precision mode {name}",
            replay_as=ReplayAs(condition=condition),
        )


def _attentions(committed: Condition) -> Iterator[Replica]:
    own = committed.reduction_order.attention
    others = [kernel for kernel in (Attention.EAGER, Attention.MATH) if kernel is not own]
    if len(others) == 1:
        others.append(Attention.AUTO)
    for kernel in others:
        order = replace(committed.reduction_order, attention=kernel)
        yield Replica(
            name=f"attention: {kernel}",
            difference=Difference.ATTENTION,
            differs=f"attention kernel {kernel} instead of {own}",
            replay_as=ReplayAs(condition=replace(committed, reduction_order=order)),
        )


def _checkpoints(config: CalibrationConfig) -> Iterator[Replica]:
    yield Replica(
        name="weights: int8",
        difference=Difference.WEIGHTS,
        differs="every matrix of every layer rounded to int8, one scale an output channel",
        change=Int8(),
    )
    for relative in (1e-4, 1e-3, 1e-2):
        yield Replica(
            name=f"weights: {relative:.0e}".replace("e-0", "e-"),
            difference=Difference.WEIGHTS,
            differs=f"the middle layer's weights times 1 + {relative} N(0, 1)",
            change=Noise(relative=relative),
        )
    yield _other_checkpoint(config)
    yield Replica(
        name="tokenizer: merges",
        difference=Difference.PROMPT,
        differs="the later half of the tokenizer's merges forgotten",
        change=ForgottenMerges(),
    )


def _other_checkpoint(config: CalibrationConfig) -> Replica:
    other, known = config.power.other_checkpoint, config.verifier
    if other is None:
        return Replica(
            name="other checkpoint",
            difference=Difference.CHECKPOINT,
            differs="stand-in for another checkpoint: every layer's weights times 1 + 0.01 N(0, 1)",
            change=Noise(relative=1e-2, every_layer=True, seed=1),
        )
    return Replica(
        name="other checkpoint",
        difference=Difference.CHECKPOINT,
        differs=f"another checkpoint: {Path(other).name}",
        replay_as=ReplayAs(verifier=replace(known, model=other, revision=None)),
    )


def _memberships(arm: Arm, commit_rows: int, replay_rows: int) -> Iterator[Replica]:
    fewer = rebatched(arm.batching, replay_rows)
    yield Replica(
        name=f"batches of {fewer.max_rows}",
        difference=Difference.MEMBERSHIP,
        differs=f"batches of {fewer.max_rows}, recorded as the committed ones",
        replay_as=ReplayAs(batching=fewer),
    )
    same = rebatched(arm.batching, commit_rows)
    yield Replica(
        name="other companions",
        difference=Difference.MEMBERSHIP,
        differs=f"in another order into batches of {same.max_rows}, recorded as the committed ones",
        replay_as=ReplayAs(batching=reordered(same)),
    )


def _spaced(prompt: Prompt) -> Prompt:
    """Return `prompt` with a space before the branch."""
    if prompt.template is not None:
        return replace(prompt, template=prompt.template.replace("{branch}", " {branch}"))
    chat = tuple(
        replace(message, content=message.content.replace("{branch}", " {branch}"))
        for message in prompt.chat
    )
    return replace(prompt, chat=chat)
