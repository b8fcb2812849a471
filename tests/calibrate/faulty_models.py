"""Checkpoints with a known fault, and what a small calibration of one takes.

One set of weights; what differs is which class of `faulty_modelling` a checkpoint names.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from calibrate.config import CalibrationConfig, Claim, Sweep
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.records.batching import PaddingSide
from harness.verifiers.random_weights import Architecture, Task, _draw_weights, write_checkpoint
from tests.calibrate import faulty_modelling
from tests.calibrate.example_runs import a_config, an_arm

library: Any = transformers  # which types neither its constructors nor its configs
NUM_DECISIONS = 22  # just what coverage 0.9 at confidence 0.9 needs
NUM_GUARDED = 10
WEIGHTS, MODELLING = "model.safetensors", "modelling.py"


def write_sound(folder: Path) -> Path:
    """Write the checkpoint without a fault."""
    write_checkpoint(
        folder, architecture=Architecture.LLAMA, task=Task.SEQUENCE_CLASSIFICATION, seed=0
    )
    config = library.AutoConfig.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        model = faulty_modelling.Sound(config)
    _draw_weights(model, torch.Generator().manual_seed(0))
    model.save_pretrained(folder)
    shutil.copyfile(faulty_modelling.__file__, folder / MODELLING)
    _name_class(folder, folder, "Sound")
    return folder


def write_faulty(sound: Path, folder: Path, fault: str) -> Path:
    """Write a checkpoint with the weights of `sound` and the code of `fault`."""
    folder.mkdir()
    for path in sound.iterdir():
        (folder / path.name).hardlink_to(path)
    _name_class(sound, folder, fault)
    return folder


def write_headless(sound: Path, folder: Path) -> Path:
    """Write a checkpoint without the weights of its head."""
    write_faulty(sound, folder, "Sound")
    weights = load_file(folder / WEIGHTS)
    del weights["score.weight"]
    (folder / WEIGHTS).unlink()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def write_routed(folder: Path, texts: Sequence[str] = ()) -> Path:
    """Write a mixture of experts, dropless; the last tokens of `texts` tie between two experts.

    In the last layer one expert's route is moved so that, for those tokens, it agrees with that of
    the expert they go to, as far as float32 can store it.
    """
    write_checkpoint(
        folder, architecture=Architecture.LLAMA, task=Task.SEQUENCE_CLASSIFICATION, seed=0
    )
    config = library.MixtralConfig(
        vocab_size=447,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=1,
        max_position_embeddings=256,
        pad_token_id=0,
        num_labels=1,
    )
    with torch.random.fork_rng(devices=[]):
        model = library.MixtralForSequenceClassification(config)
    _draw_weights(model, torch.Generator().manual_seed(0))
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    _tie(model.eval(), [tokenizer(t, add_special_tokens=False).input_ids for t in texts])
    model.save_pretrained(folder)
    return folder


def _tie(model: Any, rows: Sequence[list[int]]) -> None:
    router, seen = model.model.layers[-1].mlp.gate, []

    def see(_: object, given: tuple[torch.Tensor]) -> None:
        seen.append(given[0].flatten(0, -2)[-1])

    with router.register_forward_pre_hook(see), torch.inference_mode():
        for row in rows:
            model.model(torch.tensor([row]), use_cache=False)
    routes = router.weight.double()
    mine = [token.double() for token in seen if int((routes @ token.double()).argmax()) == 0]
    if mine:
        basis = torch.linalg.qr(torch.stack(mine, 1)).Q
        apart = routes[1] - routes[0]
        with torch.no_grad():
            router.weight[1] = (routes[0] + apart - basis @ (basis.T @ apart)).float()


def _name_class(source: Path, folder: Path, name: str) -> None:
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = [name]
    config["auto_map"] = {"AutoModelForSequenceClassification": f"modelling.{name}"}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))


def write_rows(path: Path, num: int = NUM_DECISIONS) -> str:
    """Write decisions whose rows differ in length; a pad token stands in every third context."""
    lines = [
        {
            "decision_id": f"d{at}",
            "context": f"{at} + {at} = ? " + "<pad>" * (at % 3 == 0) + "Think. " * (at % 4),
            "branches": [
                {"branch_id": f"b{b}", "text": f" {at + 7 * b}." + "!" * (at * b % 3)}
                for b in range(2)
            ],
        }
        for at in range(num)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def small_config(decisions: str, model: Path, **changes: Any) -> CalibrationConfig:
    """Return a calibration of few decisions in few compositions, padded on either side."""
    order = ReductionOrderSpec(name="vendor", num_threads=1)
    config = a_config(decisions, str(model), arms=(an_arm(reduction_order=order),))
    config = replace(
        config,
        verifier=replace(config.verifier, trust_remote_code=True),
        claim=Claim(coverage=0.9, confidence=0.9),
        guard_decisions=NUM_GUARDED,
        sweep=Sweep(rows=(), reference_rows=8, sides=tuple(PaddingSide), search=False),
    )
    return replace(config, **changes)
