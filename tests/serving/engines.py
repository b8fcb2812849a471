"""Real vLLM engines for the tests marked `vllm`: small models, requests that arrive in some order.

On a CPU with one thread, a decode step of a single row takes another matrix product than one of
several rows when a layer's inner width is 1280 or more. So the WIDE model's scores move with who is
batched with whom, and the NARROW one's do not.
"""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import pytest

from harness.judge.membership import differing_membership
from harness.records.tolerance import Equivalence
from harness.serving.history import History
from harness.serving.pin import PinOutcome
from harness.serving.pin_files import ask_for_pin, read_outcome
from harness.serving.pin_plan import PinPlan, plan_of_log
from harness.serving.step_log import read_log
from harness.verifiers.embedded import checkpoint

ROOT = Path(__file__).parents[2]
WIDE, NARROW = 3072, 512
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
SCHEDULER = "harness.serving.scheduler.RecordingScheduler"
VOCABULARY = range(3, 447)

LENGTHS = (4, 8, 16, 24)

Generated = list[tuple[int, float]]
"""Token ids with their log-probabilities."""


class Asked(NamedTuple):
    """A request to generate."""

    prompt: list[int]
    num_tokens: int


def write_model(
    folder: Path, intermediate_size: int, *, labels: int = 0, hidden_size: int = 256
) -> Path:
    """Write a two-layer model with random float32 weights: causal, or a classifier."""
    os.environ.update(QUIET)  # before torch counts its threads
    import torch  # noqa: PLC0415 - where vLLM is
    import transformers  # noqa: PLC0415

    shape: dict[str, Any] = {
        "vocab_size": 447,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": hidden_size // 64,
        "num_key_value_heads": hidden_size // 128,
        "max_position_embeddings": 1024,
    }
    special: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**shape, **special, tie_word_embeddings=not labels)
    if labels:
        config.num_labels = labels
    kind: Any = (
        transformers.Qwen2ForSequenceClassification if labels else transformers.Qwen2ForCausalLM
    )
    kind(config).float().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(checkpoint("reward") / name, folder / name)
    return folder


def make_engine(model: Path, log: Path, **options: Any) -> Any:
    """Start an engine in this process, recording to `log`, which may be pinned."""
    os.environ.update(QUIET)
    from vllm import LLM  # noqa: PLC0415 - an ImportError is the job's failure

    settings = {
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
        "max_model_len": 512,
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "scheduler_cls": SCHEDULER,
        "additional_config": {"scorepin": {"log": str(log), "allow_pin": True}},
    }
    return LLM(str(model), **(settings | options))


def asked(
    seed: int, count: int, *, num_tokens: Sequence[int], longest: int = 60
) -> dict[str, Asked]:
    """Return requests of random prompts, named r0, r1, ..."""
    random = Random(seed)  # noqa: S311 - no secret
    return {
        f"r{at}": Asked(
            prompt=[random.choice(VOCABULARY) for _ in range(random.randrange(5, longest))],
            num_tokens=random.choice(num_tokens),
        )
        for at in range(count)
    }


def generate(
    engine: Any,
    requests: Mapping[str, Asked],
    arrivals: Sequence[tuple[int, str]],
    *,
    prefix: str = "",
    abort: Mapping[str, int] | None = None,
    patience_s: float = 60.0,
) -> dict[str, Generated]:
    """Send each request at its step, as (step, name), and step until all are done.

    `abort` takes a request away at a step.
    """
    core, found, step = engine.llm_engine, {}, 0
    waiting, begin = list(arrivals), time.monotonic()
    aborts = dict(abort or {})
    while waiting or core.has_unfinished_requests():
        while waiting and waiting[0][0] <= step:
            name = waiting.pop(0)[1]
            prompt = {"prompt_token_ids": requests[name].prompt}
            core.add_request(prefix + name, prompt, _sampling(requests[name].num_tokens))
        for name in [one for one, at in aborts.items() if at <= step]:
            core.abort_request([prefix + name])
            del aborts[name]
        for output in core.step():
            if output.finished:
                found[output.request_id.removeprefix(prefix)] = _generated(output.outputs[0])
        step += 1
        if time.monotonic() - begin > patience_s:
            raise AssertionError(f"{len(found)} of {len(requests)} done after {patience_s} s")
    return found


def pinned(
    engine: Any, folder: Path, plan: PinPlan, *args: Any, **kwargs: Any
) -> tuple[dict[str, Generated], PinOutcome]:
    """Generate under a pin; return what came and how the pin ended."""
    ask_for_pin(folder, plan)
    found = generate(engine, *args, **kwargs)
    outcome = read_outcome(folder, plan.pin_id)
    assert outcome is not None, "the pin has not ended"
    return found, outcome


def _sampling(num_tokens: int) -> Any:
    from vllm import SamplingParams  # noqa: PLC0415

    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=1)


def _generated(output: Any) -> Generated:
    pairs = zip(output.token_ids, output.logprobs, strict=True)
    return [(token, steps[token].logprob) for token, steps in pairs]


class Running:
    """An engine with its log, each test's requests under names of their own."""

    def __init__(self, folder: Path, model: Path, **options: Any) -> None:
        self.folder = folder / "log" / "engine-0"
        self.engine = make_engine(model, folder / "log", **options)

    def history(self) -> History:
        return History().feed(read_log(self.folder))

    def plan(self, names: Sequence[str], old: str, new: str, wait_s: float = 5.0) -> PinPlan:
        sent = {old + name: new + name for name in names}
        return plan_of_log(self.history(), sent, pin_id=new.strip("."), wait_s=wait_s)

    def same_steps(self, names: Sequence[str], old: str, new: str) -> bool:
        history = self.history()
        left = history.membership({old + name: name for name in names})
        right = history.membership({new + name: name for name in names})
        return not differing_membership(left, right, Equivalence.EXACT)


def started(tmp: pytest.TempPathFactory, width: int, **options: Any) -> Iterator[Running]:
    folder = tmp.mktemp("engine")
    labels = options.pop("labels", 0)
    running = Running(folder, write_model(folder / "model", width, labels=labels), **options)
    yield running
    del running.engine
    gc.collect()


def spaced(names: Sequence[str], gap: int = 3) -> list[tuple[int, str]]:
    return [(at * gap, name) for at, name in enumerate(names)]


def shuffled(requests: Mapping[str, Asked], seed: int) -> list[tuple[int, str]]:
    names = list(requests)
    Random(seed).shuffle(names)  # noqa: S311 - no secret
    return spaced(names, gap=2)


def num_equal(left: Mapping[str, Generated], right: Mapping[str, Generated]) -> int:
    return sum(left[name] == right[name] for name in left)


class Server(NamedTuple):
    """A `vllm serve` that answers."""

    url: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """End every process of the server at once, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def serving(
    model: Path, log: Path, *flags: str, allow_pin: bool = True, is_stock: bool = False
) -> Iterator[Server]:
    """Run `vllm serve`, recording to `log`, until the end of the block.

    It has the pause-and-resume gate; a stock one has nothing of ours.
    """
    port = _free_port()
    settings = json.dumps({"scorepin": {"log": str(log), "allow_pin": allow_pin}})
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(64 << 20)),
        *("--max-model-len", "512", "--max-num-seqs", "64", "--no-enable-prefix-caching"),
        *(() if is_stock else ("--scheduler-cls", SCHEDULER, "--additional-config", settings)),
        *(() if is_stock else ("--middleware", "harness.serving.route.StepLogRoute")),
        *flags,
    ]
    log.mkdir(parents=True)
    with (log / "server.txt").open("wb") as printed:
        process = subprocess.Popen(
            command,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1"},
            cwd=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_up(url, process, log / "server.txt")
            yield Server(url, log / "engine-0", process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _wait_until_up(url: str, process: "subprocess.Popen[bytes]", printed: Path) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up:\n{printed.read_text()[-3000:]}")


def _free_port() -> int:
    import socket  # noqa: PLC0415

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
