"""One table: what is wrong, how it is told, and that nothing was half-written or lost."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrate.observations import ObservationStore, RunIdentity
from harness.codec import encode
from harness.commit_log import CommitLog
from harness.tolerance_file import seal
from harness.verifiers import embedded
from tests.command import Done, a_verifier, invoke, scorepin, write_config
from tests.examples import a_commit, a_replay, a_tolerance_file, an_invocation, an_item

GOOD = '{"decision_id": "d1", "context": "2+2", "branches": [{"branch_id": "a", "text": "4"}]}'
SCORE = ("score", "mine.yaml", "--commits", "commits.jsonl")
CALIBRATE = ("calibrate", "mine.yaml", "--run", "run")
JUDGE = ("classify", "commits.jsonl", "replays.jsonl", "--tolerances", "t.tolerance.json")

Prepare = Callable[[Path], object]


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A wrong input."""

    name: str
    prepare: Prepare
    command: Sequence[str]
    says: Sequence[str]
    """Where it is and what to do, in the message."""
    code: int = 2
    writes: Sequence[str] = field(default=())
    """Files that are there afterwards and were not before."""
    prints: str = ""
    """What standard output begins with."""


def decisions(*lines: str) -> Prepare:
    def prepare(folder: Path) -> None:
        (folder / "mine.jsonl").write_text("".join(f"{line}\n" for line in lines))
        write_config(folder / "mine.yaml", decisions="mine.jsonl")

    return prepare


def config(**changes: object) -> Prepare:
    return lambda folder: write_config(folder / "mine.yaml", **changes)


def text(name: str, content: str) -> Prepare:
    return lambda folder: (folder / name).write_text(content)


def folder(name: str) -> Prepare:
    return lambda parent: (parent / name).mkdir()


def removed(name: str) -> Prepare:
    return lambda parent: (parent / name).unlink()


def both(*steps: Prepare) -> Prepare:
    def prepare(parent: Path) -> None:
        for step in steps:
            step(parent)

    return prepare


def checkpoint(change: Callable[[Path], object]) -> Prepare:
    """Copy the embedded verifier and spoil the copy."""

    def prepare(folder: Path) -> None:
        shutil.copytree(embedded.checkpoint("reward"), folder / "model")
        change(folder / "model")
        write_config(folder / "mine.yaml", verifier=a_verifier("model"))

    return prepare


def with_names(change: Callable[[dict[str, Any]], object]) -> Prepare:
    """Change which tensors a checkpoint says it holds."""

    def prepare(model: Path) -> None:
        path = model / "model.safetensors"
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])

    return checkpoint(prepare)


def rename_head(header: dict[str, Any]) -> None:
    header["old_head.weight"] = header.pop("score.weight")


def add_adapter(header: dict[str, Any]) -> None:
    end = max(tensor["data_offsets"][1] for tensor in header.values() if "dtype" in tensor)
    header["adapter.weight"] = {"dtype": "F16", "shape": [0], "data_offsets": [end, end]}


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def tolerance(change: Callable[[bytes], bytes]) -> Prepare:
    def prepare(folder: Path) -> None:
        judgeable(folder)
        (folder / "t.tolerance.json").write_bytes(change(seal(a_tolerance_file())))

    return prepare


def edited(data: bytes) -> bytes:
    changed = data.replace(b'"value":0.0625', b'"value":0.5')
    assert changed != data
    return changed


def newer(data: bytes) -> bytes:
    return data.replace(b'"schema_version":1', b'"schema_version":2')


def judgeable(folder: Path, *, commits: bytes = b"", replays: bytes = b"") -> None:
    """Write a commit, its exact replay and their tolerance, with further lines."""
    (folder / "commits.jsonl").write_bytes(encode(a_commit()) + b"\n" + commits)
    (folder / "replays.jsonl").write_bytes(encode(a_replay()) + b"\n" + replays)
    (folder / "t.tolerance.json").write_bytes(seal(a_tolerance_file()))


def commit_line(change: Callable[[bytes], bytes]) -> Prepare:
    line = encode(a_commit(commit_id="c2"))
    assert change(line) != line
    return lambda folder: judgeable(folder, commits=change(line))


def replay_line(line: bytes) -> Prepare:
    return lambda folder: judgeable(folder, replays=line)


def scored(change: Callable[[Path], object]) -> Prepare:
    """Score two decisions of the fake, then spoil something."""

    def prepare(folder: Path) -> None:
        write_config(folder / "mine.yaml")
        assert invoke(*SCORE, "--limit", "2").code == 0
        change(folder)

    return prepare


def another_engine(parent: Path) -> None:
    """Write a commit as a planner with an engine of its own would."""
    commit = a_commit(invocation=an_invocation(condition={"engine_preset": "fast"}))
    CommitLog(parent / "commits.jsonl").append([commit], map(an_item, "abcf"))


def drop_items(folder: Path) -> None:
    path = folder / "commits.items.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def judged_anyway(name: str, prepare: Prepare, says: str) -> Bad:
    """Return a bad record in a file whose other records are judged."""
    head = "unusable records: 1, kept in replays.jsonl.rejects; the first: "
    return Bad(
        name=name,
        prepare=prepare,
        command=JUDGE,
        says=(head + says,),
        writes=("replays.jsonl.rejects",),
        prints="verdict   replays   faults   largest delta   winner changed",
    )


TABLE = [
    # Decisions.
    Bad(
        name="decisions: not JSON",
        prepare=decisions(GOOD, '{"decision_id": "d2", '),
        command=SCORE,
        says=("mine.jsonl:2: not valid JSON", "nothing was run"),
    ),
    Bad(
        name="decisions: bytes that are no text",
        prepare=both(
            decisions(), lambda parent: (parent / "mine.jsonl").write_bytes(b"\xff\xfe\x00\x01")
        ),
        command=SCORE,
        says=("mine.jsonl:1: not valid JSON",),
    ),
    Bad(
        name="decisions: wrong type",
        prepare=decisions(GOOD.replace('"2+2"', "4")),
        command=SCORE,
        says=("mine.jsonl:1: Expected `str`, got `int` - at `$.context`",),
    ),
    Bad(
        name="decisions: an id twice",
        prepare=decisions(GOOD, GOOD),
        command=SCORE,
        says=("mine.jsonl:2: decision 'd1' stands twice",),
    ),
    Bad(
        name="decisions: a branch twice",
        prepare=decisions(GOOD.replace("}]", '}, {"branch_id": "a", "text": "5"}]')),
        command=SCORE,
        says=("mine.jsonl:1: decision 'd1' has branch 'a' twice",),
    ),
    Bad(
        name="decisions: no branches",
        prepare=decisions(GOOD[: GOOD.index("[")] + "[]}"),
        command=SCORE,
        says=("mine.jsonl:1: decision 'd1' has no branches",),
    ),
    Bad(
        name="decisions: an empty file",
        prepare=decisions(),
        command=SCORE,
        says=("mine.jsonl: no decisions", "one JSON object a line"),
    ),
    Bad(
        name="decisions: too few",
        prepare=config(num_decisions=21),
        command=CALIBRATE,
        says=("too few decisions: 21 of the 22", "measure 1 more"),
    ),
    Bad(
        name="decisions: a branch longer than the model's context",
        prepare=both(
            decisions(GOOD, GOOD.replace("d1", "d2").replace('"4"', f'"{"4 " * 2000}"')),
            config(decisions="mine.jsonl", verifier=a_verifier("embedded:reward")),
        ),
        command=SCORE,
        says=("decision 'd2', branch 'a'", "tokens", "keep_end"),
    ),
    # Models.
    Bad(
        name="checkpoint: weights are missing",
        prepare=with_names(rename_head),
        command=SCORE,
        says=("model: weights missing: score.weight; weights left over: old_head.weight", "choose"),
    ),
    Bad(
        name="checkpoint: unexpected weights",
        prepare=with_names(add_adapter),
        command=SCORE,
        says=("model: weights left over: adapter.weight",),
    ),
    Bad(
        name="checkpoint: a pickle",
        prepare=checkpoint(pickled),
        command=SCORE,
        says=("model: only pytorch_model.bin; safetensors are needed", "save_pretrained"),
    ),
    Bad(
        name="model: a hub name and no network",
        prepare=config(verifier=a_verifier("nobody/nothing")),
        command=SCORE,
        says=("model 'nobody/nothing': no such folder", "check the name and the network"),
    ),
    Bad(
        name="model: an unknown fake",
        prepare=config(verifier=a_verifier("fake:rouding")),
        command=SCORE,
        says=("unknown fake 'rouding'; did you mean", "'rounding'"),
    ),
    # Configs.
    Bad(
        name="config: an unknown key",
        prepare=config(gaurd_decisions=5),
        command=CALIBRATE,
        says=("mine.yaml: unknown key `gaurd_decisions` at `$`; did you mean 'guard_decisions'?",),
    ),
    Bad(
        name="config: an unknown value",
        prepare=config(verifier=a_verifier("fake:exact", device="cud")),
        command=CALIBRATE,
        says=("mine.yaml: Invalid enum value 'cud' - at `$.verifier.device`", "'cuda'"),
    ),
    Bad(
        name="config: not YAML",
        prepare=text("mine.yaml", "name: [mine\n"),
        command=CALIBRATE,
        says=("mine.yaml: not valid YAML", "line 2"),
    ),
    Bad(
        name="config: a key twice",
        prepare=text("mine.yaml", "name: a\nname: b\n"),
        command=CALIBRATE,
        says=("mine.yaml: not valid YAML: key 'name' stands twice", "line 1, column 1"),
    ),
    Bad(
        name="config: a folder",
        prepare=folder("mine.yaml"),
        command=CALIBRATE,
        says=("mine.yaml: cannot be read (Is a directory); check the path",),
    ),
    Bad(
        name="config: missing",
        prepare=lambda _: None,
        command=CALIBRATE,
        says=("mine.yaml: cannot be read (No such file or directory); check the path",),
    ),
    Bad(
        name="option: an arm that is not there",
        prepare=config(),
        command=(*SCORE, "--arm", "1"),
        says=("--arm 1: the config has arms 0 to 0",),
    ),
    # Stores and outputs.
    Bad(
        name="run: a file where its folder should be",
        prepare=both(config(), text("run", "mine\n")),
        command=CALIBRATE,
        says=("run",),
    ),
    Bad(
        name="run: its store is something else",
        prepare=both(
            config(), folder("run"), text("run/observations.sqlite", "not a database at all " * 9)
        ),
        command=CALIBRATE,
        says=("run/observations.sqlite: not an observation store", "--run"),
    ),
    Bad(
        name="output: exists",
        prepare=both(judgeable, text("verdicts.jsonl", "mine\n")),
        command=(*JUDGE, "--out", "verdicts.jsonl"),
        says=("verdicts.jsonl: exists", "--overwrite"),
    ),
    # Tolerance files.
    Bad(
        name="tolerance: edited by hand",
        prepare=tolerance(edited),
        command=JUDGE,
        says=("t.tolerance.json: its digest does not match", "calibrate again"),
    ),
    Bad(
        name="tolerance: cut in half",
        prepare=tolerance(lambda data: data[: len(data) // 2]),
        command=JUDGE,
        says=("t.tolerance.json: not valid JSON", "cut off", "calibrate again"),
    ),
    Bad(
        name="tolerance: newer than the reader",
        prepare=tolerance(newer),
        command=("show", "t.tolerance.json"),
        says=("t.tolerance.json: schema_version 2 is newer than 1", "upgrade scorepin"),
    ),
    Bad(
        name="tolerance: another file",
        prepare=judgeable,
        command=("show", "commits.jsonl"),
        says=("commits.jsonl: its digest does not match",),
    ),
    Bad(
        name="tolerance: missing",
        prepare=both(judgeable, removed("t.tolerance.json")),
        command=JUDGE,
        says=("t.tolerance.json: cannot be read (No such file or directory); check the path",),
    ),
    Bad(
        name="tolerance: a folder where a file is wanted",
        prepare=folder("folder"),
        command=("show", "folder"),
        says=("folder: cannot be read (Is a directory); check the path",),
    ),
    Bad(
        name="tolerance: a folder without any",
        prepare=both(judgeable, folder("folder")),
        command=(*JUDGE[:-1], "folder"),
        says=("folder: holds no *.tolerance.json file", "scorepin calibrate"),
    ),
    # Commit logs: the good line is judged, the bad one kept.
    judged_anyway(
        name="commit: a NaN",
        prepare=commit_line(lambda line: line.replace(b'"b":0.25', b'"b":NaN') + b"\n"),
        says="commits.jsonl:2: not valid JSON (NaN is not JSON)",
    ),
    judged_anyway(
        name="commit: a score twice",
        prepare=commit_line(lambda line: line.replace(b'"b":0.25', b'"b":0.25,"b":9.5') + b"\n"),
        says="commits.jsonl:2: not valid JSON (key 'b' stands twice",
    ),
    judged_anyway(
        name="commit: a torn last line",
        prepare=commit_line(lambda line: line[:-40]),
        says="commits.jsonl:2: not valid JSON",
    ),
    judged_anyway(
        name="commit: an id with other scores",
        prepare=commit_line(lambda _: encode(a_commit(committed=False)) + b"\n"),
        says="commits.jsonl:2: commit_id 'c1' already stands for other content",
    ),
    judged_anyway(
        name="replay: of a commit that is not there",
        prepare=replay_line(encode(a_replay(commit_id="c9")) + b"\n"),
        says="replays.jsonl: replay of commit 'c9': no usable commit",
    ),
    judged_anyway(
        name="replay: a wrong type",
        prepare=replay_line(encode(a_replay()).replace(b'"b":0.25', b'"b":"high"') + b"\n"),
        says="replays.jsonl:2: ",
    ),
    Bad(
        name="replay: the commit log has no usable commit",
        prepare=text("commits.jsonl", "{}\n"),
        command=("replay", "commits.jsonl"),
        says=("commits.jsonl: no usable commit to replay; commits.jsonl:1: no usable schema_ver",),
    ),
    Bad(
        name="replay: a branch's text is lost",
        prepare=scored(drop_items),
        command=("replay", "commits.jsonl"),
        says=("its text is not in the item store",),
    ),
    Bad(
        name="replay: the item store is lost",
        prepare=scored(removed("commits.items.jsonl")),
        command=("replay", "commits.jsonl"),
        says=("commits.items.jsonl: cannot be read (No such file or directory)",),
    ),
    Bad(
        name="replay: a condition of another engine",
        prepare=another_engine,
        command=("replay", "commits.jsonl"),
        says=("commit c1: its condition is not one of this engine's", "replay it on the engine"),
    ),
    Bad(
        name="replay: a condition of another engine, in a precision",
        prepare=another_engine,
        command=("replay", "commits.jsonl", "--precision", "float32"),
        says=("--precision: commit c1 has a condition of another engine", "replay it on"),
    ),
    Bad(
        name="option: an unknown precision",
        prepare=scored(lambda _: None),
        command=("replay", "commits.jsonl", "--precision", "bfloat"),
        says=("--precision bfloat: did you mean 'bfloat16'?",),
    ),
]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_bad_input_is_told_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Bad
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    bad.prepare(tmp_path)
    before = contents(tmp_path)
    done = invoke(*bad.command)
    after = contents(tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    assert [part for part in bad.says if part not in done.stderr] == [], done.stderr
    assert done.code == bad.code, done.stderr
    assert done.stdout.startswith(bad.prints)
    assert bool(done.stdout) == bool(bad.prints), done.stdout
    assert {name: after.pop(name) for name in bad.writes}.keys() == set(bad.writes)
    assert after == before


def test_a_second_run_on_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "mine.yaml")
    other = RunIdentity(scorepin_version="", config_digest="", decisions_digest="", created_at="")
    with ObservationStore(tmp_path / "run" / "observations.sqlite", other):
        done = invoke(*CALIBRATE)
    assert done.code == 2
    assert "run/observations.sqlite: another run is using it; wait, or give" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["observations.sqlite"]
    assert invoke(*CALIBRATE).code == 0, "the store must be usable once the other run has ended"


SMALL = """
mount -t tmpfs -o size=4k none disk
"$@"
code=$?
cp -a disk left
exit $code
"""
NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c", SMALL, "sh")


def can_mount() -> bool:
    trial = [*NAMESPACE[:3], "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(trial, check=False).returncode


def on_a_full_disk(monkeypatch: pytest.MonkeyPatch, *command: str) -> Done:
    """Run where `disk` has no room left; what is left on it afterwards is in `left`.

    Where no disk can be mounted, not even by oneself for oneself, the system calls say so.
    """
    if can_mount():
        ended = scorepin(*command, cwd=Path.cwd(), prefix=NAMESPACE)
        return Done(code=ended.returncode, stdout=ended.stdout, stderr=ended.stderr)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("harness.files.os.fsync", full)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    done = invoke(*command)
    shutil.copytree("disk", "left")
    return done


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ("calibrate", "mine.yaml", "--run", "disk/run"),
            ("disk: 0 MiB free, about", "free some space or give another --run folder"),
        ),
        (
            ("score", "mine.yaml", "--commits", "disk/commits.jsonl"),
            ("disk/commits.items.jsonl: cannot be written (No space left on device)", "run again"),
        ),
        (
            ("replay", "commits.jsonl", "--out", "disk/replays.jsonl"),
            ("disk/replays.jsonl: cannot be written (No space left on device)", "run again"),
        ),
        (
            (*JUDGE[:2], "commits.replays.jsonl", *JUDGE[3:], "--out", "disk/verdicts.jsonl"),
            ("disk/verdicts.jsonl: cannot be written (No space left on device)", "run again"),
        ),
    ],
    ids=lambda value: value[0],
)
def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Sequence[str], says: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk").mkdir()
    write_config(tmp_path / "mine.yaml")
    (tmp_path / "t.tolerance.json").write_bytes(seal(a_tolerance_file()))
    if command[0] in ("replay", "classify"):
        assert invoke(*SCORE).code == 0
    if command[0] == "classify":
        assert invoke("replay", "commits.jsonl").code == 0
    done = on_a_full_disk(monkeypatch, *command)
    assert [part for part in says if part not in done.stderr] == [], done.stderr
    assert (done.code, done.stdout) == (2, "")
    left = [path for path in (tmp_path / "left").rglob("*") if path.is_file()]
    assert [path.name for path in left if path.stat().st_size] == []
