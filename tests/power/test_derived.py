"""Derived checkpoints of a model with random weights: what is changed, how far, and what is not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from calibrate.power.derived import Change, Derived, ForgottenMerges, Int8, Noise, derive
from harness.conditions.condition import Condition
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import ConfigError, ModelLoadError
from harness.records.invocation import PrecisionName
from harness.verifiers.random_weights import Architecture, Task, WeightDtype, write_checkpoint
from harness.verifiers.transformers import TransformersVerifier
from tests.scored import a_spec

NUM_LAYERS = 2
MIDDLE = f".{NUM_LAYERS // 2}."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("random") / "model",
        architecture=Architecture.QWEN2,
        task=Task.SEQUENCE_CLASSIFICATION,
        seed=1,
        dtype=WeightDtype.BFLOAT16,
    )


def derived(model: Path, change: Change, folder: Path, dtype: str = "bfloat16") -> Derived:
    return derive(str(model), None, change, dtype, folder / "derived")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def changed(model: Path, found: Derived) -> set[str]:
    """Return the tensors whose stored values differ."""
    before, after = weights(model), weights(found.folder)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name].float(), after[name].float())}


def test_int8_rounds_every_matrix_of_every_layer_and_nothing_else(
    model: Path, tmp_path: Path
) -> None:
    found = derived(model, Int8(), tmp_path)
    before, after = weights(model), weights(found.folder)
    expected = {name for name in before if ".layers." in name and before[name].ndim == 2}
    assert changed(model, found) == expected
    for name in expected:
        values = before[name].float()
        step = values.abs().amax(dim=1, keepdim=True) / 127
        assert bool(((after[name] - values).abs() <= step * 0.5001).all()), name
        assert all(len(row.unique()) <= 255 for row in after[name]), name
        assert torch.allclose(after[name].abs().amax(dim=1), values.abs().amax(dim=1)), name


def test_noise_is_of_the_size_that_was_asked_for_in_the_middle_layer_alone(
    model: Path, tmp_path: Path
) -> None:
    found = derived(model, Noise(relative=1e-2), tmp_path)
    before, after = weights(model), weights(found.folder)
    touched = changed(model, found)
    assert touched == {name for name in before if MIDDLE in name}
    ratios = torch.cat(
        [(after[n] / before[n].float() - 1)[before[n] != 0].flatten() for n in touched]
    )
    assert float(ratios.std()) == pytest.approx(1e-2, rel=0.02)
    assert abs(float(ratios.mean())) < 2e-4


def test_noise_may_be_in_every_layer(model: Path, tmp_path: Path) -> None:
    found = derived(model, Noise(relative=1e-2, every_layer=True), tmp_path)
    assert changed(model, found) == {name for name in weights(model) if ".layers." in name}


def test_what_the_loaded_dtype_rounds_away_is_no_change(model: Path, tmp_path: Path) -> None:
    """A relative change of 1e-4 is far below half a step of bfloat16, and not of float32."""
    low = derived(model, Noise(relative=1e-4), tmp_path / "low")
    fine = derived(model, Noise(relative=1e-4), tmp_path / "fine", dtype="float32")
    large = derived(model, Noise(relative=1e-2), tmp_path / "large")
    middle = sum(t.numel() for name, t in weights(model).items() if MIDDLE in name)
    assert low.num_changed == 0
    assert fine.num_changed > 0.9 * middle
    assert large.num_changed > 0.5 * middle
    assert low.num_weights == sum(tensor.numel() for tensor in weights(model).values())


def test_the_same_change_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    files = [
        derived(model, Noise(relative=1e-2, seed=seed), tmp_path / str(at)).folder
        for at, seed in enumerate((0, 0, 1))
    ]
    first, again, other = ((folder / "model.safetensors").read_bytes() for folder in files)
    assert first == again
    assert first != other


def test_a_derived_checkpoint_is_whole(model: Path, tmp_path: Path) -> None:
    """The loader, which refuses a weight of another value than is stored, takes it."""
    found = derived(model, Int8(), tmp_path)
    condition = Condition(
        precision=PrecisionName.BFLOAT16, reduction_order=ReductionOrderSpec(name="vendor")
    )
    verifier = TransformersVerifier(a_spec(str(found.folder)), condition)
    original = TransformersVerifier(a_spec(str(model)), condition)
    assert verifier.facts().tokenizer_digest == original.facts().tokenizer_digest
    assert verifier.facts().weights_digest != original.facts().weights_digest
    verifier.close()
    original.close()


def test_forgotten_merges_make_longer_rows_of_the_same_weights(model: Path, tmp_path: Path) -> None:
    found = derived(model, ForgottenMerges(), tmp_path)
    assert (found.num_changed, changed(model, found)) == (0, set())
    merges = [
        json.loads((folder / "tokenizer.json").read_bytes())["model"]["merges"]
        for folder in (model, found.folder)
    ]
    assert merges[1] == merges[0][: len(merges[0]) // 2]


def test_a_tokenizer_without_merges_cannot_forget_any(model: Path, tmp_path: Path) -> None:
    found = derived(model, ForgottenMerges(), tmp_path)
    (found.folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(ConfigError, match="no byte-pair merges"):
        derived(found.folder, ForgottenMerges(), tmp_path / "again")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError):
        derived(tmp_path / "empty", Int8(), tmp_path)
