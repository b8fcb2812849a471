"""How fast calibration feeds a vLLM engine, against ``LLM.generate`` on the same prompts.

    .venv-vllm/bin/python -m benchmarks.vllm_calibration

Both run in one process on one engine, in turns: the flights of a composition through
`VllmVerifier.serve`, which reads the steps back and takes the scores, and ``LLM.generate`` (or
``LLM.encode`` of a reward model), which gets all prompts at once. Printed are rows a second and
the median ratio of neighbouring turns.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def main(
    rows: Annotated[int, typer.Option(min=64, help="Prompts, at most.")] = 2048,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests in a flight.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 5,
    head: Annotated[str, typer.Option(help="log_odds or reward.")] = "log_odds",
) -> None:
    """Print the ratio of calibration's rows a second to the engine's own."""
    from harness.records.engine import Vllm  # noqa: PLC0415 - after the environment is set
    from harness.verifiers.vllm.options import engine_environment  # noqa: PLC0415

    condition = _condition()
    wanted = engine_environment(Vllm(), condition)
    os.environ.update({n: v for n, v in wanted.items() if v is not None} | ENVIRONMENT)
    verifier, encoded = _opened(head, in_flight, condition, rows)
    turns = {"calibration": _flights(verifier, encoded, in_flight), "own": _own(verifier, encoded)}
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            if number:  # the first warms up
                times[name].append(time.perf_counter() - start)
    verifier.close()
    ratios = [own / ours for own, ours in zip(times["own"], times["calibration"], strict=True)]
    print(f"{len(encoded)} prompts, {in_flight} in flight, head {head}, {rounds} turns each")
    for name, taken in times.items():
        print(f"{name:12} {len(encoded) / statistics.median(taken):8.1f} rows/s (median)")
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"calibration / own: {statistics.median(ratios):.3f} (median; {spread})")


def _condition() -> Any:
    from harness.conditions.condition import Condition  # noqa: PLC0415
    from harness.conditions.reduction_order import ReductionOrderSpec  # noqa: PLC0415
    from harness.records.invocation import PrecisionName  # noqa: PLC0415

    return Condition(
        precision=PrecisionName.BFLOAT16, reduction_order=ReductionOrderSpec(name="vendor")
    )


def _opened(head: str, in_flight: int, condition: Any, limit: int) -> tuple[Any, list[Any]]:
    from harness.decisions import read_decisions, row_texts  # noqa: PLC0415
    from harness.records.engine import Vllm  # noqa: PLC0415
    from harness.records.verifier import LogOdds, Prompt, Reward, VerifierSpec  # noqa: PLC0415
    from harness.verifiers import open_engine  # noqa: PLC0415

    spec = VerifierSpec(
        model="embedded:reward" if head == "reward" else "embedded:lm",
        head=Reward() if head == "reward" else LogOdds(yes=(" gets",), no=("'",)),
        prompt=Prompt(template="<bos>{context}<sol>{branch}<eos>"),
        engine=Vllm(
            kv_cache_bytes=256 << 20,
            max_model_len=256,
            max_num_seqs=in_flight,
            enforce_eager=True,
        ),
    )
    verifier: Any = open_engine(spec, condition)
    return verifier, verifier.encode(row_texts(read_decisions("embedded:decisions")))[:limit]


def _flights(verifier: Any, rows: Sequence[Any], in_flight: int) -> Callable[[], None]:
    from harness.conditions.batching import chunk  # noqa: PLC0415
    from harness.conditions.flight import Flight  # noqa: PLC0415

    def turn() -> None:
        for part in chunk(range(len(rows)), in_flight):
            verifier.serve([rows[at] for at in part], Flight())

    return turn


def _own(verifier: Any, rows: Sequence[Any]) -> Callable[[], None]:
    llm, params = verifier._llm, verifier._readout.params(0)  # noqa: SLF001 - the same engine
    prompts = [{"prompt_token_ids": list(row.token_ids)} for row in rows]
    call = llm.generate if verifier._readout.decodes else llm.encode  # noqa: SLF001
    options = {} if verifier._readout.decodes else {"pooling_task": "classify"}  # noqa: SLF001

    def turn() -> None:
        call(prompts, params, use_tqdm=False, **options)

    return turn


if __name__ == "__main__":
    typer.run(main)
