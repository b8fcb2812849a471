"""The plan of a pinned schedule: which requests, and what each step computes of them.

A plan is made from a log (all requests, or some with their companions) or from one commit record.
Of a companion only its own tokens are planned, so a plan from a commit first brings a companion
that the commit met half-way to where it was; companions of companions are left out. Requests go by
new names, chosen by whoever replays, so that a log can hold a commit and its replay.

Rules kept here:

* a request's planned steps are complete from its first token on: else it cannot be planned;
* a planned request says what its prompt must be, unless any prompt of that length will do.
"""

from collections.abc import Iterable, Mapping, Sequence

from harness.errors import UnsupportedConditionError
from harness.records.document import Record
from harness.records.membership import BatchMembership, Step
from harness.serving.history import History, LoggedRequest, SeenSlot, SeenStep

__all__ = [
    "PinPlan",
    "PlannedRequest",
    "PlannedSlot",
    "PlannedStep",
    "plan_of_log",
    "plan_of_steps",
]


class PlannedRequest(Record, frozen=True, kw_only=True):
    """A request that will be sent."""

    name: str
    """The client's id for it."""
    num_prompt_tokens: int | None = None
    """Tokens of its prompt; None where that is not known."""
    prompt_digest: str | None = None
    """Digest of its prompt; None: any content will do."""


class PlannedSlot(Record, frozen=True, kw_only=True, array_like=True):
    """A request's part in a step."""

    request: int
    """Index into the plan's requests."""
    num_tokens: int
    """Tokens to compute."""
    num_computed_tokens: int
    """Tokens that must have been computed before."""


class PlannedStep(Record, frozen=True, kw_only=True):
    """One step."""

    slots: tuple[PlannedSlot, ...]
    """In the scheduler's order."""
    preempted: tuple[int, ...] = ()
    """Requests that lose their cache in it, the first to lose it first."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(slot.num_tokens for slot in self.slots)


class PinPlan(Record, frozen=True, kw_only=True):
    """What an engine shall do."""

    pin_id: str
    """Names the pin, and the file that says how it ended."""
    requests: tuple[PlannedRequest, ...]
    """All that take part."""
    steps: tuple[PlannedStep, ...]
    """In order."""
    wait_s: float = 10.0
    """How long a step may wait for a request that has not come."""
    gather: bool = True
    """Whether the first step waits for all requests. An engine that waits later may go on with its
    rows in another order; yet clients that wait for one another can only be waited for later."""

    def __post_init__(self) -> None:
        """Names are unique, indices exist, and the id can be a file's name."""
        if not self.pin_id or not self.pin_id.replace("-", "").isalnum():
            raise ValueError(f"pin_id {self.pin_id!r}: letters, digits and dashes only")
        if len({request.name for request in self.requests}) != len(self.requests):
            raise ValueError("two planned requests go by one name")
        if not self.wait_s > 0:
            raise ValueError(f"wait_s is a number above 0, found {self.wait_s!r}")
        used = {index for step in self.steps for index in _indices(step)}
        if not used <= set(range(len(self.requests))):
            raise ValueError("a step names a request that is not in the plan")


def _indices(step: PlannedStep) -> Iterable[int]:
    return (*(slot.request for slot in step.slots), *step.preempted)


def plan_of_log(
    history: History, names: Mapping[str, str], *, pin_id: str, wait_s: float = 10.0
) -> PinPlan:
    """Return the plan of the logged requests `names` (logged id -> id to be sent).

    A request that shares a step with one of them and is not named is left out; to keep it, name it.
    Raises InputFileError when one is not in the log, or its first steps are not.
    """
    logged = [history.request(name) for name in names]
    index = {id(request): at for at, request in enumerate(logged)}
    spans = [history.span(request) for request in logged]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    kept = (_kept(seen, index) for seen in history.between(first, last))
    return PinPlan(
        pin_id=pin_id,
        requests=tuple(
            PlannedRequest(
                name=sent,
                num_prompt_tokens=request.num_prompt_tokens,
                prompt_digest=request.prompt_digest,
            )
            for request, sent in zip(logged, names.values(), strict=True)
        ),
        steps=tuple(step for step in kept if step.slots or step.preempted),
        wait_s=wait_s,
    )


def _kept(seen: SeenStep, index: Mapping[int, int]) -> PlannedStep:
    return PlannedStep(
        slots=tuple(
            _planned(slot, index[id(slot.request)])
            for slot in seen.slots
            if id(slot.request) in index
        ),
        preempted=tuple(index[id(one)] for one in seen.preempted if id(one) in index),
    )


def _planned(slot: SeenSlot, request: int) -> PlannedSlot:
    return PlannedSlot(
        request=request,
        num_tokens=slot.num_tokens,
        num_computed_tokens=slot.num_computed_tokens,
    )


def companions_of(history: History, names: Iterable[str]) -> list[LoggedRequest]:
    """Return every request that shared a step with one of `names`, these included, in log order."""
    wanted = [history.request(name) for name in names]
    found: dict[int, LoggedRequest] = {id(one): one for one in wanted}
    for one in wanted:
        for seen in history.between(*history.span(one)):
            if any(slot.request is one for slot in seen.slots):
                found |= {id(slot.request): slot.request for slot in seen.slots}
    return list(found.values())


def plan_of_steps(
    membership: BatchMembership,
    requests: Mapping[str, PlannedRequest],
    *,
    pin_id: str,
    wait_s: float = 10.0,
) -> PinPlan:
    """Return the plan of a commit's steps; `requests` (recorded id -> request) has every slot's.

    Raises UnsupportedConditionError when the steps do not say how a request came to where it was.
    """
    index = {name: at for at, name in enumerate(requests)}
    reached: dict[str, int] = dict.fromkeys(requests, 0)
    steps: list[PlannedStep] = []
    for step in membership.steps:
        steps += _prelude(step, reached, index)
        steps.append(PlannedStep(slots=tuple(_slots(step, index))))
        reached |= {
            slot.request_id: slot.num_computed_tokens + slot.num_tokens for slot in step.slots
        }
    return PinPlan(
        pin_id=pin_id, requests=tuple(requests.values()), steps=tuple(steps), wait_s=wait_s
    )


def _prelude(
    step: Step, reached: Mapping[str, int], index: Mapping[str, int]
) -> Sequence[PlannedStep]:
    """Return the steps that bring each request to where the step met it, one request a step."""
    found = []
    for slot in step.slots:
        behind = slot.num_computed_tokens - reached[slot.request_id]
        if behind < 0 or (behind and reached[slot.request_id]):
            raise UnsupportedConditionError(
                f"request {slot.request_id!r} lost its cache between two steps of this commit; plan"
                " its replay from the step log"
            )
        if behind:
            one = PlannedSlot(
                request=index[slot.request_id], num_tokens=behind, num_computed_tokens=0
            )
            found.append(PlannedStep(slots=(one,)))
    return found


def _slots(step: Step, index: Mapping[str, int]) -> Iterable[PlannedSlot]:
    """Yield a step's slots as a scheduler orders them: what has begun before what begins."""
    for slot in sorted(step.slots, key=lambda slot: slot.num_computed_tokens == 0):
        yield PlannedSlot(
            request=index[slot.request_id],
            num_tokens=slot.num_tokens,
            num_computed_tokens=slot.num_computed_tokens,
        )
