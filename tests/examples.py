"""Valid records to start a test from: change one thing, see what follows.

Decision `d1` has branches a, b, c; one padded step holds them and one companion.
"""

from typing import Any

from msgspec.structs import replace

from harness.records import (
    AxisFinding,
    AxisSearch,
    AxisStatus,
    BatchMembership,
    Bound,
    Build,
    CommitRecord,
    CoveredBatches,
    Equivalence,
    GuardFinding,
    Invocation,
    Item,
    Padded,
    PaddingSide,
    PrecisionMode,
    PrecisionName,
    ReductionOrder,
    ReplayRecord,
    ScoreUnit,
    Slot,
    Step,
    Strata,
    StratumAxis,
    Switch,
    Tolerance,
    ToleranceFile,
    Verdict,
    VerdictKind,
    VerifierSpec,
)
from harness.records.scores import to_wire
from harness.records.verdict import DecisionImpact, DifferingParameter
from harness.records.verifier import Prompt, Reward
from harness.records.withdrawal import Withdrawal

SCORES = {"a": 1.5, "b": 0.25, "c": -2.0}
FLOOR = 2.0**-10
ENVELOPE = 2.0**-4
LATER = "2026-06-01T00:00:00+00:00"


def digest_of(letter: str) -> str:
    """Return something that looks like a digest."""
    return f"sha256:{letter * 64}"


def a_verifier() -> VerifierSpec:
    return VerifierSpec(
        model="embedded:reward", head=Reward(), prompt=Prompt(template="{context}{branch}")
    )


def a_build(**changes: Any) -> Build:
    build = Build(
        weights_digest=digest_of("1"),
        tokenizer_digest=digest_of("2"),
        prompt_digest=digest_of("3"),
        head_digest=digest_of("4"),
        engine="transformers 5.24.0",
        libraries={"torch": "2.13.0", "onednn": "3.11"},
        parallel_layout="1",
        device="cpu",
        device_name="Example CPU",
        device_capability="avx2 avx512f",
        kernel_environment={"OMP_PROC_BIND": "true"},
        verifier=a_verifier(),
    )
    return replace(build, **changes)


def a_slot(name: str, *, companion: bool = False, **changes: Any) -> Slot:
    slot = Slot(
        request_id=f"request-{name}",
        content_digest=digest_of(name),
        num_tokens=12,
        branch_id=None if companion else name,
    )
    return replace(slot, **changes)


def a_step(**changes: Any) -> Step:
    slots = a_slot("a"), a_slot("b"), a_slot("f", companion=True), a_slot("c")
    step = Step(slots=slots, padded_width=16, padding_side=PaddingSide.RIGHT)
    return replace(step, **changes)


def a_membership(**changes: Any) -> BatchMembership:
    return replace(BatchMembership(steps=(a_step(),), requested=Padded(max_rows=4)), **changes)


def a_precision(**changes: Any) -> PrecisionMode:
    mode = PrecisionMode(
        name=PrecisionName.BFLOAT16,
        requested={"weights_dtype": "bfloat16"},
        resolved={"weights_dtype": "bfloat16", "allow_tf32": None, "reduced_sums": True},
    )
    return replace(mode, **changes)


def an_order(**changes: Any) -> ReductionOrder:
    order = ReductionOrder(
        name="vendor",
        requested={"num_threads": 2},
        resolved={"num_threads": 2, "onednn": True, "attention": "math"},
        fingerprints={"linear[64x64]": digest_of("9")},
    )
    return replace(order, **changes)


def an_invocation(**changes: Any) -> Invocation:
    invocation = Invocation(
        build=a_build(),
        batch_membership=a_membership(),
        precision_mode=a_precision(),
        reduction_order=an_order(),
    )
    return replace(invocation, **changes)


def a_commit(**changes: Any) -> CommitRecord:
    commit = CommitRecord(
        commit_id="c1",
        decision_id="d1",
        scores=dict(SCORES),
        invocation=an_invocation(),
        winner="a",
    )
    return replace(commit, **changes)


def a_replay(**changes: Any) -> ReplayRecord:
    replay = ReplayRecord(
        commit_id="c1",
        decision_id="d1",
        scores=dict(SCORES),
        invocation=an_invocation(),
        replica="replica-0",
    )
    return replace(replay, **changes)


def moved(by: float, branch: str = "b") -> ReplayRecord:
    """Return a replay in which one score moved."""
    return a_replay(scores=to_wire({**SCORES, branch: SCORES[branch] + by}))


def a_bound(value: float, **changes: Any) -> Bound:
    bound = Bound(
        value=value,
        coverage=0.99,
        confidence=0.95,
        num_decisions=400,
        rank=1,
        exceedance_rate_upper=0.01,
        num_compositions=8,
        lower=value / 2,
    )
    return replace(bound, **changes)


def a_tolerance(**changes: Any) -> Tolerance:
    tolerance = Tolerance(
        precision_mode=a_precision(),
        reduction_order=an_order(),
        batches=CoveredBatches(mode="padded", max_rows=8, max_width=64, sides=(PaddingSide.RIGHT,)),
        equivalence=Equivalence.EXACT,
        companion_coupled=False,
        floor=a_bound(FLOOR),
        envelope=a_bound(ENVELOPE),
        axes=(
            AxisFinding(
                axis="num_rows",
                status=AxisStatus.MOVED,
                settings=("1", "8"),
                num_decisions=400,
                num_decisions_moved=37,
                moved_rate_upper=0.125,
                num_scores=3822,
                num_scores_moved=101,
                max_movement=0.046875,
            ),
        ),
        guards=(GuardFinding(guard="live_head", passed=True, evidence="3822 scores vary"),),
        searches=(
            AxisSearch(
                axis="num_rows",
                held="the row's own length, slot 0",
                sizes=(1, 2, 3, 4, 8),
                switches=(Switch(last=3, first=4),),
                probe_lengths=(12, 57),
            ),
        ),
        strata=(Strata(axis=StratumAxis.TOKEN_LENGTH, p_value=0.25, level=0.005, num_missing=336),),
    )
    return replace(tolerance, **changes)


def a_tolerance_file(**changes: Any) -> ToleranceFile:
    file = ToleranceFile(
        scorepin_version="0.1.0",
        created_at="2026-01-02T03:04:05+00:00",
        expires_at=None,
        score_unit=ScoreUnit.LOGIT,
        config_digest=digest_of("5"),
        decisions_digest=digest_of("6"),
        num_truncated=0,
        build=a_build(),
        tolerances=(a_tolerance(),),
    )
    return replace(file, **changes)


def a_withdrawal(**changes: Any) -> Withdrawal:
    withdrawal = Withdrawal(
        file_digest=digest_of("7"),
        tolerance_id="0123456789abcdef",
        replica="replica-0",
        commit_id="c1",
        withdrawn_at="2026-02-03T04:05:06+00:00",
        alpha=0.01,
        num_exceeded=3,
        num_observed=40,
    )
    return replace(withdrawal, **changes)


def an_item(name: str = "a") -> Item:
    return Item(content_digest=digest_of(name), context="2 + 2 = ?", text=f" answer {name}")


def a_verdict(**changes: Any) -> Verdict:
    verdict = Verdict(
        commit_id="c1",
        decision_id="d1",
        replica="replica-0",
        kind=VerdictKind.DRIFT,
        fault=False,
        reason="branch 'b' moved by 0.03125",
        delta=0.03125,
        worst_branch="b",
        floor=FLOOR,
        envelope=ENVELOPE,
        tolerance_id="0123456789abcdef",
        differing=(DifferingParameter(name="precision_mode.name", commit="x", replay="y"),),
        impact=DecisionImpact(top1_changed=False, order_inversions=0, within_tie=True),
    )
    return replace(verdict, **changes)
