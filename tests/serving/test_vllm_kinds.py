"""Engines of other kinds, each started for its test: narrow, short of memory, pooling, caching.

In a file of its own: a process's engines share state, and one that ends takes it from the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from harness.serving.pin import PinEnd
from harness.serving.pin_files import ask_for_pin, read_outcome
from tests.serving.engines import (
    LENGTHS,
    NARROW,
    WIDE,
    Asked,
    Running,
    asked,
    generate,
    num_equal,
    pinned,
    shuffled,
    spaced,
    started,
)

# vLLM and what it imports warn of one another's deprecations.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_a_narrow_model_does_not_move(tmp_path_factory: pytest.TempPathFactory) -> None:
    for narrow in started(tmp_path_factory, NARROW):
        requests = asked(1, 16, num_tokens=LENGTHS)
        first = generate(narrow.engine, requests, spaced(list(requests)), prefix="a.")
        unpinned = generate(narrow.engine, requests, shuffled(requests, seed=2), prefix="u.")
        assert num_equal(first, unpinned) == 16
        assert not narrow.same_steps(list(requests), "a.", "u.")


def test_preemption_is_recorded_and_replayed(tmp_path_factory: pytest.TempPathFactory) -> None:
    # A block holds 128 tokens: six requests that grow past it need twelve, and there are eight.
    options = {"num_gpu_blocks_override": 9, "max_model_len": 256}
    for small in started(tmp_path_factory, WIDE, **options):
        requests = {
            name: Asked(prompt=one.prompt * 20, num_tokens=40)
            for name, one in asked(5, 6, num_tokens=(1,), longest=6).items()
        }
        first = generate(small.engine, requests, spaced(list(requests)), prefix="a.")
        steps = list(small.history().between(0, _last(small)))
        assert sum(len(step.preempted) for step in steps) >= 2
        other = shuffled(requests, seed=6)
        plan = small.plan(list(requests), "a.", "p.")
        again, outcome = pinned(small.engine, small.folder, plan, requests, other, prefix="p.")
        assert outcome.end is PinEnd.COMPLETED, outcome
        assert num_equal(first, again) == 6
        assert small.same_steps(list(requests), "a.", "p.")


def _last(running: Running) -> int:
    history = running.history()
    return max(history.span(one)[1] for one in history.requests())


def test_pooling_is_recorded_and_pinned(tmp_path_factory: pytest.TempPathFactory) -> None:
    for pooling in started(tmp_path_factory, NARROW, labels=1, runner="pooling"):
        prompts = {name: one.prompt for name, one in asked(7, 12, num_tokens=(1,)).items()}
        first = classify(pooling.engine, prompts, list(prompts), 5, "a.")
        plan = pooling.plan(list(prompts), "a.", "p.")
        unpinned = classify(pooling.engine, prompts, list(reversed(prompts)), 3, "u.")
        ask_for_pin(pooling.folder, plan)
        again = classify(pooling.engine, prompts, list(reversed(prompts)), 3, "p.")
        outcome = read_outcome(pooling.folder, plan.pin_id)
        assert outcome is not None
        assert outcome.end is PinEnd.COMPLETED, outcome
        assert first == again
        assert first.keys() == unpinned.keys()
        assert len(set(first.values())) == 12
        assert pooling.same_steps(list(prompts), "a.", "p.")
        assert not pooling.same_steps(list(prompts), "a.", "u.")


def classify(
    engine: Any, prompts: Mapping[str, list[int]], order: Sequence[str], together: int, prefix: str
) -> dict[str, float]:
    from vllm import PoolingParams  # noqa: PLC0415

    core, waiting, found = engine.llm_engine, list(order), {}
    while waiting or core.has_unfinished_requests():
        for name in waiting[:together]:
            params = PoolingParams(task="classify", use_activation=False)
            core.add_request(prefix + name, {"prompt_token_ids": prompts[name]}, params)
        del waiting[:together]
        for output in core.step():
            found[output.request_id.removeprefix(prefix)] = float(output.outputs.data[0])
    return found


def test_a_warm_prefix_cache_ends_the_pin(tmp_path_factory: pytest.TempPathFactory) -> None:
    for caching in started(tmp_path_factory, NARROW, enable_prefix_caching=True):
        requests = {
            name: Asked(prompt=one.prompt * 40, num_tokens=4)
            for name, one in asked(8, 2, num_tokens=(1,), longest=6).items()
        }
        arrivals = [(0, "r0"), (0, "r1")]
        generate(caching.engine, requests, arrivals, prefix="a.")
        plan = caching.plan(["r0", "r1"], "a.", "p.")
        found, outcome = pinned(
            caching.engine, caching.folder, plan, requests, arrivals, prefix="p."
        )
        assert outcome.end in (PinEnd.CACHE_STATE, PinEnd.SCHEDULE_REFUSED), outcome
        assert len(found) == 2
        assert not caching.same_steps(["r0", "r1"], "a.", "p.")


def test_chunked_prompts_are_pinned(tmp_path_factory: pytest.TempPathFactory) -> None:
    for chunked in started(tmp_path_factory, WIDE, max_num_batched_tokens=64):
        requests = {
            name: Asked(prompt=one.prompt * 3, num_tokens=one.num_tokens)
            for name, one in asked(9, 8, num_tokens=LENGTHS).items()
        }
        first = generate(chunked.engine, requests, spaced(list(requests)), prefix="a.")
        other = shuffled(requests, seed=3)
        plan = chunked.plan(list(requests), "a.", "p.")
        again, outcome = pinned(chunked.engine, chunked.folder, plan, requests, other, prefix="p.")
        assert outcome.end is PinEnd.COMPLETED, outcome
        assert num_equal(first, again) == 8
