import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.codec import encode
from harness.commit_log import (
    CommitLog,
    append_replays,
    read_commits,
    read_items,
    read_replays,
    write_rejects,
)
from harness.errors import InputFileError, InvalidRecordError, StoreError
from harness.files import append_lines
from harness.records import CommitRecord
from tests.examples import SCORES, a_commit, a_replay, an_item, moved

ROOT = Path(__file__).parents[1]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def three_commits() -> list[CommitRecord]:
    return [a_commit(commit_id=f"c{n}", scores={**SCORES, "b": n / 8}) for n in range(3)]


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "run" / "commits.jsonl")
    assert log.append(three_commits(), [an_item(name) for name in "abc"]) == 3
    read = read_commits(log.path)
    assert list(read.records) == three_commits()
    assert read.rejects == ()
    assert read_items(log.path) == {item.content_digest: item for item in map(an_item, "abc")}
    assert names(tmp_path / "run") == ["commits.items.jsonl", "commits.jsonl"]


@pytest.mark.parametrize("fresh", [False, True], ids=["same log", "another process"])
def test_appending_again_changes_no_byte(tmp_path: Path, fresh: bool) -> None:  # noqa: FBT001
    log = CommitLog(tmp_path / "commits.jsonl")
    log.append(three_commits()[:2], [an_item("a")])
    before = log.path.read_bytes(), log.items_path.read_bytes()
    again = CommitLog(log.path) if fresh else log
    assert again.append(three_commits()[:2], [an_item("a")]) == 0
    assert (log.path.read_bytes(), log.items_path.read_bytes()) == before
    assert again.append(three_commits(), [an_item("a"), an_item("b")]) == 1
    assert list(read_commits(log.path).records) == three_commits()
    assert len(read_items(log.path)) == 2


def test_a_log_sees_what_another_process_appended(tmp_path: Path) -> None:
    one, other = CommitLog(tmp_path / "commits.jsonl"), CommitLog(tmp_path / "commits.jsonl")
    one.append(three_commits()[:1])
    other.append(three_commits()[1:2])
    assert one.append(three_commits()) == 1
    assert len(log_lines(one.path)) == 3


def log_lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def test_an_id_with_other_content_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "commits.jsonl")
    log.append([a_commit()], [an_item("a")])
    before = log.path.read_bytes(), log.items_path.read_bytes()
    other = a_commit(scores={**SCORES, "a": 1.75})
    with pytest.raises(InvalidRecordError, match=r"commits\.jsonl: commit_id 'c1' already stands"):
        log.append([a_commit(commit_id="c2"), other], [an_item("b")])
    assert (log.path.read_bytes(), log.items_path.read_bytes()) == before


def test_an_id_twice_in_one_append(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "commits.jsonl")
    assert log.append([a_commit(), a_commit()], [an_item("a"), an_item("a")]) == 1
    assert len(log_lines(log.path)) == len(log_lines(log.items_path)) == 1
    with pytest.raises(InvalidRecordError, match="already stands for other content"):
        CommitLog(tmp_path / "new.jsonl").append([a_commit(), a_commit(committed=False)])
    assert not (tmp_path / "new.jsonl").exists()


def test_a_record_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    broken = a_commit()
    broken.scores["a"] = float("nan")
    wrong = a_commit(commit_id=7)
    log = CommitLog(tmp_path / "commits.jsonl")
    for commit in (broken, wrong):
        with pytest.raises(InvalidRecordError):
            log.append([a_commit(commit_id="c0"), commit])
    with pytest.raises(InvalidRecordError):
        append_replays(tmp_path / "replays.jsonl", [a_replay(), a_replay(replica=1)])
    assert names(tmp_path) == []


def test_items_are_stored_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([None, OSError(errno.ENOSPC, "No space left on device")])

    def second_time_full(_descriptor: int) -> None:
        error = next(calls)
        if error is not None:
            raise error

    log = CommitLog(tmp_path / "commits.jsonl")
    monkeypatch.setattr(os, "fsync", second_time_full)
    with pytest.raises(StoreError, match="No space left"):
        log.append([a_commit()], [an_item("a")])
    monkeypatch.undo()
    assert log.path.read_bytes() == b""
    assert len(read_items(log.path)) == 1
    assert log.append([a_commit()], [an_item("a")]) == 1
    assert len(log_lines(log.items_path)) == 1


BAD_LINES = {
    "cut": (b'{"schema_version":1,"commit_id":"c9"', "not valid JSON"),
    "not an object": (b"[1]", "expected a JSON object"),
    "a score twice": (b'{"scores":{"a":1.0,"a":1.0}}', "'a' stands twice"),
    "no version": (b"{}", "no usable schema_version"),
    "newer": (b'{"schema_version":2}', "upgrade scorepin"),
    "a field missing": (b'{"schema_version":1}', "missing required field"),
}


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode(a_commit())), **fields}).encode()


BAD_LINES |= {
    "a wrong type": (changed(decision_id=3), "Expected `str`"),
    "a score that is a word": (changed(scores={"a": "nan", "b": 1, "c": 1}), "Expected `float`"),
    "a score that is null": (changed(scores={"a": None, "b": 1, "c": 1}), "Expected `float`"),
    "a score that is true": (changed(scores={"a": True, "b": 1, "c": 1}), "Expected `float`"),
    "no scores": (changed(scores={}), "score vector is empty"),
    "a branch without score": (changed(scores={"a": 1, "b": 1}), "'c' was computed but has no"),
    "a winner from elsewhere": (changed(winner="z"), "winner 'z' is not among"),
    "an id with other content": (changed(scores={"a": 1, "b": 1, "c": 1}), "other content"),
}


@pytest.mark.parametrize(("line", "why"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_a_reject_and_the_others_are_read(
    tmp_path: Path, line: bytes, why: str
) -> None:
    path = tmp_path / "commits.jsonl"
    good = [encode(a_commit()), encode(a_commit(commit_id="c2"))]
    path.write_bytes(b"\n".join([good[0], line, good[1], good[0]]) + b"\n")
    read = read_commits(path)
    assert [commit.commit_id for commit in read.records] == ["c1", "c2"]
    (reject,) = read.rejects
    assert reject.where == f"{path}:2"
    assert reject.error.startswith(f"{path}:2: ")
    assert why in reject.error
    assert reject.text == line.decode()


def test_rejects_are_written_as_lines(tmp_path: Path) -> None:
    log = tmp_path / "commits.jsonl"
    log.write_bytes(b"{\n[]\n")
    rejects = read_commits(log).rejects
    write_rejects(tmp_path / "rejects.jsonl", rejects)
    lines = [json.loads(line) for line in log_lines(tmp_path / "rejects.jsonl")]
    assert [line["where"] for line in lines] == [f"{log}:1", f"{log}:2"]
    assert [line["text"] for line in lines] == ["{", "[]"]
    with pytest.raises(InputFileError, match="exists"):
        write_rejects(tmp_path / "rejects.jsonl", rejects)
    write_rejects(tmp_path / "none.jsonl", ())
    assert not (tmp_path / "none.jsonl").exists()


def test_replays_are_appended_and_read_with_non_finite_scores(tmp_path: Path) -> None:
    path = tmp_path / "replays.jsonl"
    replays = [a_replay(), moved(float("nan")), moved(float("-inf")), a_replay()]
    append_replays(path, replays[:2])
    append_replays(path, replays[2:])
    path.write_bytes(path.read_bytes() + b"{}\n")
    read = read_replays(path)
    assert list(read.records) == replays
    assert len(read.rejects) == 1


def test_a_broken_item_line_hides_no_other(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "commits.jsonl")
    log.append([a_commit()], [an_item("a")])
    log.items_path.write_bytes(log.items_path.read_bytes() + b'{"content_dig')
    log.append([], [an_item("b")])
    assert list(read_items(log.path).values()) == [an_item("a"), an_item("b")]


def test_a_missing_log_is_the_callers_error(tmp_path: Path) -> None:
    for read in (read_commits, read_replays, read_items):
        with pytest.raises(InputFileError, match="cannot be read"):
            read(tmp_path / "absent.jsonl")


APPEND_FIFTY = """
import sys
from harness.commit_log import CommitLog
from tests.examples import a_commit
log = CommitLog(sys.argv[1])
for n in range(50):
    log.append([a_commit(commit_id=f"shared-{n}"), a_commit(commit_id=f"{sys.argv[2]}-{n}")])
"""


def test_two_processes_append_to_one_log(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    running = [
        subprocess.Popen([sys.executable, "-c", APPEND_FIFTY, str(path), name], cwd=ROOT)
        for name in "xy"
    ]
    assert [process.wait() for process in running] == [0, 0]
    read = read_commits(path)
    assert read.rejects == ()
    assert len(read.records) == len(log_lines(path)) == 150


APPEND_ONE = """
import sys
from harness.commit_log import CommitLog
from tests.examples import a_commit
print("ready", flush=True)
print(CommitLog(sys.argv[1]).append([a_commit()]), flush=True)
"""


def test_an_append_waits_for_the_one_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        child = subprocess.Popen(
            [sys.executable, "-c", APPEND_ONE, str(path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=1)
        append_lines(path, [encode(a_commit())])
    assert child.communicate()[0] == b"0\n", "the child did not see what was appended meanwhile"
