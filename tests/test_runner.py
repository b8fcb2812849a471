"""One condition, one process: what crosses, what is seen when it dies, and nothing left behind."""

import io
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import runner
from harness.conditions.batching import Batch
from harness.conditions.condition import Condition
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import ConfigError, InputFileError, WorkerError
from harness.messages import Run, Scored, receive, send
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import Prompt, Reward, VerifierSpec
from harness.runner import ConditionProcess
from harness.verifiers import RowText

ROOT = Path(__file__).parents[1]
TEXTS = tuple(RowText(context="c", branch="b" * (at + 1), name=f"row {at}") for at in range(4))
TOGETHER = Batch(rows=(0, 1, 2, 3), width=9, side=PaddingSide.RIGHT)
ALONE = tuple(Batch(rows=(at,), width=at + 2, side=None) for at in range(4))


def condition(**order: Any) -> Condition:
    return Condition(
        precision=PrecisionName.FLOAT32,
        reduction_order=ReductionOrderSpec(**{"name": "vendor"} | order),
    )


def spec(model: str = "fake:rounding") -> VerifierSpec:
    return VerifierSpec(model=model, head=Reward(), prompt=Prompt(template="{context}{branch}"))


def process(model: str = "fake:rounding", **order: Any) -> ConditionProcess:
    return ConditionProcess(spec(model), condition(**order), TEXTS)


@pytest.fixture(autouse=True)
def no_process_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    before, others = open_files(), children()
    yield
    assert not list((tmp_path / "temporary").iterdir())
    assert [child for child in children() if child not in others] == []  # other tests' servers stay
    assert open_files() == before


def score_all(running: ConditionProcess, *batches: Batch) -> list[tuple[float, ...]]:
    running.ready()
    return list(running.score(batches or (TOGETHER,)))


def children() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split()]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes every child run some code when its interpreter starts."""

    def install(code: str) -> None:
        home = tmp_path / "site"
        home.mkdir()
        (home / "sitecustomize.py").write_text(code)
        monkeypatch.setattr(sys, "path", [str(home), *sys.path])

    return install


FAKE_SCORE = """
from harness.verifiers.fake import FakeVerifier
real = FakeVerifier.score
def score(self, rows, width, side, num_rows):
    {}
    return real(self, rows, width, side, num_rows)
FakeVerifier.score = score
"""


def test_scores_come_in_the_order_of_the_batches() -> None:
    with process() as running:
        ready = running.ready()
        assert [len(row.token_ids) for row in ready.rows] == [2, 3, 4, 5]
        (together,) = running.score([TOGETHER])
        alone = [scores for (scores,) in running.score(ALONE)]
        backwards = [scores for (scores,) in running.score(ALONE[::-1])]
    assert alone == backwards[::-1]
    assert len(set(alone)) == len(together) == 4


def test_a_non_finite_score_crosses() -> None:
    with process("fake:nan") as running:
        running.ready()
        ((first, *rest),) = running.score([TOGETHER])
    assert all(math.isnan(score) for score in (first, *rest))


CHILD = """
import sys
if sys.argv[0] == "-m":
    import os, torch
    from harness.verifiers.fake import FakeVerifier
    def score(self, rows, width, side, num_rows):
        return [float(torch.get_num_threads()), float(os.getpid()), float(os.environ["X"])]
    FakeVerifier.score = score
"""


def test_the_environment_stands_before_the_process_starts(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(CHILD)
    monkeypatch.setenv("X", "7")
    batch = [Batch(rows=(0, 1, 2), width=9, side=PaddingSide.RIGHT)]
    found = []
    for threads in (1, 2):
        with process(num_threads=threads) as running:
            running.ready()
            found += list(running.score(batch))
    assert [scores[0] for scores in found] == [1.0, 2.0]
    assert len({os.getpid(), found[0][1], found[1][1]}) == 3
    assert [scores[2] for scores in found] == [7.0, 7.0]


def test_a_variable_that_must_not_be_set_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert "ONEDNN_DEFAULT_FPMATH_MODE" not in runner._environment(condition(), spec())
    assert os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] == "BF16"


def test_it_works_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harness.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "msgspec.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    with process() as running:
        assert len(running.ready().rows) == 4


def test_a_killed_process_is_told_with_its_last_words(broken: Any) -> None:
    broken(
        FAKE_SCORE.format(
            "import os, sys; print('last words', file=sys.stderr, flush=True);"
            " len(rows) == 4 and os.kill(os.getpid(), 9)"
        )
    )
    message = r"(?s)process died \(killed by SIGKILL;.*last words"
    with pytest.raises(WorkerError, match=message), process() as running:
        score_all(running, ALONE[0], TOGETHER, ALONE[1])


def test_a_process_that_is_killed_between_two_calls(broken: Any) -> None:
    broken("import sys; print('noise', file=sys.stderr)")

    def terminate_and_score(running: ConditionProcess) -> None:
        running.ready()
        running._process.terminate()
        running._process.wait()
        list(running.score([TOGETHER]))

    with pytest.raises(WorkerError, match=r"(?s)SIGTERM.*noise"), process() as running:
        terminate_and_score(running)


def test_an_error_of_ours_keeps_its_class() -> None:
    with pytest.raises(ConfigError, match="unknown fake 'no'"), process("fake:no") as running:
        running.ready()


def test_a_bad_row_keeps_its_class_and_name() -> None:
    texts = [*TEXTS, RowText(context="c", branch="", name="decision 'd', branch 'b'")]
    with (
        pytest.raises(InputFileError, match="decision 'd', branch 'b': the branch has no token"),
        ConditionProcess(spec(), condition(), texts) as running,
    ):
        running.ready()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("assert len(rows) == 9, 'not nine'", "failed: AssertionError: not nine"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(5)", r"died \(exit status 5\)"),
        ("return [0.5]", r"gave 1 scores for 4 rows"),
        ("import os; os._exit(0)", r"died \(exit status 0\)"),
    ],
)
def test_any_other_failure_is_told(broken: Any, code: str, message: str) -> None:
    broken(FAKE_SCORE.format(code))
    with pytest.raises(WorkerError, match=message) as caught, process() as running:
        score_all(running)
    if "Error" in message:
        assert "Traceback" in str(caught.value)


def test_a_failure_at_the_end_is_told(broken: Any) -> None:
    broken(
        "from harness.verifiers.fake import FakeVerifier\n"
        "def close(self): raise OSError('stuck switch')\n"
        "FakeVerifier.close = close\n"
    )
    with pytest.raises(WorkerError, match=r"(?s)at its end.*stuck switch"), process() as running:
        running.ready()


NOISE = """
import os, sys, subprocess
print('hello from a library')
os.system('echo hello from a shell')
assert sys.stdin.read() == ''
sys.stdout.flush()
"""


def test_what_a_library_prints_or_reads_touches_no_message(broken: Any) -> None:
    broken(FAKE_SCORE.format(f"exec({NOISE!r})"))
    with process() as running:
        running.ready()
        assert len(next(running.score([TOGETHER]))) == 4


def test_what_is_printed_before_the_process_is_ready_is_told(broken: Any) -> None:
    broken("print('hello from sitecustomize', flush=True)")
    with pytest.raises(WorkerError, match=r"b'hello fr'\.\.\. is no message"), process() as running:
        running.ready()


def test_scores_left_unread_do_not_answer_the_next_call() -> None:
    with process() as running:
        running.ready()
        next(running.score(ALONE))
        with pytest.raises(WorkerError, match="not all read"):
            next(running.score([TOGETHER]))


def test_leaving_early_does_not_wait_for_the_rest(broken: Any) -> None:
    broken(FAKE_SCORE.format("import time; time.sleep(0.2)"))
    with process() as running:
        running.ready()
        next(running.score(ALONE * 1000))
        start = time.monotonic()
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_the_caller_raises_the_process_ends(kind: type[BaseException]) -> None:
    running = process()

    def run_and_raise() -> None:
        with running:
            running.ready()
            raise kind

    with pytest.raises(kind):
        run_and_raise()
    assert running._process.returncode == -signal.SIGKILL


def test_an_interrupt_while_waiting_ends_the_process(broken: Any) -> None:
    broken(FAKE_SCORE.format("import os, signal, time; os.kill(os.getppid(), 2); time.sleep(60)"))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), process() as running:
        score_all(running)
    assert time.monotonic() - start < 30


def test_an_interrupt_while_starting_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "send", interrupted)
    with pytest.raises(KeyboardInterrupt), process():
        pytest.fail("entered")


def test_an_interpreter_that_does_not_start_is_told(broken: Any) -> None:
    broken("import os; os.write(2, b'no luck'); os._exit(3)")
    with pytest.raises(WorkerError, match=r"(?s)\(exit status 3\).*no luck"), process() as running:
        running.ready()


PARENT = """
import os, sys, time
from tests.test_runner import TOGETHER, process
with process() as running:
    running.ready()
    print(running._process.pid, flush=True)
    if sys.argv[1] == "scoring":
        for _ in running.score([TOGETHER] * 10**6):
            pass
    time.sleep(60)
"""


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("doing", ["waiting", "scoring"])
def test_a_process_does_not_outlive_a_parent_that_was_killed(doing: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, doing], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        assert not has_ended(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(pid)


def frame(message: Any) -> bytes:
    stream = io.BytesIO()
    send(stream, message)
    return stream.getvalue()


def test_messages_cross_whole() -> None:
    messages = [Scored(scores=(0.1, float("inf"))), Run(batches=ALONE), Scored(scores=())]
    stream = io.BytesIO(b"".join(map(frame, messages)))
    assert [receive(stream) for _ in messages] == messages
    assert receive(stream) is None


@pytest.mark.parametrize("length", [1, 7, 8, 9, -1])
def test_a_message_that_is_cut_short_is_an_error(length: int) -> None:
    with pytest.raises(WorkerError, match="cut short"):
        receive(io.BytesIO(frame(Scored(scores=(1.0, 2.0)))[:length]))


@pytest.mark.parametrize("data", [b"hello, world", b"\n" * 9, b"\xff" * 20])
def test_something_that_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(WorkerError, match="is no message"):
        receive(io.BytesIO(data))


def test_a_message_of_another_release_is_an_error() -> None:
    data = b"\x81\xa4type\xa3New"
    with pytest.raises(WorkerError, match="not of this release"):
        receive(io.BytesIO(len(data).to_bytes(8, "big") + data))


def test_a_real_model_loads_without_a_word() -> None:
    texts = [RowText(context="1+1", branch="=2")]
    with ConditionProcess(spec("embedded:reward"), condition(num_threads=1), texts) as running:
        ready = running.ready()
        list(running.score([Batch(rows=(0,), width=len(ready.rows[0].token_ids), side=None)]))
        running._process.stdin.close()  # type: ignore[union-attr]
        running._process.wait()
        assert running._tail() == ""
    assert ready.build.kernel_environment.keys().isdisjoint({"ONEDNN_PRIMITIVE_CACHE_CAPACITY"})
    assert ready.condition.reduction_order.resolved["num_threads"] == 1
