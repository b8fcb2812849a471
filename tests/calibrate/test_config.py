from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.config import CalibrationConfig, load_config
from harness.errors import ConfigError, InputFileError, ScorepinError, UnsupportedConditionError
from harness.records import PrecisionName
from harness.records.batching import Padded

GOOD = """\
name: example
verifier:
  model: fake:exact
  head: {kind: log_odds, yes: [yes, Yes], no: [no, No]}
  prompt: {template: "{context}{branch}"}
decisions: some.jsonl
arms:
  - precision: bfloat16
    batching: {mode: padded, max_rows: 8}
    reduction_order: {name: vendor, num_threads: 1}
  - precision: float32
    batching: {mode: fixed_width, width: 64}
sweep: {rows: [2, 4], sides: [left]}
claim: {coverage: 0.95, confidence: 9.5e-1}
"""


def config_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(folder: Path, text: str = GOOD) -> CalibrationConfig:
    return load_config(config_file(folder, text))


def test_a_config_is_read_whole(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.arms[0].precision is PrecisionName.BFLOAT16
    assert config.arms[0].batching == Padded(max_rows=8)
    assert config.arms[0].condition.reduction_order.num_threads == 1
    assert config.arms[0].reference_on(config.verifier.engine).precision is PrecisionName.FLOAT32
    assert config.arms[1].reference_on(config.verifier.engine).precision is PrecisionName.FLOAT64
    assert config.sweep.rows == (2, 4)
    assert config.claim.confidence == 0.95


def test_yes_and_no_are_words(tmp_path: Path) -> None:
    head: Any = load(tmp_path).verifier.head
    assert (head.yes, head.no) == (("yes", "Yes"), ("no", "No"))


def test_the_shipped_configs_load() -> None:
    shipped = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    assert "demo.yaml" in {path.name for path in shipped}
    for path in shipped:
        assert load_config(path).name


CHANGES = {
    "bad yaml": (
        "sweep: {rows: [2, 4]",
        "sweep: {rows: [2, 4",
        r"(?s)not valid YAML.*config\.yaml\", line 13",
    ),
    "two documents": ("name: example", "--- \na: 1\n---\nname: example", "single document"),
    "tag": ("name: example", "name: !!python/object:os.system x", "not valid YAML"),
    "wrong type": ("precision: float32", "precision: 32", r"`\$\.arms\[1\]\.precision`"),
    "wrong precision": (
        "precision: bfloat16",
        "precision: bf16",
        r"'bf16' - at `\$\.arms\[0\]\.precision`; did you mean 'bfloat16'\? known: bfloat16",
    ),
    "wrong mode": (
        "mode: padded",
        "mode: paded",
        r"`\$\.arms\[0\]\.batching\.mode`; did you mean 'padded'\? known: fixed_width, in_flight",
    ),
    "wrong head": ("kind: log_odds", "kind: logodds", "did you mean 'log_odds'"),
    "wrong order": ("name: vendor", "name: vender", "did you mean 'vendor'"),
    "wrong side": ("sides: [left]", "sides: [lft]", "did you mean 'left'"),
    "unknown key": ("name: example", "name: example\nseeds: 1", r"`seeds` at `\$`.*'seed'"),
    "unknown key in a verifier": (
        "model: fake:exact",
        "model: fake:exact\n  max_token: 3",
        r"`max_token` at `\$\.verifier`; did you mean 'max_tokens'",
    ),
    "unknown key in a head": (
        "kind: log_odds",
        "kind: log_odds, dtypes: model",
        r"`dtypes` at `\$\.verifier\.head`; did you mean 'dtype'",
    ),
    "unknown key in an arm": (
        "precision: float32",
        "precision: float32\n    batchings: 3",
        r"`batchings` at `\$\.arms\[1\]`; did you mean 'batching'",
    ),
    "unknown key in a batching": (
        "max_rows: 8",
        "max_rows: 8, sides: left",
        r"`sides` at `\$\.arms\[0\]\.batching`; did you mean 'side'",
    ),
    "number as key": ("name: example", "1: 2\nname: example", r"at `key` in `\$`"),
    "list as key": ("name: example", "[a]: 2\nname: example", "not valid YAML"),
    "merge key": ("name: example", "<<: {seed: 1}\nname: example", "unknown key `<<`"),
    "duplicate key": ("name: example", "name: a\nname: example", "'name' stands twice"),
    "nested duplicate": ("coverage: 0.95", "coverage: 0.9, coverage: 0.95", "stands twice"),
    "tf32 on a cpu": ("precision: float32", "precision: tf32", r"`\$\.arms\[1\]`: .*tf32 needs"),
    "float64": ("precision: float32", "precision: float64", r"arms\[1\].*no finer reference"),
    "unknown override": (
        "precision: float32",
        "precision: float32\n    precision_overrides: {float32_matmul: high}",
        r"arms\[1\]",
    ),
    "same arm twice": (
        "sweep:",
        (
            "  - {precision: bfloat16, batching: {mode: padded, max_rows: 8}, "
            "reduction_order: {name: vendor, num_threads: 1}}\nsweep:"
        ),
        r"`\$\.arms\[2\]`: the same as `\$\.arms\[0\]`",
    ),
    "coverage 1": ("coverage: 0.95", "coverage: 1.0", r"< 1\.0 - at `\$\.claim\.coverage`"),
    "coverage nan": ("coverage: 0.95", "coverage: .nan", r"`\$\.claim\.coverage`"),
    "confidence 0": ("confidence: 9.5e-1", "confidence: 0", r"`\$\.claim\.confidence`"),
    "no rows": ("max_rows: 8", "max_rows: 0", "at least 1, found 0"),
    "octal rows": ("max_rows: 8", "max_rows: 010", "Expected `int`"),
    "zero rows swept": ("rows: [2, 4]", "rows: [2, 0]", r"`\$\.sweep\.rows\[1\]`"),
    "a path as name": ("name: example", "name: ../example", r"at `\$\.name`"),
    "negative seed": ("name: example", "name: example\nseed: -1", r"at `\$\.seed`"),
    "never ending": ("name: example", "name: example\nvalid_days: 9999999", "valid_days"),
    "no decisions": ("decisions: some.jsonl\n", "", "missing required field `decisions`"),
    "recursive": ("rows: [2, 4]", "rows: &a [*a]", r"`\$\.sweep\.rows"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_bad_config_is_refused_with_file_place_and_advice(tmp_path: Path, case: str) -> None:
    old, new, message = CHANGES[case]
    assert old in GOOD
    with pytest.raises(ScorepinError, match=message) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert str(tmp_path / "config.yaml") in str(caught.value)
    expected = UnsupportedConditionError if case in {"tf32 on a cpu", "float64"} else ConfigError
    assert isinstance(caught.value, expected)


FILES = {
    "empty": (b"", "found an empty file"),
    "only a comment": (b"# nothing\n", "found an empty file"),
    "a list": (b"- 1\n", "found list"),
    "no text": (b"\xff\xfe\x00\xd8", "not valid YAML"),
    "latin 1": ("name: Größe".encode("latin-1"), "not valid YAML"),
    "deep": (b"[" * 20_000, "not valid YAML"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, case: str) -> None:
    data, message = FILES[case]
    with pytest.raises(ConfigError, match=message):
        load_config(config_file(tmp_path, data))


def test_no_arms_are_refused(tmp_path: Path) -> None:
    start, end = GOOD.index("arms:"), GOOD.index("sweep:")
    with pytest.raises(ConfigError, match=r"length >= 1 - at `\$\.arms`"):
        load(tmp_path, f"{GOOD[:start]}arms: []\n{GOOD[end:]}")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot be read"):
        load_config(tmp_path / "absent.yaml")


def test_paths_are_relative_to_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "configs"
    (folder / "model").mkdir(parents=True)
    text = GOOD.replace("fake:exact", "model")
    config_file(folder, text)
    monkeypatch.chdir(tmp_path)
    here = load_config(Path("configs/config.yaml"))
    assert here.decisions == str(folder / "some.jsonl")
    assert here.verifier.model == str(folder / "model")
    monkeypatch.chdir(folder)
    there = load_config(Path("config.yaml"))
    assert there.digest == here.digest
    assert (there.verifier.model, there.decisions) == (here.verifier.model, here.decisions)


@pytest.mark.parametrize("source", ["embedded:decisions", "/data/some.jsonl"])
def test_other_sources_of_decisions_stay_as_they_are(tmp_path: Path, source: str) -> None:
    assert load(tmp_path, GOOD.replace("some.jsonl", source)).decisions == source


def test_a_model_that_is_no_folder_stays_as_it_is(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD.replace("fake:exact", "org/model"))
    assert config.verifier.model == "org/model"


UNLIKE = {
    "seed": ("name: example", "name: example\nseed: 1"),
    "sweep": ("rows: [2, 4]", "rows: [2, 3]"),
    "arm": ("max_rows: 8", "max_rows: 9"),
    "claim": ("coverage: 0.95", "coverage: 0.9"),
    "verifier": ("{context}{branch}", "{branch}"),
}
ALIKE = {
    "processes": ("name: example", "name: example\nprocesses: 3"),
    "decisions": ("some.jsonl", "elsewhere.jsonl"),
    "default": ("name: example", "name: example\nseed: 0"),
    "comment": ("name: example", "name: example  # said"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_the_digest_follows_what_is_measured(tmp_path: Path, case: str) -> None:
    assert load(tmp_path, GOOD.replace(*UNLIKE[case])).digest != load(tmp_path).digest


@pytest.mark.parametrize("case", ALIKE)
def test_the_digest_follows_nothing_else(tmp_path: Path, case: str) -> None:
    assert load(tmp_path, GOOD.replace(*ALIKE[case])).digest == load(tmp_path).digest


def test_a_config_survives_json(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(config), type=CalibrationConfig) == config
