"""What the harness costs: a calibration's scoring phase against bare ``model(...)`` calls.

Run ``python -m benchmarks.scoring``. Two fresh processes under the same condition hold the same
model. In turns, the harness scores every batch of a composition and stores it, and the other
process calls the model on the same batches, its tensors made beforehand. The turns alternate, so
that a busy machine slows both; ratios are of times in one run. Row utilisation is counted by a hook
on the model: rows that went through it against scores that came out.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrate.compositions import Composition, plan_compositions
from calibrate.config import CalibrationConfig, load_config
from calibrate.observations import ObservationStore, RunIdentity
from calibrate.run import shapes_of, stored_rows
from harness.conditions.condition import environment
from harness.decisions import read_decisions, row_texts
from harness.records.decision import Decision
from harness.runner import ConditionProcess

CONFIG = Path("configs/demo.yaml")
COMPOSITIONS = ("solo", "rows-3", "rows-12", "rows-32")


def main(
    num_decisions: Annotated[int, typer.Option("--decisions", help="Decisions to score.")] = 40,
    rounds: Annotated[int, typer.Option(help="Turns of each.")] = 7,
    *,
    bare: Annotated[bool, typer.Option("--bare", hidden=True)] = False,
) -> None:
    """Print the ratios as JSON."""
    config = load_config(CONFIG)
    decisions = read_decisions(config.decisions, num_decisions)
    if bare:
        _serve_bare(config, decisions)
        return
    typer.echo(json.dumps(_measure(config, decisions, rounds), indent=2))


def _measure(
    config: CalibrationConfig, decisions: tuple[Decision, ...], rounds: int
) -> dict[str, Any]:
    condition, found = config.arms[0].condition, {}
    changed = environment(condition, config.verifier.device)
    merged = {**os.environ, **changed}
    child = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--decisions", str(len(decisions)), "--bare"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in merged.items() if value is not None},
    )
    if child.stdin is None or child.stdout is None:
        raise SystemExit("the bare process has no pipes")
    with ConditionProcess(config.verifier, condition, row_texts(decisions)) as process:
        rows = stored_rows(decisions, process.ready().rows)
        utilisation = json.loads(child.stdout.readline())
        for composition in _compositions(config, rows):
            times: dict[str, list[float]] = {"harness": [], "bare": []}
            for turn in range(2 * rounds + 2):
                if (turn // 2 + turn) % 2 == 0:
                    times["harness"].append(_harness_seconds(process, composition))
                else:
                    print(composition.name, file=child.stdin, flush=True)
                    times["bare"].append(float(child.stdout.readline()))
            found[composition.name] = _ratios(times, len(rows))
    child.stdin.close()
    if child.wait() != 0:
        raise SystemExit("the bare process failed")
    return {"num_rows": len(rows), **utilisation, "compositions": found}


def _compositions(config: CalibrationConfig, rows: Any) -> list[Composition]:
    arm = config.arms[0]
    every = plan_compositions(shapes_of(rows), arm, config.sweep, config.seed)
    return [composition for composition in every if composition.name in COMPOSITIONS]


def _harness_seconds(process: ConditionProcess, composition: Composition) -> float:
    identity = RunIdentity(
        scorepin_version="", config_digest="", decisions_digest="", created_at=""
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        ObservationStore(Path(folder) / "observations.sqlite", identity) as store,
    ):
        start = time.perf_counter()
        ran = process.run(composition.batches)
        for number, (batch, scored) in enumerate(zip(composition.batches, ran, strict=True)):
            store.append("benchmark", composition.name, number, batch.rows, scored)
        return time.perf_counter() - start


def _ratios(times: dict[str, list[float]], num_rows: int) -> dict[str, float]:
    harness, bare = times["harness"][1:], times["bare"][1:]  # the first turn warms up
    ratios = sorted(one / other for one, other in zip(harness, bare, strict=True))
    return {
        "overhead_ratio_median": round(statistics.median(ratios), 4),
        "overhead_ratio_lowest": round(ratios[0], 4),
        "overhead_ratio_highest": round(ratios[-1], 4),
        "bare_rows_per_s": round(num_rows / statistics.median(bare), 1),
    }


def _serve_bare(config: CalibrationConfig, decisions: tuple[Decision, ...]) -> None:
    """Answer each composition's name with the seconds its bare model calls took."""
    import torch  # noqa: PLC0415 - in the child only

    from harness.verifiers.transformers import TransformersVerifier  # noqa: PLC0415

    verifier = TransformersVerifier(config.verifier, config.arms[0].condition)
    model = verifier._model  # noqa: SLF001 - what it costs without us is the question
    encoded = verifier.encode(row_texts(decisions))
    rows = stored_rows(decisions, encoded)
    compositions = {c.name: c for c in _compositions(config, rows)}
    print(json.dumps(_utilisation(verifier, model, encoded, compositions["rows-12"])), flush=True)
    for line in sys.stdin:
        inputs = [_inputs(encoded, batch) for batch in compositions[line.strip()].batches]
        start = time.perf_counter()
        with torch.inference_mode():
            for tensors in inputs:
                model(**tensors, use_cache=False)
        print(time.perf_counter() - start, flush=True)


def _utilisation(
    verifier: Any, model: Any, encoded: Any, composition: Composition
) -> dict[str, float]:
    seen: list[int] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    scores = [
        verifier.score([encoded[row] for row in batch.rows], batch.width, batch.side)
        for batch in composition.batches
    ]
    hook.remove()
    num_scores = sum(map(len, scores))
    return {"num_row_forwards": sum(seen), "row_utilisation": num_scores / sum(seen)}


def _inputs(encoded: Any, batch: Any) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - in the child only

    ids = torch.zeros((len(batch.rows), batch.width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for at, row in enumerate(batch.rows):
        tokens = encoded[row].token_ids
        ids[at, : len(tokens)] = torch.tensor(tokens)
        mask[at, : len(tokens)] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


if __name__ == "__main__":
    typer.run(main)
