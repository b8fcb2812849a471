"""A foreign server calibrated, scored, replayed and judged, through the command line."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from calibrate.config import load_config
from calibrate.evidence import ArmEvidence, Snapshot
from calibrate.report import report_content, report_run
from calibrate.run import num_processes
from calibrate.stored_run import read_run
from harness.decisions import read_decisions
from harness.errors import ScorepinError
from harness.judge.classify import judge
from harness.judge.tolerances import Tolerances
from harness.records.commit import CommitRecord, ReplayRecord
from harness.records.engine import Endpoint
from harness.records.membership import MembershipSource
from harness.records.scores import to_wire
from harness.records.tolerance import AxisStatus, Equivalence, Tolerance
from harness.records.verdict import Policy, VerdictKind
from harness.replay import replay_commits
from harness.scoring import score_decisions
from harness.tolerance_file import load_tolerances
from tests.command import scorepin
from tests.imagined_endpoint import imagined_server

CONFIG = """\
name: foreign
verifier:
  model: embedded:lm
  head: {{kind: log_odds, yes: [" gets"], no: ["'"]}}
  prompt: {{template: "<bos>{{context}}<sol>{{branch}}<eos>"}}
  engine:
    name: endpoint
    urls: {{bfloat16: "{bfloat16}", float32: "{float32}"}}
    served_model: m
    gate: true
    gate_wait_s: 0.01
decisions: embedded:decisions
num_decisions: 10
arms:
  - precision: bfloat16
    batching: {{mode: in_flight, max_rows: 6}}
sweep: {{rows: [3], reference_rows: 6}}
claim: {{coverage: 0.7, confidence: 0.7}}
guard_decisions: 6
processes: 2
"""


class Foreign(NamedTuple):
    """What came of a server in two precisions."""

    largest: int
    """Most requests that it computed together."""
    run: Path
    """Folder of the calibration."""
    pairs: tuple[tuple[CommitRecord, ReplayRecord], ...]
    """Commits with their replays."""

    @property
    def tolerances(self) -> Tolerances:
        return load_tolerances(self.run)

    @property
    def tolerance(self) -> Tolerance:
        (file,) = self.tolerances.files
        return file.tolerances[0]


def write_config(folder: Path, text: str = CONFIG, **urls: str) -> Path:
    path = folder / "foreign.yaml"
    path.write_text(text.format(**{"bfloat16": "http://a", "float32": "http://b"} | urls))
    return path


def calibrated(folder: Path, *, moves: bool) -> Foreign:
    """Calibrate such a server by the command, score three decisions on it, and replay them."""
    with (
        imagined_server("bfloat16", moves=moves) as narrow,
        imagined_server("float32", moves=moves) as fine,
    ):
        path = write_config(folder, bfloat16=narrow.url, float32=fine.url)
        done = scorepin("calibrate", path, "--run", folder / "run", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        config = load_config(path)
        arm, decisions = config.arms[0], read_decisions(config.decisions, 3)
        scored = score_decisions(config.verifier, arm.condition, arm.batching, decisions)
        items = {item.content_digest: item for item in scored.items}
        replays = replay_commits(scored.commits, items)
    pairs = tuple(zip(scored.commits, replays, strict=True))
    return Foreign(narrow.largest, folder / "run", pairs)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Foreign, Foreign]:
    """A server that moves and one that does not, side by side."""
    with ThreadPoolExecutor() as pool:
        moving, invariant = (
            pool.submit(calibrated, tmp_path_factory.mktemp("run"), moves=moves)
            for moves in (True, False)
        )
        return moving.result(), invariant.result()


@pytest.fixture(scope="module")
def moving(both: tuple[Foreign, Foreign]) -> Foreign:
    return both[0]


@pytest.fixture(scope="module")
def invariant(both: tuple[Foreign, Foreign]) -> Foreign:
    return both[1]


def far_from(commit: CommitRecord, replay: ReplayRecord) -> ReplayRecord:
    scores = {name: score + 1 for name, score in commit.scores.items()}
    return replace(replay, scores=to_wire(scores))


def test_a_server_that_moves_is_measured_by_what_was_asked(moving: Foreign) -> None:
    tolerance = moving.tolerance
    found = {axis.axis: axis for axis in tolerance.axes}
    assert moving.largest == 6
    assert found["num_rows"].status is AxisStatus.MOVED
    assert found["arrival_order"].status is AxisStatus.INVARIANT
    said = {axis.settings[0].split(";")[0] for axis in tolerance.axes}
    assert said == {"requested, not observed"}
    assert tolerance.floor.value == 0 < tolerance.envelope.value < 2.0**-6
    assert tolerance.equivalence is Equivalence.EXACT
    (live,) = [guard.evidence for guard in tolerance.guards if guard.guard == "live_head"]
    assert live.startswith("the weights are declared for the server, not read from it")


def test_no_replay_of_it_is_a_fault_however_far_it_is(moving: Foreign) -> None:
    for commit, replay in moving.pairs:
        assert commit.invocation.batch_membership.source is MembershipSource.REQUESTED
        assert replay.invocation.batch_membership.source is MembershipSource.REQUESTED
        assert replay.numeric_scores() == commit.scores
        for told in (replay, far_from(commit, replay)):
            verdict = judge(commit, told, moving.tolerances, policy=Policy.STRICT)
            assert (verdict.kind, verdict.fault) == (VerdictKind.RECONSTRUCTION, False)


def test_an_invariant_build_is_certified_and_its_faults_are_faults(invariant: Foreign) -> None:
    assert invariant.tolerance.equivalence is Equivalence.ANY
    for commit, replay in invariant.pairs:
        assert judge(commit, replay, invariant.tolerances).kind is VerdictKind.EXACT
        verdict = judge(commit, far_from(commit, replay), invariant.tolerances)
        assert (verdict.kind, verdict.fault) == (VerdictKind.DIVERGENCE, True)


def test_a_replay_asks_for_the_flights_of_the_commit(moving: Foreign) -> None:
    memberships = [
        [one.invocation.batch_membership for one in (commit, replay)]
        for commit, replay in moving.pairs
    ]
    assert max(len(here.steps) for here, _ in memberships) > 1, "no decision is in two flights"
    for here, there in memberships:
        left, right = (
            [[slot.computation() for slot in step.slots] for step in one.steps]
            for one in (here, there)
        )
        assert left == right


def without_gate(foreign: Foreign) -> Snapshot:
    """Return the same run, as if the server had no gate."""
    run = read_run(foreign.run)
    engine = run.config.verifier.engine
    assert isinstance(engine, Endpoint)
    verifier = replace(run.config.verifier, engine=replace(engine, gate=False))
    return replace(run, config=replace(run.config, verifier=verifier))


def test_without_a_gate_invariance_is_not_certified(invariant: Foreign) -> None:
    with_gate = ArmEvidence(read_run(invariant.run), 0).tolerance()
    loose = ArmEvidence(without_gate(invariant), 0).tolerance()
    assert with_gate.equivalence is Equivalence.ANY
    assert loose == replace(with_gate, equivalence=Equivalence.EXACT)


LOOSE = "may even have been computed one by one"


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_the_report_says_what_is_missing_and_what_recording_adds(
    moving: Foreign, invariant: Foreign, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"report.{suffix}"
    texts = []
    for foreign in (moving, invariant):
        assert report_run(foreign.run, out) == ""
        texts.append(" ".join(out.read_text().split()))
    for text in texts:
        assert "Batch membership was asked for, not observed" in text
        assert "--scheduler-cls harness.serving.scheduler.RecordingScheduler" in text
        assert "--middleware harness.serving.route.StepLogRoute" in text
        assert "the server does not name its own" in text
        assert LOOSE not in text
    assert "it is a reconstruction, and never a fault" in texts[0]
    assert "certified invariant and replays of its commits are judged" in texts[1]


def test_the_report_says_that_nothing_was_gathered(invariant: Foreign) -> None:
    run = without_gate(invariant)
    content = report_content(run, [ArmEvidence(run, 0)], refusal="for example")
    assert LOOSE in content.arms[0].membership
    assert "never a fault" in content.arms[0].membership


WRONG = {
    "a precision without a server": ("float32:", "float16:", "no server for float32"),
    "too large a flight": ("max_rows: 6", "max_rows: 65", "65 requests and 64 connections"),
    "forwards": ("in_flight, max_rows: 6", "padded, max_rows: 6", "mode in_flight goes with"),
    "threads": (
        "precision: bfloat16\n",
        "precision: bfloat16\n    reduction_order: {{name: vendor, num_threads: 1}}\n",
        "the server's own",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_config_that_cannot_be_is_refused_at_its_place(tmp_path: Path, name: str) -> None:
    old, new, message = WRONG[name]
    changed = CONFIG.replace(old, new)
    assert changed != CONFIG
    with pytest.raises(ScorepinError, match=message) as refused:
        load_config(write_config(tmp_path, changed))
    assert "`$.arms[0]`" in str(refused.value)


def test_one_process_at_a_time_is_in_a_server(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path))
    assert config.processes == 2
    assert num_processes(config) == 1
