"""A checkpoint is loaded whole, fresh, and as stored, or not at all."""

import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from harness.errors import CallerError, ConfigError, ModelLoadError, UnsupportedConditionError
from harness.records.invocation import PrecisionName
from harness.records.verifier import Device, LogOdds, Reward
from harness.verifiers import hub, loading, open_verifier
from harness.verifiers.checkpoint import find_checkpoint
from tests.verifiers.cases import LM, QWEN2, SEQUENCE, Build, a_condition, a_spec

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(build: Build, tmp_path: Path) -> Path:
    """Return a checkpoint that a test may spoil."""
    shutil.copytree(build(QWEN2, SEQUENCE), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def shard(folder: Path) -> None:
    """Cut the weights into two files, as large checkpoints come."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file, {"format": "pt"})
    where = {name: file for file, own in parts.items() for name in own}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / WEIGHTS).unlink()


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def flipped(folder: Path, at: int) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[at] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def without_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-2.safetensors").unlink()


def with_a_bad_index(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text('{"weight_map":')


def extra(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.surplus.weight"] = torch.ones(3)


def narrow(tensors: dict[str, torch.Tensor]) -> None:
    tensors["score.weight"] = tensors["score.weight"][:, :-1].contiguous()


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickle only": (pickled, r"only pytorch_model\.bin; safetensors are needed, since a pickle"),
    "no weights": (lambda f: remove(f, WEIGHTS), "no weights; safetensors are needed"),
    "no config": (lambda f: remove(f, "config.json"), r"no config\.json"),
    "config cut": (lambda f: (f / "config.json").write_text('{"model'), "cannot be loaded"),
    "no head": (
        lambda f: rewrite(f, lambda t: t.pop("score.weight")),
        r"weights missing: score\.weight; a missing layer would be freshly initialised",
    ),
    "surplus": (
        lambda f: rewrite(f, extra),
        r"weights left over: model\.layers\.0\.surplus\.weight",
    ),
    "wrong shape": (lambda f: rewrite(f, narrow), r"weights of another shape: .*score\.weight"),
    "cut": (
        lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-64]),
        "cannot be loaded|no whole safetensors",
    ),
    "header broken": (lambda f: flipped(f, 0), "cannot be loaded|no whole safetensors"),
    "shard lost": (without_a_shard, "model-2.safetensors: .*names this shard and it is not there"),
    "index cut": (with_a_bad_index, "no index of shards"),
    "adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "an adapter; merge it"),
    "no tokenizer": (
        lambda f: remove(f, "tokenizer.json", "tokenizer_config.json"),
        r"no tokenizer; one of tokenizer\.json, ",
    ),
    "tokenizer cut": (
        lambda f: (f / "tokenizer.json").write_text('{"version": "1.0"'),
        "the tokenizer cannot be loaded",
    ),
    "unknown kind": (
        lambda f: (f / "config.json").write_text('{"model_type": "nonesuch"}'),
        "cannot be loaded",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_checkpoint_is_refused(folder: Path, name: str) -> None:
    spoil, message = SPOILED[name]
    spoil(folder)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_verifier(a_spec(folder, Reward()), a_condition())
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_task_is_refused(build: Build) -> None:
    with pytest.raises(ModelLoadError, match=r"score\.weight"):
        open_verifier(a_spec(build(QWEN2, LM), Reward()), a_condition())
    spec = a_spec(build(QWEN2, SEQUENCE), LogOdds(yes=("1",), no=("2",)))
    with pytest.raises(ModelLoadError, match=r"weights left over: score\.weight"):
        open_verifier(spec, a_condition())


def test_a_head_layer_that_is_unknown_is_refused(build: Build, monkeypatch: Any) -> None:
    monkeypatch.setattr("harness.verifiers.head_layer._CLASSIFIERS", ("elsewhere",))
    with pytest.raises(ConfigError, match="no linear head layer"):
        open_verifier(a_spec(build(QWEN2, SEQUENCE), Reward()), a_condition())


def test_weights_that_are_not_the_stored_ones_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loading._auto_class

    class Rounding:
        """Loads bfloat16 and hands on float32, as a cast in place does."""

        def __init__(self, task: str) -> None:
            self._auto = real(task)

        def from_pretrained(self, *args: Any, dtype: torch.dtype, **options: Any) -> Any:
            model, info = self._auto.from_pretrained(*args, dtype=torch.bfloat16, **options)
            return model.to(dtype), info

    open_verifier(a_spec(folder, Reward()), a_condition()).close()
    monkeypatch.setattr(loading, "_auto_class", Rounding)
    with pytest.raises(ModelLoadError, match=r"\.weight has other values than are stored"):
        open_verifier(a_spec(folder, Reward()), a_condition())


def test_one_weight_that_differs_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loading._auto_class

    class Nudging:
        def __init__(self, task: str) -> None:
            self._auto = real(task)

        def from_pretrained(self, *args: Any, **options: Any) -> Any:
            model, info = self._auto.from_pretrained(*args, **options)
            with torch.no_grad():
                bits = model.model.layers[1].mlp.up_proj.weight.view(torch.int32)
                bits[3, 4] ^= 1
            return model, info

    monkeypatch.setattr(loading, "_auto_class", Nudging)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight has other values"):
        open_verifier(a_spec(folder, Reward()), a_condition())


def test_every_precision_is_a_fresh_load(build: Build) -> None:
    folder = build(QWEN2, SEQUENCE)
    stored = load_file(folder / WEIGHTS)
    digests = []
    for precision in (PrecisionName.BFLOAT16, PrecisionName.FLOAT32, PrecisionName.FLOAT64):
        verifier: Any = open_verifier(a_spec(folder, Reward()), a_condition(precision))
        loaded = verifier._model.state_dict()
        exact = all(torch.equal(loaded[name].double(), t.double()) for name, t in stored.items())
        assert exact == (precision is not PrecisionName.BFLOAT16)
        assert verifier.facts().weights_digest == find_checkpoint(str(folder), None).digest()
        digests.append(verifier.resolved().loaded_digest)
        verifier.close()
    assert len(set(digests)) == 3


def test_the_digest_does_not_know_shards(folder: Path) -> None:
    whole = find_checkpoint(str(folder), None)
    before, names = whole.digest(), [name for name, _ in whole.stored()]
    shard(folder)
    parts = find_checkpoint(str(folder), None)
    assert len(parts.shards) == 2
    assert [name for name, _ in parts.stored()] == names == sorted(names)
    assert parts.digest() == before
    verifier = open_verifier(a_spec(folder, Reward()), a_condition())
    assert verifier.facts().weights_digest == before
    verifier.close()


def test_files_that_lie_beside_the_weights_are_not_read(folder: Path) -> None:
    before = find_checkpoint(str(folder), None).digest()
    save_file({"other": torch.ones(2)}, folder / "consolidated.safetensors")
    assert find_checkpoint(str(folder), None).digest() == before


def test_one_bit_changes_the_digest(folder: Path) -> None:
    before = find_checkpoint(str(folder), None).digest()
    flipped(folder, -1)
    assert find_checkpoint(str(folder), None).digest() != before
    flipped(folder, -1)
    assert find_checkpoint(str(folder), None).digest() == before


def test_a_name_a_dtype_and_a_shape_change_the_digest(folder: Path) -> None:
    def change(edit: Callable[[torch.Tensor], torch.Tensor], name: str) -> str:
        def apply(tensors: dict[str, torch.Tensor]) -> None:
            tensors[name] = edit(tensors.pop("score.weight"))

        backup = (folder / WEIGHTS).read_bytes()
        rewrite(folder, apply)
        found = find_checkpoint(str(folder), None).digest()
        (folder / WEIGHTS).write_bytes(backup)
        return found

    digests = [
        change(lambda t: t, "score.weight"),
        change(lambda t: t, "score.weights"),
        change(lambda t: t.view(torch.int32), "score.weight"),
        change(lambda t: t.reshape(-1), "score.weight"),
    ]
    assert len(set(digests)) == 4


def test_code_in_a_checkpoint_does_not_run_unless_asked(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    (folder / "own.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import Qwen2Config, Qwen2ForSequenceClassification\n"
        "class OwnConfig(Qwen2Config):\n    model_type = 'own'\n"
        "class OwnModel(Qwen2ForSequenceClassification):\n    config_class = OwnConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnModel"}
    config |= {"model_type": "own", "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        open_verifier(a_spec(folder, Reward()), a_condition())
    assert not marker.exists()


def test_asking_for_a_device_that_is_not_here(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = a_spec(build(QWEN2, SEQUENCE), Reward(), device=Device.CUDA)
    with pytest.raises(UnsupportedConditionError, match=r"none is here; set verifier\.device: cpu"):
        open_verifier(spec, a_condition())


def test_a_context_beyond_the_models_is_refused(build: Build) -> None:
    with pytest.raises(ConfigError, match="max_tokens: 257 is more than the model's context, 256"):
        open_verifier(a_spec(build(QWEN2, SEQUENCE), Reward(), max_tokens=257), a_condition())


@pytest.mark.parametrize("model", ["/no/such/folder", "no folder", "embedded:rewards", "fake:real"])
def test_a_name_of_nothing_is_refused(model: str) -> None:
    with pytest.raises(CallerError, match=model.rpartition(":")[2]):
        open_verifier(a_spec(model, Reward()), a_condition())


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Stand a hub up that takes connections and says nothing, with an empty cache."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub, "ASK_TIMEOUT_S", 0.2)
        yield server


@pytest.mark.usefixtures("silent_hub")
def test_a_hub_that_says_nothing_is_given_up_at_once() -> None:
    start = time.monotonic()
    advice = "give a folder, embedded:reward or embedded:lm, or check the name and the network"
    with pytest.raises(ModelLoadError, match=f"model 'some/model': no such folder.*{advice}"):
        find_checkpoint("some/model", None)
    assert time.monotonic() - start < 5


def test_no_hub_at_all(silent_hub: socket.socket) -> None:
    silent_hub.close()
    with pytest.raises(ModelLoadError, match="no such folder, and not from a hub"):
        find_checkpoint("some/model", None)


@pytest.mark.usefixtures("silent_hub")
def test_a_cached_model_needs_no_hub(build: Build, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "models--some--model"
    shutil.copytree(build(QWEN2, SEQUENCE), home / "snapshots" / ("c" * 40))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("c" * 40)
    found = find_checkpoint("some/model", None)
    assert found.digest() == find_checkpoint(str(build(QWEN2, SEQUENCE)), None).digest()
