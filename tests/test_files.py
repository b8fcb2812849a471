import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import InputFileError, StoreError
from harness.files import append_lines, read_bytes, read_lines, write_atomic

ROOT = Path(__file__).parents[1]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full_disk(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_is_there_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    write_atomic(path, b"one")
    assert path.read_bytes() == b"one"
    assert names(path.parent) == ["file.json"]


def test_an_existing_file_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, b"one")
    with pytest.raises(InputFileError, match=r"file\.json: exists; .*--overwrite"):
        write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    write_atomic(path, b"two", overwrite=True)
    assert path.read_bytes() == b"two"


def test_a_full_disk_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreError, match=r"file\.json: .*No space left.*free some space"):
        write_atomic(path, b"new", overwrite=True)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.json"]


def test_bytes_that_read_back_differently_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"rotten")
    with pytest.raises(StoreError, match="read back other bytes"):
        write_atomic(path, b"sound")
    assert names(tmp_path) == []


def test_a_parent_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file/inside.json", "n" * 300):
        with pytest.raises(StoreError, match="cannot be written"):
            write_atomic(tmp_path / name, b"x")
    with pytest.raises(StoreError, match="cannot be written"):
        append_lines(tmp_path / "file" / "inside.jsonl", [b"x"])
    assert names(tmp_path) == ["file"]


def test_appending_mends_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":')
    append_lines(path, [b'{"c":3}', b'{"d":4}'])
    assert path.read_bytes() == b'{"a":1}\n{"b":\n{"c":3}\n{"d":4}\n'
    lines = list(read_lines(path))
    assert [line.value for line in lines] == [{"a": 1}, None, {"c": 3}, {"d": 4}]
    assert lines[1].error.startswith(f"{path}:2: not valid JSON")
    assert lines[1].text == '{"b":'


def test_appending_nothing_makes_no_file(tmp_path: Path) -> None:
    append_lines(tmp_path / "log.jsonl", [])
    assert names(tmp_path) == []


def test_a_full_disk_takes_the_appended_lines_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    append_lines(path, [b"1"])
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreError, match="nothing was half-written"):
        append_lines(path, [b"2", b"3"])
    assert path.read_bytes() == b"1\n"


IN_A_SMALL_DISK = """
import resource, sys
from pathlib import Path
from harness.errors import StoreError
from harness.files import append_lines, write_atomic
log, file = Path(sys.argv[1]), Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for write in (lambda: append_lines(log, [b"x" * 600, b"y" * 100_000]),
              lambda: write_atomic(file, b"z" * 2000, overwrite=True)):
    try:
        write()
    except StoreError as error:
        print(error)
    else:
        sys.exit("no error")
"""


def test_a_write_that_ends_in_the_middle_leaves_no_part(tmp_path: Path) -> None:
    log, file = tmp_path / "log.jsonl", tmp_path / "file.json"
    log.write_bytes(b"old\n")
    file.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SMALL_DISK, str(log), str(file)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("File too large") == 2
    assert log.read_bytes() == b"old\n"
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["file.json", "log.jsonl"]


KILLED_WHEN_SYNCING = """
import os, signal, sys
from pathlib import Path
from harness.files import append_lines, write_atomic
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1].endswith(".jsonl"):
    append_lines(Path(sys.argv[1]), [b'{"new": 1}'])
else:
    write_atomic(Path(sys.argv[1]), b"new", overwrite=True)
"""


@pytest.mark.parametrize(("name", "old"), [("file.json", b"old"), ("log.jsonl", b'{"old": 0}\n')])
def test_a_kill_leaves_the_old_bytes_readable(tmp_path: Path, name: str, old: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(old)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHEN_SYNCING, str(path)], check=False, cwd=ROOT
    )
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes().startswith(old)
    if name == "file.json":
        assert path.read_bytes() == old
    else:
        append_lines(path, [b'{"next": 2}'])
        assert [line.error for line in read_lines(path)] == ["", "", ""]


def test_lines_keep_their_numbers_over_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n1\n  \n\xff\n2")
    lines = list(read_lines(path))
    assert [line.where for line in lines] == [f"{path}:{n}" for n in (2, 4, 5)]
    assert [bool(line.error) for line in lines] == [False, True, False]


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_read_is_the_callers_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputFileError, match=r"cannot be read .*; check the path"):
        read_bytes(tmp_path / name)
