"""`show` and `classify`, on records made by hand: the whole text, and the exit status."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from calibrate.verdicts import JudgedFiles, withdraw_alarmed
from harness.codec import decode, encode, parse
from harness.files import read_lines
from harness.judge.alarm import alarm_over
from harness.records import (
    Bound,
    CommitRecord,
    PrecisionName,
    ReplayRecord,
    Tolerance,
    ToleranceFile,
    Verdict,
    VerdictKind,
)
from harness.records.document import Document
from harness.tolerance_file import load_tolerances, read_tolerance_file, seal
from tests.command import ENVIRONMENT, SCOREPIN, scorepin
from tests.examples import (
    ENVELOPE,
    FLOOR,
    SCORES,
    a_build,
    a_commit,
    a_precision,
    a_replay,
    a_tolerance,
    a_tolerance_file,
    a_verdict,
    an_invocation,
)

FILE = "t.tolerance.json"
JUDGE = ("classify", "commits.jsonl", "replays.jsonl", "--tolerances", FILE)

SHOWN = """\
verifier    embedded:reward
build       BUILD
engine      transformers 5.24.0, onednn 3.11, torch 2.13.0
device      Example CPU, avx2 avx512f
calibrated  2026-01-02T03:04:05+00:00, does not expire
truncated   0 rows

bfloat16, vendor
padded batches of up to 8 rows and 64 tokens, padded right; equivalence of
memberships: exact

bound      value, logit   coverage   confidence   decisions   beyond it
───────────────────────────────────────────────────────────────────────
floor       0.000976562       0.99         0.95         400     <= 0.01
envelope         0.0625       0.99         0.95         400     <= 0.01

axis       finding   decisions moved       rate   largest
─────────────────────────────────────────────────────────
num_rows   moved           37 of 400   <= 0.125    0.0469

searched   sizes tried     results switch between
─────────────────────────────────────────────────
num_rows   5 from 1 to 8   3 and 4

movement by    p-value   envelope
──────────────────────────────────────────
token_length   0.25      one for all sizes

guard       passed   evidence
─────────────────────────────────────
live_head   yes      3822 scores vary
"""

VERDICTS = """\
verdict          replays   faults   largest delta   winner changed
──────────────────────────────────────────────────────────────────
plan_noise             1        0    not compared     not compared
reconstruction         2        0    not compared     not compared
unjudged               1        0    not compared     not compared
exact                  1        0               0                0
consistent             1        0     0.000488281                0
drift                  1        0         0.03125                0
divergence             2        2               3                1
"""


def lines_of(folder: Path, name: str, records: Iterable[Document]) -> None:
    (folder / name).write_bytes(b"".join(encode(record) + b"\n" for record in records))


def tidy(text: str) -> str:
    """Return `text` without the blanks that fill a table's last column."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def of_every_kind() -> list[tuple[CommitRecord, ReplayRecord]]:
    other = an_invocation(precision_mode=a_precision(name=PrecisionName.FLOAT32))
    elsewhere = an_invocation(build=a_build(device_name="Other CPU"))
    replays = [
        a_replay(),
        a_replay(scores={**SCORES, "b": SCORES["b"] + FLOOR / 2}),
        a_replay(scores={**SCORES, "b": SCORES["b"] + ENVELOPE / 2}),
        a_replay(scores={**SCORES, "b": SCORES["b"] + 3}),
        a_replay(scores={**SCORES, "b": float("nan")}),
        a_replay(invocation=other),
        a_replay(invocation=other),
        a_replay(invocation=elsewhere),
        a_replay(),
    ]
    pairs = []
    for at, replay in enumerate(replays):
        commit = a_commit(commit_id=f"c{at}", committed=at != len(replays) - 1)
        if replay.invocation is elsewhere:
            commit = msgspec.structs.replace(commit, invocation=elsewhere)
        pairs.append((commit, msgspec.structs.replace(replay, commit_id=f"c{at}")))
    return pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pairs = of_every_kind()
    lines_of(tmp_path, "commits.jsonl", (commit for commit, _ in pairs))
    lines_of(tmp_path, "replays.jsonl", (replay for _, replay in pairs))
    (tmp_path / FILE).write_bytes(seal(a_tolerance_file()))
    return tmp_path


def some(folder: Path, *numbers: int) -> None:
    """Keep only these replays."""
    lines_of(folder, "replays.jsonl", (of_every_kind()[number][1] for number in numbers))


def test_show(folder: Path) -> None:
    done = scorepin("show", FILE, cwd=folder)
    build = a_build().build_id.removeprefix("sha256:")[:16]
    assert (done.returncode, done.stderr) == (0, "")
    assert tidy(done.stdout) == tidy(SHOWN.replace("BUILD", build))


def test_show_fits_80_columns_and_cuts_no_name_or_number(folder: Path) -> None:
    long = a_bound_of("0.000123457", a_tolerance(), num_decisions=123456)
    (folder / FILE).write_bytes(seal(a_tolerance_file(tolerances=(long,))))
    done = scorepin("show", FILE, cwd=folder)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    assert "0.000123457" in done.stdout


def a_bound_of(value: str, tolerance: Tolerance, *, num_decisions: int) -> Tolerance:
    floor: Bound = msgspec.structs.replace(
        tolerance.floor,
        value=float(value),
        num_decisions=num_decisions,
        exceedance_rate_upper=0.000123,
        lower=0.0,
        coverage=0.999,
    )
    axes = msgspec.structs.replace(
        tolerance.axes[0],
        axis="repeat_fresh_process",
        num_decisions=num_decisions,
        num_decisions_moved=num_decisions,
        moved_rate_upper=0.0000123,
        max_movement=0.000123,
    )
    guard = msgspec.structs.replace(tolerance.guards[0], evidence="a long finding " * 20)
    return msgspec.structs.replace(tolerance, floor=floor, axes=(axes,), guards=(guard,))


def test_show_for_a_machine_gives_the_file(folder: Path) -> None:
    done = scorepin("show", FILE, "--json", cwd=folder)
    shown = decode(ToleranceFile, parse(done.stdout.encode(), "shown"), "shown")
    assert shown == read_tolerance_file(folder / FILE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", [(), ("--json",)], ids=["text", "json"])
def test_results_that_cannot_be_printed_are_an_error(folder: Path, option: tuple[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [SCOREPIN, "show", FILE, *option],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "error: output: No space left on device; check that there is room, and that it may be "
        "written\n"
    )


def test_every_verdict_is_counted_and_explained(folder: Path) -> None:
    done = scorepin(*JUDGE, cwd=folder)
    assert (done.returncode, done.stderr) == (1, "")
    text = tidy(done.stdout)
    assert text.startswith(VERDICTS), text
    for part in (
        "plan_noise, for example\n  commit c8: the commit never crossed the boundary",
        "reconstruction, for example\n  commit c5: another computation",
        "parameters that differ: precision_mode.name (2)\n",
        "unjudged, for example\n  commit c7: ",
        "consistent, for example\n  commit c1: branch 'b' moved by 0.00048828125, within the floor",
        "drift, for example\n  commit c2: branch 'b' moved by 0.03125, beyond the floor",
        "divergence, for example\n  commit c3: branch 'b' moved by 3.0, beyond the envelope",
    ):
        assert part in text, part
    assert "exact, for example" not in text


def test_verdicts_for_a_machine(folder: Path) -> None:
    done = scorepin(*JUDGE, "--json", "--out", "verdicts.jsonl", cwd=folder)
    written = (folder / "verdicts.jsonl").read_text()
    assert done.stdout == written
    assert tidy(done.stderr).startswith(VERDICTS)
    verdicts = [
        decode(Verdict, line.value, line.where) for line in read_lines(folder / "verdicts.jsonl")
    ]
    assert [verdict.commit_id for verdict in verdicts] == [f"c{at}" for at in range(9)]
    assert [v.commit_id for v in verdicts if v.fault] == ["c3", "c4"]
    again = scorepin(*JUDGE, "--out", "verdicts.jsonl", "--overwrite", cwd=folder)
    assert again.returncode == 1
    assert (folder / "verdicts.jsonl").read_text() == written


@pytest.mark.parametrize(
    ("numbers", "policy", "code"),
    [
        ((0, 1, 5, 7, 8), "default", 0),
        ((2,), "default", 0),
        ((2,), "strict", 1),
        ((0, 1, 5, 7, 8), "strict", 0),
        ((3,), "default", 1),
        ((4,), "default", 1),
    ],
)
def test_the_exit_status_says_whether_there_is_a_fault(
    folder: Path, numbers: tuple[int, ...], policy: str, code: int
) -> None:
    some(folder, *numbers)
    assert scorepin(*JUDGE, "--policy", policy, cwd=folder).returncode == code


def test_a_fault_is_told_even_if_some_lines_are_unusable(folder: Path) -> None:
    some(folder, 3)
    with (folder / "replays.jsonl").open("a") as stream:
        stream.write("{\n")
    done = scorepin(*JUDGE, cwd=folder)
    assert done.returncode == 1
    assert "unusable records: 1; see the rejects file" in done.stdout
    rejects = json.loads((folder / "replays.jsonl.rejects").read_text())
    assert (rejects["where"], rejects["text"]) == ("replays.jsonl:2", "{")


def drifting(folder: Path, num: int = 20) -> None:
    """Write so many replays that all moved beyond the floor."""
    commit, replay = of_every_kind()[2]
    names = [f"c{at}" for at in range(num)]
    replace = msgspec.structs.replace
    lines_of(folder, "commits.jsonl", (replace(commit, commit_id=name) for name in names))
    lines_of(folder, "replays.jsonl", (replace(replay, commit_id=name) for name in names))


def test_drift_without_end_raises_the_alarm(folder: Path) -> None:
    drifting(folder)
    done = scorepin(*JUDGE, cwd=folder)
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    assert "drift alarm for replica 'replica-0', raised by commit c" in told
    assert "20 of 20 replays moved beyond the floor" in told
    some(folder, 0)
    assert "alarm" not in scorepin(*JUDGE, cwd=folder).stdout


def kinds(text: str) -> list[str]:
    return sorted({json.loads(line)["kind"] for line in text.splitlines()})


def test_an_alarm_withdraws_the_tolerance_until_it_is_calibrated_again(folder: Path) -> None:
    drifting(folder)
    first = scorepin(*JUDGE, "--withdraw", cwd=folder)
    assert (first.returncode, first.stderr) == (0, "")
    told = " ".join(first.stdout.split())
    assert f"withdrawn {FILE}: replays that it would judge are unjudged from now on" in told
    (entry,) = json.loads((folder / f"{FILE}.withdrawn.json").read_bytes())["withdrawals"]
    assert (entry["replica"], entry["num_exceeded"], entry["alpha"]) == ("replica-0", 20, 0.01)
    assert entry["withdrawn_at"] == "2026-01-02T03:04:05+00:00"

    again = scorepin(*JUDGE, "--withdraw", "--json", cwd=folder)
    assert (again.returncode, kinds(again.stdout)) == (0, ["unjudged"])
    reason = json.loads(again.stdout.splitlines()[0])["reason"]
    assert "the tolerance was withdrawn at 2026-01-02T03:04:05+00:00: replica 'repl" in reason
    shown = " ".join(scorepin("show", FILE, cwd=folder).stdout.split())
    assert "withdrawn: bfloat16, vendor the tolerance was withdrawn at 2026-01-02" in shown
    for_a_machine = scorepin("show", FILE, "--json", cwd=folder)
    assert json.loads(for_a_machine.stdout)
    assert "withdrawn: bfloat16, vendor" in for_a_machine.stderr

    newer = a_tolerance_file(created_at="2026-02-02T00:00:00+00:00")
    (folder / FILE).write_bytes(seal(newer))
    assert "withdrawn" not in scorepin("show", FILE, cwd=folder).stdout
    assert kinds(scorepin(*JUDGE, "--json", cwd=folder).stdout) == ["drift"]


@pytest.mark.parametrize(
    ("num", "options"), [(20, ()), (2, ("--withdraw",))], ids=["not asked", "no alarm"]
)
def test_nothing_is_withdrawn_unasked_or_without_an_alarm(
    folder: Path, num: int, options: tuple[str, ...]
) -> None:
    drifting(folder, num)
    assert scorepin(*JUDGE, *options, "--alpha", "0.0001", cwd=folder).returncode == 0
    assert not (folder / f"{FILE}.withdrawn.json").exists()


def test_a_damaged_withdrawal_is_an_error_that_says_what_to_do(folder: Path) -> None:
    (folder / f"{FILE}.withdrawn.json").write_text("{")
    for command in (JUDGE, ("show", FILE)):
        done = scorepin(*command, cwd=folder)
        assert done.returncode == 2
        assert "error CorruptFileError: " in done.stderr
        assert f"{FILE}.withdrawn.json" in done.stderr
        assert "calibrate the build again, or remove the file if all its" in done.stderr


def test_only_what_was_exceeded_when_the_alarm_was_raised_is_withdrawn(tmp_path: Path) -> None:
    other = a_tolerance_file(build=a_build(device_name="Other CPU"))
    files = {"one": seal(a_tolerance_file()), "two": seal(other)}
    for name, data in files.items():
        (tmp_path / f"{name}.tolerance.json").write_bytes(data)
    loaded = load_tolerances(tmp_path)
    ids = [file.tolerance_id(file.tolerances[0]) for file in loaded.files]
    kinds = [VerdictKind.EXACT, *[VerdictKind.DRIFT] * 6, VerdictKind.DIVERGENCE]
    verdicts = tuple(
        a_verdict(commit_id=f"c{at}", kind=kind, tolerance_id=ids[kind is VerdictKind.EXACT])
        for at, kind in enumerate(kinds)
    )
    later = a_verdict(commit_id="later", kind=VerdictKind.DRIFT, tolerance_id=ids[1])
    calm = a_verdict(commit_id="calm", replica="r1", kind=VerdictKind.DRIFT, tolerance_id=ids[1])
    every = (*verdicts, later, calm)
    alarms = alarm_over(every, loaded.exceedance_rates(), 0.01)
    judged = JudgedFiles(verdicts=every, alarms=alarms, rejects=())
    assert withdraw_alarmed(judged, loaded, "now") == (tmp_path / "one.tolerance.json",)
    assert sorted(path.name for path in tmp_path.glob("*.withdrawn.json")) == [
        "one.tolerance.json.withdrawn.json"
    ]


def test_another_builds_file_judges_nothing(folder: Path) -> None:
    other = a_tolerance_file(build=a_build(device_name="Other CPU"))
    (folder / FILE).write_bytes(seal(other))
    some(folder, 3)
    done = scorepin(*JUDGE, cwd=folder)
    assert done.returncode == 0
    assert tidy(done.stdout).splitlines()[2].split() == [
        *("unjudged", "1", "0"),
        *("not", "compared") * 2,
    ]
    assert "device_name" in done.stdout


def test_a_file_that_has_expired_judges_nothing(folder: Path) -> None:
    expired = a_tolerance_file(expires_at="2026-01-02T03:04:05+00:00")
    (folder / FILE).write_bytes(seal(expired))
    some(folder, 3)
    done = scorepin(*JUDGE, cwd=folder)
    assert "unjudged" in done.stdout
    assert "expired at 2026-01-02T03:04:05+00:00" in " ".join(done.stdout.split())
    earlier = scorepin(*JUDGE, cwd=folder, SOURCE_DATE_EPOCH="1767323044")
    assert (earlier.returncode, "divergence" in earlier.stdout) == (1, True)
