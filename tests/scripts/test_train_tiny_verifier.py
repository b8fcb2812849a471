"""The training script: its data are exact, its labels mean what they say, and it trains."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from harness.errors import ConfigError
from harness.verifiers.embedded import checkpoint, decisions_file
from scripts.train_tiny_verifier.__main__ import run
from scripts.train_tiny_verifier.batches import BatchStream, encode_candidates
from scripts.train_tiny_verifier.candidates import Candidate, ErrorKind, draw_candidate, draw_drill
from scripts.train_tiny_verifier.decisions import decision_lines, draw_held_out
from scripts.train_tiny_verifier.evaluate import auc
from scripts.train_tiny_verifier.problems import LARGEST_VALUE, Problem, draw_problem
from scripts.train_tiny_verifier.tokenizer import train_tokenizer
from scripts.train_tiny_verifier.training import drill_share, learning_rate

ROOT = Path(__file__).parents[2]

TOKENIZER = train_tokenizer()


def generator(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - reproducible data, not a secret


def values(problem: Problem) -> list[int]:
    found = [problem.start]
    for step in problem.steps:
        found.append(step.apply(found[-1]))
    return found


def candidate(text: str, *true_lines: str, is_drill: bool = False) -> Candidate:
    return Candidate(
        context="" if is_drill else "Tom has 3 eggs.",
        text=text,
        true_lines=true_lines,
        error=ErrorKind.OK,
        is_drill=is_drill,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of the command on a tiny budget: its directory and its report."""
    out = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-m", "scripts.train_tiny_verifier", "--out", str(out)]
    command += ["--cpu-seconds", "3", "--num-problems", "5"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return out, json.loads(finished.stdout)


def test_the_shipped_decisions_come_out_byte_for_byte() -> None:
    shipped = decisions_file().read_text(encoding="utf-8")
    assert decision_lines(draw_held_out()) == shipped
    assert decision_lines(draw_held_out(seed=98)) != shipped


def test_the_shipped_tokenizer_comes_out_byte_for_byte(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (checkpoint("reward") / name).read_bytes()


def test_training_never_shows_a_held_out_problem() -> None:
    held_out = {(item.problem.start, item.problem.steps) for item in draw_held_out()}
    rng = generator(4)
    problems = [draw_problem(rng, held_out=False) for _ in range(3000)]
    assert not held_out & {(problem.start, problem.steps) for problem in problems}
    assert not any(problem.has_unseen_triple for problem in problems)
    # Negative control: the held-out part does meet such triples.
    assert any(item.problem.has_unseen_triple for item in draw_held_out())


def test_right_values_stay_in_range() -> None:
    rng = generator(5)
    for held_out in (False, True) * 500:
        assert all(0 <= v <= LARGEST_VALUE for v in values(draw_problem(rng, held_out=held_out)))


def test_a_candidate_is_right_exactly_when_nothing_is_wrong_with_it() -> None:
    rng = generator(6)
    drawn = [draw_candidate(rng) for _ in range(2000)]
    assert all(item.is_right == (item.error is ErrorKind.OK) for item in drawn)
    assert {item.error for item in drawn} == set(ErrorKind)


def test_one_mistake_is_charged_to_one_line() -> None:
    rng = generator(7)
    for item in (draw_candidate(rng) for _ in range(2000)):
        lines = zip(item.text.splitlines(), item.true_lines, strict=True)
        assert sum(line != true for line, true in lines) == int(not item.is_right), item


def test_the_targets_of_a_wrong_solution() -> None:
    wrong = candidate("3+5=9\n#9", "3+5=8", "#9")
    (example,) = encode_candidates(TOKENIZER, [wrong])
    # 3 + 5 = are right so far, 9 and the newline are not; the last line follows from it.
    assert example.rewards[-9:] == [1, 1, 1, 1, 0, 0, 1, 1, 0]
    assert set(example.rewards[:-9]) == {-1}
    assert set(example.predicted) == {0}


def test_the_targets_of_a_right_solution() -> None:
    (example,) = encode_candidates(TOKENIZER, [candidate("3+5=8\n#8", "3+5=8", "#8")])
    assert example.rewards[-9:] == example.predicted[-9:] == [1] * 9
    assert set(example.predicted[:-9]) == {0}


def test_the_targets_of_a_drill() -> None:
    drill = candidate("3+5=8\n2*4=9\n", "3+5=8", "2*4=8", is_drill=True)
    (example,) = encode_candidates(TOKENIZER, [drill])
    # Only results and newlines teach; of wrong lines nothing is predicted.
    assert example.rewards[-13:] == [-1] * 4 + [1, 1] + [-1] * 4 + [0, 0] + [-1]
    assert example.predicted[-13:] == [0] * 4 + [1, 1] + [0] * 7


def test_a_solution_of_longer_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="not one token a character"):
        encode_candidates(TOKENIZER, [candidate("apples", "apples")])


def test_a_stream_repeats_and_follows_its_seed() -> None:
    streams = [BatchStream(TOKENIZER, batch_size=4, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (stream.take(drill_share=0.5) for stream in streams)
    assert torch.equal(first.ids_BT, again.ids_BT)
    assert first.ids_BT.shape != other.ids_BT.shape or not torch.equal(first.ids_BT, other.ids_BT)


def test_drills_hold_right_and_wrong_lines() -> None:
    drill = draw_drill(generator(8))
    right = [
        line == true for line, true in zip(drill.text.splitlines(), drill.true_lines, strict=True)
    ]
    assert {*right} == {True, False}


def test_the_schedules_end_low() -> None:
    assert learning_rate(0, 0.0) < learning_rate(149, 0.0) == pytest.approx(2e-3)
    assert learning_rate(10_000, 1.2) == pytest.approx(2e-3 * 0.02)
    assert drill_share(0.0) == pytest.approx(0.6)
    assert drill_share(1.0) == pytest.approx(0.1)


def test_auc_equals_counting_pairs() -> None:
    right, wrong = [0.5, 2.0, 1.0], [0.5, 0.1, 3.0, 1.0]
    pairs = [(r > w) + (r == w) / 2 for r in right for w in wrong]
    assert auc(right, wrong) == pytest.approx(sum(pairs) / len(pairs))
    assert auc(right, []) is None


def test_a_tiny_budget_trains(trained: tuple[Path, dict[str, Any]]) -> None:
    training = trained[1]["training"]
    first, last = training["first"], training["last"]
    assert training["num_steps"] >= 2
    assert last["language_loss"] < first["language_loss"]
    assert math.isfinite(last["reward_loss"])
    assert 0 <= trained[1]["evaluation"]["auc"] <= 1


def test_what_is_written_loads_whole(trained: tuple[Path, dict[str, Any]]) -> None:
    out = trained[0]
    loaders: dict[str, Any] = {
        "reward": AutoModelForSequenceClassification,
        "lm": AutoModelForCausalLM,
    }
    for name, loader in loaders.items():
        model, report = loader.from_pretrained(out / name, output_loading_info=True, dtype="auto")
        assert not any(report.values()), report
        assert model.dtype == torch.bfloat16
        shipped = json.loads((checkpoint(name) / "config.json").read_text())
        assert (
            json.loads((out / name / "config.json").read_text()).items()
            >= {key: shipped[key] for key in shipped if key != "transformers_version"}.items()
        )
    assert len((out / "decisions.jsonl").read_text().splitlines()) == 5


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ConfigError, match="holds files already"):
        run(tmp_path, cpu_seconds=1, num_problems=1, console=Console(file=io.StringIO()))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
