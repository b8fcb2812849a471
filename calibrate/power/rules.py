"""Rules that say whether a replay shows a fault: those that a user would pick, and ours.

Pure. The rivals see scores alone; a replay with other branches or a score that is no finite number
is a fault to each of them. None is weakened: each is what its name says, with the constants that
its users take.

* `argmax`: another branch wins;
* `rank`: the branches stand in another order, equal scores by branch id;
* `fixed 0.04`: a score moved by more than 0.04, whatever the build;
* `assert_close`: ``|replay - commit| > atol + rtol |commit|`` with the defaults that
  `torch.testing.assert_close` documents for the dtype of the scores;
* `exact`: some score has other bits;
* `envelope alone`: our envelope, for this build, without comparing parameters;
* `scorepin`, `scorepin strict`: parameters first, then the tolerance.

Source of the constants: PyTorch documentation, torch.testing.assert_close, table of defaults.
"""

from collections.abc import Callable, Mapping

from harness.conditions.precision import torch_dtype_name
from harness.judge.classify import judge
from harness.judge.movement import incomparable, movement
from harness.judge.ranking import stable_ranking, winner
from harness.judge.tolerances import Tolerances
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.document import Record
from harness.records.verdict import Policy

__all__ = [
    "ASSERT_CLOSE",
    "FIXED_TOLERANCE",
    "OURS",
    "STRICT",
    "Closeness",
    "Rule",
    "beyond",
    "rules",
]

FIXED_TOLERANCE = 0.04
"""The largest shift that the published setting saw, in the score unit."""

OURS, STRICT = "scorepin", "scorepin strict"

IsFault = Callable[[CommitRecord, ReplayRecord], bool]
Scores = Mapping[str, float]


class Rule(Record, frozen=True, kw_only=True):
    """One rule."""

    name: str
    """As tables show it."""
    definition: str
    """When it calls a fault."""
    is_fault: IsFault
    """The rule itself."""


class Closeness(Record, frozen=True, kw_only=True):
    """Defaults of `torch.testing.assert_close` for one dtype."""

    rtol: float
    """Share of the commit's score."""
    atol: float
    """On top of it."""


ASSERT_CLOSE = {
    "float16": Closeness(rtol=1e-3, atol=1e-5),
    "bfloat16": Closeness(rtol=1.6e-2, atol=1e-5),
    "float32": Closeness(rtol=1.3e-6, atol=1e-5),
    "float64": Closeness(rtol=1e-7, atol=1e-7),
}
"""dtype -> its defaults."""


def rules(tolerances: Tolerances, envelope: float, now: str | None) -> tuple[Rule, ...]:
    """Return every rule, the rivals first."""
    return (
        *RIVALS,
        Rule(
            name="envelope alone",
            definition=f"a score moved by more than {envelope!r}, this build's envelope; "
            "parameters are not compared",
            is_fault=beyond(envelope),
        ),
        *(
            Rule(
                name=name,
                definition=f"the verdict under policy {policy} is a fault",
                is_fault=_judged(tolerances, policy, now),
            )
            for name, policy in ((OURS, Policy.DEFAULT), (STRICT, Policy.STRICT))
        ),
    )


def _over_scores(differ: Callable[[Scores, Scores], bool]) -> IsFault:
    def is_fault(commit: CommitRecord, replay: ReplayRecord) -> bool:
        scores = replay.numeric_scores()
        broken = incomparable(commit.scores, scores)
        return broken is not None or differ(commit.scores, scores)

    return is_fault


def beyond(tolerance: float) -> IsFault:
    """Return the rule that a score moved by more than `tolerance`."""
    return _over_scores(lambda commit, replay: not movement(commit, replay).delta <= tolerance)


def _not_close(commit: CommitRecord, replay: ReplayRecord) -> bool:
    mode = commit.invocation.precision_mode
    dtype = str(mode.resolved.get("head_dtype", torch_dtype_name(mode.name)))
    return _over_scores(lambda here, there: not _all_close(here, there, ASSERT_CLOSE[dtype]))(
        commit, replay
    )


def _all_close(expected: Scores, actual: Scores, close: Closeness) -> bool:
    return all(
        abs(actual[name] - score) <= close.atol + close.rtol * abs(score)
        for name, score in expected.items()
    )


def _judged(tolerances: Tolerances, policy: Policy, now: str | None) -> IsFault:
    return lambda commit, replay: judge(commit, replay, tolerances, policy=policy, now=now).fault


RIVALS = (
    Rule(
        name="argmax",
        definition="another branch wins",
        is_fault=_over_scores(lambda commit, replay: winner(commit) != winner(replay)),
    ),
    Rule(
        name="rank",
        definition="the branches stand in another order",
        is_fault=_over_scores(
            lambda commit, replay: stable_ranking(commit, 0.0) != stable_ranking(replay, 0.0)
        ),
    ),
    Rule(
        name=f"fixed {FIXED_TOLERANCE}",
        definition=f"a score moved by more than {FIXED_TOLERANCE}",
        is_fault=beyond(FIXED_TOLERANCE),
    ),
    Rule(
        name="assert_close",
        definition="torch.testing.assert_close fails, at its defaults for the scores' dtype",
        is_fault=_not_close,
    ),
    Rule(
        name="exact",
        definition="some score has other bits",
        is_fault=_over_scores(lambda commit, replay: not movement(commit, replay).bitwise_equal),
    ),
)
"""Those that need no calibration."""
