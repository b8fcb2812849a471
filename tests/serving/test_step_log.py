"""The log on the disk: whole lines, bounded size, torn ends, damage."""

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import CorruptFileError, InputFileError, StoreError
from harness.serving.history import History
from harness.serving.log_lines import FileHeader, StepLine, from_line, to_line
from harness.serving.recorder import Recorder
from harness.serving.step_log import (
    LogFollower,
    LogLimits,
    StepLogWriter,
    TornLineWarning,
    read_log,
)
from tests.serving.steps import ImaginedEngine, a_header, three_steps


def write(folder: Path, lines: Sequence[StepLine], **changes: object) -> None:
    writer = StepLogWriter(folder, lambda: a_header(**changes))
    for line in lines:
        writer.append(line)
    writer.close()


def steps_of(folder: Path) -> list[StepLine]:
    return [line for line in read_log(folder) if isinstance(line, StepLine)]


def newest(folder: Path) -> Path:
    return max(folder.glob("steps-*.log"))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    lines = three_steps(ImaginedEngine())
    write(tmp_path, lines)
    assert list(read_log(tmp_path)) == [a_header(), *lines]


def test_a_line_is_on_the_disk_before_the_next_step(tmp_path: Path) -> None:
    writer = StepLogWriter(tmp_path, a_header)
    follower = LogFollower(tmp_path)
    assert list(follower.read_new()) == [a_header()]
    for line in three_steps(ImaginedEngine()):
        writer.append(line)
        assert list(follower.read_new()) == [line]
    assert list(follower.read_new()) == []
    writer.close()


def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    lines = three_steps(ImaginedEngine())
    write(tmp_path, lines)
    whole = newest(tmp_path).read_bytes()
    for cut in range(1, len(to_line(lines[-1]))):
        newest(tmp_path).write_bytes(whole[:-cut])
        with pytest.warns(TornLineWarning, match=r"steps-000001.log:4: the last line was cut"):
            assert steps_of(tmp_path) == lines[:-1]


def test_a_new_run_follows_a_torn_one(tmp_path: Path) -> None:
    lines = three_steps(ImaginedEngine())
    write(tmp_path, lines)
    newest(tmp_path).write_bytes(newest(tmp_path).read_bytes()[:-7])
    write(tmp_path, lines, run="run-2")
    with pytest.warns(TornLineWarning, match="steps-000001.log:4"):
        assert steps_of(tmp_path) == [*lines[:-1], *lines]


def test_a_torn_line_in_the_middle_of_a_run_is_damage(tmp_path: Path) -> None:
    lines = three_steps(ImaginedEngine())
    write(tmp_path, lines)
    newest(tmp_path).write_bytes(newest(tmp_path).read_bytes()[:-7])
    write(tmp_path, lines)
    with pytest.raises(CorruptFileError, match="cut short, and its run goes on"):
        steps_of(tmp_path)


def test_any_changed_byte_is_damage(tmp_path: Path) -> None:
    write(tmp_path, three_steps(ImaginedEngine()))
    whole = newest(tmp_path).read_bytes()
    for at in range(len(whole) - 1):
        changed = bytearray(whole)
        changed[at] ^= 0x20
        newest(tmp_path).write_bytes(bytes(changed))
        with pytest.raises(CorruptFileError, match=r"steps-000001.log:\d"):
            steps_of(tmp_path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (to_line(a_header(format=2)), "format 2, not 1"),
        (to_line(StepLine(step=0)), "a header stands first"),
        (to_line(a_header()) + to_line(a_header()), "a header stands first"),
        (b"\n", "checksum"),
        (b"00000000 {}\n", "checksum"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, line: bytes, says: str) -> None:
    (tmp_path / "steps-000001.log").write_bytes(line)
    with pytest.raises(CorruptFileError, match=says):
        steps_of(tmp_path)


def test_a_whole_line_of_another_kind_is_refused() -> None:
    import zlib  # noqa: PLC0415

    body = b'{"k":"s"}'
    with pytest.raises(CorruptFileError, match="x:1: no line of a step log"):
        from_line(b"%08x %b" % (zlib.crc32(body), body), "x:1")


def test_no_log_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no step log"):
        list(read_log(tmp_path))


def test_the_disk_is_bounded(tmp_path: Path) -> None:
    limits = LogLimits(file_bytes=2000, num_files=3)
    engine = ImaginedEngine()
    writer = StepLogWriter(tmp_path, lambda: a_header(live=engine.recorder.live()), limits)
    for number in range(300):
        writer.make_room()
        name = f"r{number}"
        line = engine.step({name: 3}, new={name: 3}, finished=[f"r{number - 1}"])
        assert line is not None
        writer.append(line)
        files = list(tmp_path.glob("steps-*.log"))
        assert len(files) <= 3
        assert sum(path.stat().st_size for path in files) <= 3 * (2000 + 400)
    writer.close()
    assert len(steps_of(tmp_path)) > 20
    assert not (tmp_path / "steps-000001.log").exists()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = three_steps(ImaginedEngine())
    writer = StepLogWriter(tmp_path, a_header)
    writer.append(lines[0])
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: real(file, data[:9]))
        with pytest.raises(StoreError, match="the disk is full"):
            writer.append(lines[1])
    writer.append(lines[2])
    writer.close()
    assert steps_of(tmp_path) == [lines[0], lines[2]]


def test_a_follower_goes_on_after_files_were_rotated_away(tmp_path: Path) -> None:
    write(tmp_path, three_steps(ImaginedEngine()))
    follower = LogFollower(tmp_path)
    assert len(list(follower.read_new())) == 4
    write(tmp_path, three_steps(ImaginedEngine()), run="run-2")
    write(tmp_path, three_steps(ImaginedEngine()), run="run-3")
    for number in (1, 2):
        (tmp_path / f"steps-00000{number}.log").unlink()
    found = list(follower.read_new())
    assert isinstance(found[0], FileHeader)
    assert found[0].run == "run-3"
    assert len(found) == 4


step_tokens = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3)), max_size=25)


@settings(max_examples=30, deadline=None)  # it syncs many files
@given(steps=step_tokens, file_bytes=st.integers(1, 1500))
def test_rotation_changes_nothing_that_is_told(
    steps: list[dict[str, int]], file_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("error")
        folder, recorder = Path(name), Recorder()
        engine, plain = ImaginedEngine(recorder), ImaginedEngine()
        limits = LogLimits(file_bytes=file_bytes, num_files=10**6)
        writer = StepLogWriter(folder, lambda: a_header(live=recorder.live()), limits)
        expected, seen = [], set[str]()
        for slots in steps:
            new = {one: 3 for one in slots if one not in seen}
            seen |= slots.keys()
            sampled = {one: [count] * 3 for one, count in slots.items()}
            writer.make_room()
            line = engine.step(slots, new=new, sampled=sampled)
            if line is not None:
                writer.append(line)
                expected.append(plain.step(slots, new=new, sampled=sampled))
        writer.close()
        whole = History().feed([a_header(), *(one for one in expected if one is not None)])
        rotated = History().feed(read_log(folder))
        for one in seen:
            assert rotated.membership({one: one}) == whole.membership({one: one})
