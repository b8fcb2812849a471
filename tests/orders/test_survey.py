"""A real model's sums: which are found, that nothing of it moves, and what the cache does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.conditions.batching import Batch
from harness.conditions.condition import Condition
from harness.conditions.reduction_order import Attention, ReductionOrderSpec
from harness.judge.parameters import differing_order
from harness.orders import cache, fingerprint
from harness.orders.survey import Survey
from harness.records.batching import PaddingSide
from harness.records.invocation import PrecisionName
from harness.records.verifier import Prompt, Reward, VerifierSpec
from harness.verifiers import RowText
from harness.verifiers.transformers import TransformersVerifier
from harness.verifiers.wholeness import loaded_digest

TEXTS = tuple(
    RowText(context=f"Ivy has {at} apples. How many?", branch=f"#{at}") for at in range(4)
)


@pytest.fixture(autouse=True)
def _short_ladder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fingerprint, "ROWS", (2, 16))
    monkeypatch.setattr(fingerprint, "LENGTHS", (2, 8))
    monkeypatch.setenv("SCOREPIN_CACHE", str(tmp_path / "cache"))


def a_verifier(
    precision: PrecisionName = PrecisionName.BFLOAT16, **order: Any
) -> TransformersVerifier:
    spec = VerifierSpec(
        model="embedded:reward",
        head=Reward(),
        prompt=Prompt(template="<bos>{context}<sol>{branch}<eos>"),
    )
    wanted: dict[str, Any] = {"name": "vendor"} | order
    condition = Condition(precision=precision, reduction_order=ReductionOrderSpec(**wanted))
    return TransformersVerifier(spec, condition)


@pytest.fixture
def verifier() -> Iterator[TransformersVerifier]:
    made = a_verifier(fingerprint=True)
    yield made
    made.close()


def test_every_sum_of_the_model_is_found(verifier: TransformersVerifier) -> None:
    found = verifier.orders.probe(verifier.encode(TEXTS), []).orders
    assert [one.shape.name for one in found.classes] == [
        "mean float32 terms=192",
        "linear bfloat16 in=192 out=192 bias",
        "linear bfloat16 in=192 out=64 bias",
        "attention bfloat16 heads=6 kv_heads=2 head_dim=32 causal",
        "linear bfloat16 in=192 out=192",
        "linear bfloat16 in=192 out=512",
        "linear bfloat16 in=512 out=192",
        "linear bfloat16 in=192 out=1 flat",
        "attention bfloat16 heads=6 kv_heads=6 head_dim=32 mask bool",
    ]
    assert found.unmeasured == ()
    assert [one.refused for kind in found.classes for one in kind.rungs if one.refused] == []
    assert {rung.size for kind in found.classes for rung in kind.rungs} == {2, 8, 16}


def test_attention_in_the_models_own_code_is_found() -> None:
    made = a_verifier(PrecisionName.BFLOAT16, attention=Attention.EAGER)
    names = [one.shape.name for one in made.orders.probe(made.encode(TEXTS), []).orders.classes]
    made.close()
    assert "scores bfloat16 heads=6 head_dim=32" in names
    assert "softmax bfloat16 heads=6 to float32" in names
    assert "values bfloat16 heads=6 head_dim=32" in names


def test_a_measurement_leaves_weights_and_scores_as_they_were(
    verifier: TransformersVerifier,
) -> None:
    rows = verifier.encode(TEXTS)
    weights, scores = loaded_digest(verifier._model), verifier.score(rows, 60, PaddingSide.RIGHT)
    verifier.orders.fingerprints()
    assert loaded_digest(verifier._model) == weights
    assert verifier.score(rows, 60, PaddingSide.RIGHT) == scores


def test_fingerprints_are_part_of_the_resolved_order_when_asked_for(
    verifier: TransformersVerifier,
) -> None:
    order = verifier.resolved().reduction_order
    other = a_verifier()
    plain = other.resolved().reduction_order
    other.close()
    assert len(order.fingerprints) == 9
    assert plain.fingerprints == {}
    assert plain.name == order.name
    assert all(
        one.name.startswith("reduction_order.fingerprints.")
        for one in differing_order(order, plain)
    )


def test_another_order_has_other_fingerprints_and_the_same_one_has_the_same(
    verifier: TransformersVerifier,
) -> None:
    split, again = a_verifier(name="split_k", split_k=2), a_verifier()
    first, second, third = (
        one.orders.probe([], []).orders.fingerprints for one in (verifier, again, split)
    )
    for one in (split, again):
        one.close()
    assert first == second
    differ = {name for name in first if first[name] != third[name]}
    assert differ == {name for name in first if name.startswith("linear")}


def refuse(self: Survey) -> None:
    raise AssertionError("measured, and not taken from the cache")


def test_a_second_process_takes_them_from_the_cache(
    verifier: TransformersVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = verifier.resolved().reduction_order.fingerprints
    monkeypatch.setattr(Survey, "orders", refuse)
    again = a_verifier(fingerprint=True)
    assert again.resolved().reduction_order.fingerprints == measured
    again.close()


def test_a_damaged_or_edited_cache_is_measured_again(verifier: TransformersVerifier) -> None:
    measured = verifier.resolved().reduction_order.fingerprints
    (file,) = (cache.cache_folder() / "orders").iterdir()
    whole = file.read_bytes()
    edited = whole.replace(next(iter(measured.values())).encode(), b"sha256:" + b"0" * 64, 1)
    assert edited != whole
    for damage in (b"", b"{", b'{"key": 1}', b"[]", edited, whole[:-9]):
        file.write_bytes(damage)
        assert cache.load_fingerprints(file_key(file)) is None
    assert verifier.orders.fingerprints() == measured
    assert file.read_bytes() == whole


def file_key(file: Path) -> str:
    return f"sha256:{file.stem}"


def test_the_cache_is_keyed_by_build_and_switches() -> None:
    keys = {
        cache.cache_key("build", {"a": True}),
        cache.cache_key("other", {"a": True}),
        cache.cache_key("build", {"a": False}),
        cache.cache_key("build", {"a": True, "b": None}),
    }
    assert len(keys) == 4
    assert cache.cache_key("build", {"a": True}) in keys


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SCOREPIN_CACHE", str(tmp_path / "file"))
    cache.store_fingerprints("sha256:00", {"a": "b"})
    assert cache.load_fingerprints("sha256:00") is None


def test_a_stored_fingerprint_comes_back() -> None:
    cache.store_fingerprints("sha256:00", {"a": "b"})
    assert cache.load_fingerprints("sha256:00") == {"a": "b"}
    assert cache.load_fingerprints("sha256:01") is None


def test_a_probe_measures_at_the_shapes_of_its_batches(verifier: TransformersVerifier) -> None:
    rows = verifier.encode(TEXTS)
    batches = [Batch(rows=r, width=40, side=PaddingSide.RIGHT) for r in ((0,), (0, 1), (0, 1))]
    found = verifier.orders.probe(rows, batches)
    alone, two, again = found.batches
    assert [rung.size for rung in two.rungs.values()] == [80, 80, 80, 40, 80, 80, 80, 2, 40]
    assert two == again
    assert found.cached is None
    used = {
        tree.tree for one in found.batches for rung in one.rungs.values() for tree in rung.trees
    }
    assert used <= found.trees.keys()
    assert alone.observed != ""
