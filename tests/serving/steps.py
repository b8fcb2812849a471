"""Steps of an imagined engine, for tests of the log, the history and the pin."""

from collections.abc import Mapping, Sequence

from harness.serving.content import prompt_digest
from harness.serving.log_lines import FORMAT, FileHeader, StepLine
from harness.serving.recorder import Prompt, RanStep, Recorder, ScheduledStep


def a_header(**changes: object) -> FileHeader:
    fields = {"format": FORMAT, "run": "run-1", "facts": {"engine": "vllm 0"}} | changes
    return FileHeader(**fields)  # type: ignore[arg-type]


def engine_id(name: str) -> str:
    return f"{name}-0123abcd"


def prompt_of(name: str, num_tokens: int) -> Prompt:
    return Prompt(num_tokens=num_tokens, digest=prompt_digest([len(name), *range(num_tokens)]))


class ImaginedEngine:
    """Keeps count of what each request has computed, and records its steps."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self._computed: dict[str, int] = {}
        self._prompts: dict[str, Prompt] = {}

    def step(
        self,
        slots: Mapping[str, int],
        *,
        new: Mapping[str, int] | None = None,
        sampled: Mapping[str, Sequence[int]] | None = None,
        preempted: Sequence[str] = (),
        finished: Sequence[str] = (),
        rows: Sequence[str] = (),
    ) -> StepLine | None:
        """Compute `slots` (name -> tokens); `new` has the prompt lengths of new requests."""
        lengths = new or {}
        prompts = {engine_id(name): prompt_of(name, count) for name, count in lengths.items()}
        for name in preempted:
            self._computed[name] = 0
        step = ScheduledStep(
            num_tokens={engine_id(name): count for name, count in slots.items()},
            num_computed_tokens={engine_id(name): self._computed.get(name, 0) for name in slots},
            prompts=prompts,
            preempted=[engine_id(name) for name in preempted],
            finished=[engine_id(name) for name in finished],
        )
        for name, count in slots.items():
            self._computed[name] = self._computed.get(name, 0) + count
        ran = RanStep(
            sampled={engine_id(name): out for name, out in (sampled or {}).items()},
            rows=[engine_id(name) for name in rows],
        )
        return self.recorder.record(step, ran)


def three_steps(engine: ImaginedEngine) -> list[StepLine]:
    """Prefill a; then decode a beside b's prompt; then decode both."""
    lines = (
        engine.step({"a": 4}, new={"a": 4}, sampled={"a": [9]}),
        engine.step({"a": 1, "b": 3}, new={"b": 3}, sampled={"a": [8], "b": [7]}),
        engine.step({"a": 1, "b": 1}, sampled={"a": [6], "b": [5]}),
    )
    return [line for line in lines if line is not None]
