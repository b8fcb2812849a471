"""vLLM's schedulers, recording and, where that is allowed, pinned.

The flag is

    --scheduler-cls harness.serving.scheduler.RecordingScheduler

Written for vLLM 0.32, whose scheduler interface is not public. All that this file does is to hand
facts to `harness.serving.plugin` and, under a pin, to hide requests from the real scheduler: they
are taken out of its queues for one call and put back behind what it left there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from harness.serving.content import prompt_digest
from harness.serving.engine_facts import engine_facts
from harness.serving.pin import Allowed, EngineRequest, PinEnd, Scheduled
from harness.serving.plugin import EnginePin, EngineRecording
from harness.serving.recorder import Prompt, RanStep, ScheduledStep
from harness.serving.request_ids import client_request
from harness.serving.settings import engine_folder, read_settings

__all__ = ["AsyncRecordingScheduler", "RecordingScheduler"]


class _Recording(Scheduler):  # type: ignore[misc] # vLLM is not where types are checked
    """Records each step when its results are in; under a pin, runs the planned steps."""

    max_num_scheduled_tokens: int
    max_num_active_reqs: int
    running: list[Request]
    waiting: Any
    kv_holding_waiting: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = read_settings(self.vllm_config.additional_config)
        folder = engine_folder(settings, self.parallel_config.data_parallel_index)
        self._recording = EngineRecording(folder, settings, engine_facts(self.vllm_config))
        self._pin = EnginePin(folder) if settings.allow_pin else None

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002 - vLLM's
        if self._pin is None:
            output = super().schedule(throttle_prefills)
        else:
            output = self._pinned_schedule(self._pin, throttle_prefills)
        output.scorepin_preempted = self._in_order(output.preempted_req_ids)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        prompts = {
            new.req_id: _prompt(new, new.prompt_len) for new in scheduler_output.scheduled_new_reqs
        }
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        step = ScheduledStep(
            num_tokens=scheduler_output.num_scheduled_tokens,
            num_computed_tokens=_num_computed(scheduler_output),
            prompts=prompts,
            preempted=scheduler_output.scorepin_preempted,
            finished=scheduler_output.finished_req_ids,
        )
        ran = RanStep(sampled=_sampled(model_runner_output), rows=model_runner_output.req_ids)
        self._recording.record(step, ran)
        return outputs

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if self._pin is not None and self._pin.is_pinned:
            self._pin.arrived(lambda: _engine_request(request))

    def shutdown(self) -> None:
        super().shutdown()
        self._recording.close()

    def _pinned_schedule(self, pin: EnginePin, throttle_prefills: Any) -> SchedulerOutput:
        allowed = pin.decide(
            {engine_id: one.num_computed_tokens for engine_id, one in self.requests.items()},
            [one.request_id for one in self.running],
            lambda: [_engine_request(one) for one in self.requests.values()],
        )
        if allowed is not None and self.policy is not SchedulingPolicy.FCFS:
            pin.end(PinEnd.UNSUPPORTED, f"scheduling policy {self.policy.value}")
            allowed = None
        if allowed is None:
            return super().schedule(throttle_prefills)
        with self._hidden(allowed):
            output = super().schedule(throttle_prefills)
            preempted = self._in_order(output.preempted_req_ids)
        pin.observe(
            Scheduled(
                num_tokens=output.num_scheduled_tokens,
                num_computed_tokens=_num_computed(output),
                preempted=preempted,
            )
        )
        return output

    @contextmanager
    def _hidden(self, allowed: Allowed) -> Iterator[None]:
        """Show the scheduler only what is allowed, in that order; put the rest back behind it."""
        order = {engine_id: at for at, engine_id in enumerate(allowed.engine_ids)}
        limits = self.max_num_scheduled_tokens, self.max_num_active_reqs
        queues = self.waiting, self.kv_holding_waiting
        running, hidden_running = _parted(self.running, order)
        parts = [_parted(queue, order) for queue in queues]
        self.running = running
        self.waiting, self.kv_holding_waiting = (_queue(shown) for shown, _ in parts)
        if allowed.num_tokens is not None:
            self.max_num_scheduled_tokens = min(allowed.num_tokens, limits[0])
        self.max_num_active_reqs -= len(hidden_running)  # they hold places in the model's batch
        try:
            yield
        finally:
            self.max_num_scheduled_tokens, self.max_num_active_reqs = limits
            self.running = [*self.running, *hidden_running]
            self.waiting.extend(parts[0][1])
            self.kv_holding_waiting.extend(parts[1][1])

    def _in_order(self, preempted: set[str] | None) -> tuple[str, ...]:
        """Return what a step preempted, the first to lose its cache first.

        Each was put at the head of the queue when it was preempted.
        """
        if not preempted:
            return ()
        waiting = [one.request_id for one in self.waiting if one.request_id in preempted]
        return (*sorted(preempted - set(waiting)), *reversed(waiting))


class AsyncRecordingScheduler(_Recording, AsyncScheduler):  # type: ignore[misc] # as above
    """The scheduler of an engine that schedules a step ahead."""


class RecordingScheduler(_Recording):
    """The scheduler to name on the command line; where vLLM schedules ahead, the other is made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a scheduler of the kind that the engine's config needs."""
        if kwargs["vllm_config"].scheduler_config.async_scheduling:
            return AsyncRecordingScheduler(*args, **kwargs)
        return super().__new__(cls)


def _prompt(request: Any, num_tokens: int) -> Prompt:
    others = [one.identifier for one in request.mm_features]
    if request.lora_request is not None:
        others.append(f"lora:{request.lora_request.lora_name}")
    if request.prompt_token_ids is None:
        others.append("embeddings that cannot be told apart")
    digest = prompt_digest(request.prompt_token_ids or (), others)
    return Prompt(num_tokens=num_tokens, digest=digest)


def _engine_request(request: Request) -> EngineRequest:
    prompt = _prompt(request, request.num_prompt_tokens)
    return EngineRequest(
        engine_id=request.request_id,
        name=client_request(request.request_id).name,
        num_prompt_tokens=prompt.num_tokens,
        prompt_digest=prompt.digest,
    )


def _num_computed(output: SchedulerOutput) -> Mapping[str, int]:
    cached = output.scheduled_cached_reqs
    found = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    found.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
    return found


def _sampled(output: ModelRunnerOutput) -> Mapping[str, Sequence[int]]:
    if not output.sampled_token_ids:
        return {}
    return {one: output.sampled_token_ids[at] for one, at in output.req_id_to_index.items()}


def _parted(requests: Any, order: Mapping[str, int]) -> tuple[list[Request], list[Request]]:
    shown = [one for one in requests if one.request_id in order]
    shown.sort(key=lambda one: order[one.request_id])
    return shown, [one for one in requests if one.request_id not in order]


def _queue(requests: list[Request]) -> Any:
    queue = create_request_queue(SchedulingPolicy.FCFS)
    for request in requests:
        queue.add_request(request)
    return queue
