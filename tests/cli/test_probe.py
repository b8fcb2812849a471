"""``scorepin probe`` from the outside."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from calibrate.config import load_config
from harness.codec import canonical_bytes, digest
from harness.orders.cache import load_fingerprints
from harness.runner import ConditionProcess
from harness.verifiers import RowText
from harness.verifiers.random_weights import Architecture, Task, WeightDtype, write_checkpoint
from tests.command import a_verifier, invoke, scorepin, write_config


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a config of a tiny random model, probed once as JSON, with drawings."""
    folder = tmp_path_factory.mktemp("probe")
    write_checkpoint(
        folder / "model",
        architecture=Architecture.QWEN2,
        task=Task.SEQUENCE_CLASSIFICATION,
        seed=3,
        dtype=WeightDtype.FLOAT32,
    )
    write_config(
        folder / "tiny.yaml",
        verifier=a_verifier("model", max_tokens=64, overflow="keep_end"),
        arms=[
            {
                "precision": "float32",
                "reduction_order": {"name": "vendor", "num_threads": 1, "fingerprint": True},
                "batching": {"mode": "padded", "side": "right", "max_rows": 3},
            }
        ],
    )
    arguments = ("probe", "tiny.yaml", "--json", "--svg", "drawn")
    done = scorepin(*arguments, cwd=folder, SCOREPIN_CACHE=str(folder / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "probe.json").write_text(done.stdout)
    return folder


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "probe.json").read_text())
    return found


def test_every_rung_of_every_class_has_a_tree_that_is_there(probed: Path) -> None:
    found = report(probed)["found"]
    rungs = [rung for kind in found["orders"]["classes"] for rung in kind["rungs"]]
    assert [rung["refused"] for rung in rungs if rung["refused"]] == []
    assert {tree["tree"] for rung in rungs for tree in rung["trees"]} <= found["trees"].keys()
    kinds = {kind["shape"]["kind"] for kind in found["orders"]["classes"]}
    assert kinds == {"linear", "mean", "attention"}


def test_each_number_of_rows_is_in_one_class_of_either_side(probed: Path) -> None:
    found = report(probed)
    for side in ("predicted", "observed"):
        assert sorted(rows for group in found[side] for rows in group) == [1, 2, 3]


def test_what_the_trees_say_of_this_model_is_what_its_bits_show(probed: Path) -> None:
    """float32 rounds nothing away that could hide another tree."""
    found = report(probed)
    assert [gap for gap in found["disagreements"] if gap["predicted_alike"]] == []


def test_the_process_left_its_fingerprints_in_the_cache(
    probed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCOREPIN_CACHE", str(probed / "cache"))
    (file,) = (probed / "cache" / "orders").iterdir()
    found = report(probed)
    assert load_fingerprints(f"sha256:{file.stem}") == found["fingerprints"]
    assert found["stale"] == []


def test_every_tree_is_drawn(probed: Path) -> None:
    found = report(probed)["found"]
    files = sorted(path.stem for path in (probed / "drawn").iterdir())
    assert files == sorted(digest.removeprefix("sha256:")[:12] for digest in found["trees"])
    for path in (probed / "drawn").iterdir():
        assert ET.fromstring(path.read_text()).tag.endswith("svg")  # noqa: S314 - our own


def test_the_table_says_it_and_a_stale_cache_is_told(probed: Path) -> None:
    (file,) = (probed / "cache" / "orders").iterdir()
    fingerprints = report(probed)["fingerprints"]
    name = next(iter(fingerprints))
    wrong = fingerprints | {name: "sha256:" + "0" * 64}
    file.write_bytes(
        canonical_bytes(
            {"key": f"sha256:{file.stem}", "fingerprints": wrong, "digest": digest(wrong)}
        )
    )
    done = scorepin(
        "probe", "tiny.yaml", "--draw", cwd=probed, SCOREPIN_CACHE=str(probed / "cache")
    )
    assert (done.returncode, done.stderr) == (0, "")
    for kind, fingerprint in fingerprints.items():
        assert f"{kind}  {fingerprint.removeprefix('sha256:')[:12]}\n" in done.stdout
    assert f"the cached fingerprint differs: {name}; remove " in done.stdout
    assert done.stdout.count("the cached fingerprint differs") == 1
    assert "  by the trees   1" in done.stdout
    assert "  by the bits    1" in done.stdout
    assert "2 terms\nterms 0 to 1: sequential\n" in done.stdout


def test_a_fake_has_no_sums_to_probe(tmp_path: Path) -> None:
    config = write_config(tmp_path / "fake.yaml")
    done = invoke("probe", config)
    assert done.code == 2
    assert done.stdout == ""
    assert "the sums of this verifier cannot be probed" in " ".join(done.stderr.split())


def test_an_arm_that_is_not_there(tmp_path: Path) -> None:
    done = invoke("probe", write_config(tmp_path / "fake.yaml"), "--arm", "7")
    assert done.code == 2
    assert "--arm 7: the config has arms 0 to 0" in " ".join(done.stderr.split())


def test_a_fakes_fingerprint_says_fake_and_is_there_when_asked_for(tmp_path: Path) -> None:
    order = {"name": "vendor", "fingerprint": True}
    batching = {"mode": "padded", "side": "right", "max_rows": 3}
    arms = [{"precision": "float32", "reduction_order": order, "batching": batching}]
    config = load_config(write_config(tmp_path / "fake.yaml", arms=arms))
    texts = [RowText(context="a", branch="b")]
    with ConditionProcess(config.verifier, config.arms[0].condition, texts) as process:
        found = process.ready().condition.reduction_order
    assert list(found.fingerprints) == ["fake"]
    assert found.name == "vendor"
