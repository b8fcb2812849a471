"""Two tolerance files side by side: what is worse, what may be chance, what cannot be compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from calibrate.comparison import Comparison, Finding, compare
from calibrate.statistics import order_statistic_bound
from harness.errors import ConfigError, InsufficientEvidenceError
from harness.records import (
    Bound,
    CoveredBatches,
    PaddingSide,
    ScoreUnit,
    Tolerance,
    ToleranceFile,
)
from harness.tolerance_file import seal
from tests.command import invoke
from tests.examples import a_bound, a_build, a_precision, a_tolerance, a_tolerance_file


def a_file(*tolerances: Tolerance, **changes: Any) -> ToleranceFile:
    return a_tolerance_file(tolerances=tolerances or (a_tolerance(),), **changes)


def with_envelope(value: float, lower: float | None = None, **changes: Any) -> Tolerance:
    return a_tolerance(envelope=a_bound(value, lower=lower), **changes)


def solo() -> Tolerance:
    return a_tolerance(batches=CoveredBatches(mode="solo", max_rows=1, max_width=64, sides=()))


def envelope(comparison: Comparison) -> Finding:
    return comparison.changes[0].bounds[1].finding


@pytest.mark.parametrize(
    ("new", "lower", "allowed", "finding"),
    [
        (0.0625, 0.03, 1.0, Finding.NO_WORSE),
        (0.03, 0.02, 1.0, Finding.NO_WORSE),
        (0.07, 0.06, 1.0, Finding.MAY_BE_CHANCE),
        (0.07, 0.0625, 1.0, Finding.MAY_BE_CHANCE),
        (0.07, 0.065, 1.0, Finding.WORSE),
        (0.07, 0.065, 1.2, Finding.NO_WORSE),
        (0.2, 0.1, 2.0, Finding.MAY_BE_CHANCE),
        (0.2, 0.13, 2.0, Finding.WORSE),
        (0.2, 0.13, 0.5, Finding.WORSE),
        (0.05, 0.04, 0.5, Finding.WORSE),
    ],
)
def test_a_bound_is_worse_when_its_lower_limit_is_beyond_what_is_allowed(
    new: float, lower: float, allowed: float, finding: Finding
) -> None:
    found = compare(a_file(with_envelope(0.0625)), a_file(with_envelope(new, lower)), allowed)
    assert envelope(found) is finding
    assert found.is_worse == (finding is Finding.WORSE)
    assert found.changes[0].bounds[1].ratio == new / 0.0625
    assert found.changes[0].bounds[0].finding is not Finding.WORSE


def test_movement_where_there_was_none_is_worse_if_it_is_surely_there() -> None:
    still = a_tolerance(floor=a_bound(0.0), envelope=a_bound(0.0))
    for lower, finding in ((0.0, Finding.MAY_BE_CHANCE), (1e-9, Finding.WORSE)):
        moved = replace(still, envelope=a_bound(0.01, lower=lower))
        found = compare(a_file(still), a_file(moved), 100.0)
        assert envelope(found) is finding
        assert found.changes[0].bounds[1].ratio is None
    assert not compare(a_file(still), a_file(still)).is_worse


def test_a_worse_floor_alone_is_worse() -> None:
    worse = a_tolerance(floor=a_bound(0.05, lower=0.04))
    found = compare(a_file(), a_file(worse))
    assert [bound.finding for bound in found.changes[0].bounds] == [
        Finding.WORSE,
        Finding.NO_WORSE,
    ]
    assert found.is_worse


def test_what_changed_in_the_build_and_in_the_condition_is_named() -> None:
    build = a_build(libraries={"torch": "2.14.0", "onednn": "3.11"}, device_capability="avx2")
    precision = a_precision(resolved={**a_precision().resolved, "allow_tf32": True})
    found = compare(a_file(), a_file(a_tolerance(precision_mode=precision), build=build))
    assert [(one.name, one.commit, one.replay) for one in found.facts] == [
        ("build.device_capability", "avx2 avx512f", "avx2"),
        ("build.libraries.torch", "2.13.0", "2.14.0"),
    ]
    assert [one.name for one in found.changes[0].differing] == ["precision_mode.allow_tf32"]
    assert not found.is_worse
    assert found.same_decisions
    assert not compare(a_file(), a_file(decisions_digest="sha256:x")).same_decisions


def test_what_stands_in_one_file_only_is_named_and_decides_nothing() -> None:
    old, new = a_file(a_tolerance(), solo()), a_file(a_tolerance(), a_left())
    found = compare(old, new)
    assert [change.label for change in found.changes] == ["bfloat16, vendor, padded, padded right"]
    assert found.only_old == ("bfloat16, vendor, solo",)
    assert found.only_new == ("bfloat16, vendor, padded, padded left",)


def a_left() -> Tolerance:
    batches = replace(a_tolerance().batches, sides=(PaddingSide.LEFT,))
    return a_tolerance(batches=batches)


def test_of_several_the_smallest_batches_are_compared_with_the_smallest() -> None:
    def sized(max_rows: int, value: float) -> Tolerance:
        batches = replace(a_tolerance().batches, max_rows=max_rows)
        return a_tolerance(batches=batches, envelope=a_bound(value))

    found = compare(a_file(sized(32, 0.5), sized(8, 0.1)), a_file(sized(8, 0.1), sized(64, 0.5)))
    assert [change.bounds[1].old for change in found.changes] == [0.1, 0.5]
    assert [change.bounds[1].new for change in found.changes] == [0.1, 0.5]
    assert found.changes[1].label.endswith("#2")
    assert (found.changes[1].old_batches, found.changes[1].new_batches) == (
        "up to 32 rows of 64 tokens",
        "up to 64 rows of 64 tokens",
    )


NO_COMPARISON: dict[str, tuple[ToleranceFile, type[Exception], str]] = {
    "nothing in common": (a_file(solo()), InsufficientEvidenceError, "over zero items: one file"),
    "another unit": (a_file(score_unit=ScoreUnit.GRADE), ConfigError, "in logit and grade"),
    "another coverage": (
        a_file(a_tolerance(envelope=a_bound(0.1, coverage=0.95))),
        ConfigError,
        "envelope: the files claim coverage 0.99 at confidence 0.95 and coverage 0.95",
    ),
    "no lower limit": (
        a_file(with_envelope(0.1)),
        InsufficientEvidenceError,
        "envelope: the new file states no lower limit; calibrate",
    ),
}


@pytest.mark.parametrize("case", NO_COMPARISON)
def test_what_cannot_be_compared_is_refused(case: str) -> None:
    new, kind, message = NO_COMPARISON[case]
    with pytest.raises(kind, match=message):
        compare(a_file(), new)


def test_the_old_file_needs_no_lower_limit() -> None:
    assert not compare(a_file(with_envelope(0.0625)), a_file()).is_worse


NUM_RUNS = 400


def bound(seed: int, scale: float) -> Bound:
    movements = np.abs(np.random.default_rng(seed).standard_t(2, 181)) * scale
    return order_statistic_bound(movements, 0.95, 0.95, 2)


def share_called_worse(scale: float) -> float:
    """Return how often a build that moves `scale` times as far is called worse."""
    found = (
        compare(
            a_file(a_tolerance(floor=a_bound(0.0, coverage=0.95), envelope=bound(seed, 1.0))),
            a_file(
                a_tolerance(
                    floor=a_bound(0.0, coverage=0.95), envelope=bound(NUM_RUNS + seed, scale)
                )
            ),
        ).is_worse
        for seed in range(NUM_RUNS)
    )
    return sum(found) / NUM_RUNS


def test_the_same_build_is_seldom_called_worse_and_a_much_worse_one_mostly() -> None:
    """The bound is 2 x 0.05; the same rule without sampling error fails it (negative control)."""
    assert share_called_worse(1.0) <= stats.binom.isf(1e-6, NUM_RUNS, 0.1) / NUM_RUNS
    assert share_called_worse(8.0) > 0.9
    naive = sum(bound(NUM_RUNS + n, 1.0).value > bound(n, 1.0).value for n in range(NUM_RUNS))
    assert naive > stats.binom.isf(1e-6, NUM_RUNS, 0.1)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.tolerance.json", tmp_path / "new.tolerance.json"
    build = a_build(libraries={"torch": "2.14.0", "onednn": "3.11"})
    old.write_bytes(seal(a_file(a_tolerance(), solo())))
    new.write_bytes(seal(a_file(with_envelope(0.25, 0.125), build=build)))
    return old, new


SHOWN = """\
fact of the build       old      new
───────────────────────────────────────
build.libraries.torch   2.13.0   2.14.0

bfloat16, vendor, padded, padded right
bound             old          new     at least   new / old   finding
──────────────────────────────────────────────────────────────────────
floor      0.00097656   0.00097656   0.00048828           1   no worse
envelope       0.0625         0.25        0.125           4   worse

only in the old file: bfloat16, vendor, solo

worse: allowed is 1 times the old
"""


def test_diff_shows_both_files_and_ends_with_1_when_the_new_one_is_worse(
    files: tuple[Path, Path],
) -> None:
    done = invoke("diff", *files)
    assert (done.code, done.stderr) == (1, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == SHOWN.splitlines()


@pytest.mark.parametrize(("allow", "code"), [("1.9", 1), ("2", 0), ("4", 0), ("0", 1)])
def test_diff_allows_a_factor(files: tuple[Path, Path], allow: str, code: int) -> None:
    assert invoke("diff", *files, "--allow", allow).code == code


def test_diff_of_a_file_with_itself(files: tuple[Path, Path]) -> None:
    done = invoke("diff", files[0], files[0])
    assert done.code == 0
    assert "the same build" in done.stdout
    assert "no worse, as far as these decisions show" in done.stdout


def test_diff_for_a_machine(files: tuple[Path, Path]) -> None:
    done = invoke("diff", *files, "--json")
    told = json.loads(done.stdout)
    assert (done.code, told["is_worse"], told["allowed"]) == (1, True, 1.0)
    assert told["changes"][0]["bounds"][1] == {
        "bound": "envelope",
        "finding": "worse",
        "new": 0.25,
        "new_lower": 0.125,
        "old": 0.0625,
        "ratio": 4.0,
    }


def test_diff_of_files_that_cannot_be_compared_ends_with_2(files: tuple[Path, Path]) -> None:
    files[1].write_bytes(seal(a_file(solo(), score_unit=ScoreUnit.GRADE)))
    done = invoke("diff", *files)
    assert (done.code, done.stdout) == (2, "")
    assert "error ConfigError: the files are in logit and grade" in done.stderr
    files[1].write_bytes(b"{}")
    assert invoke("diff", *files).code == 2
