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

from harness.conditions.flight import EngineStep, StepSlot
from harness.errors import UnsupportedConditionError
from harness.records.document import Record
from harness.records.membership import BatchMembership, Slot, Step
from harness.serving.history import History, LoggedRequest, SeenSlot, SeenStep

__all__ = [
    "PinPlan",
    "PlannedRequest",
    "plan_of_log",
    "plan_of_steps",
    "planned_steps",
]


class PlannedRequest(Record, frozen=True, kw_only=True):
    """A request that will be sent."""

    name: str
    """The client's id for it."""
    num_prompt_tokens: int | None = None
    """Tokens of its prompt; None where that is not known."""
    prompt_digest: str | None = None
    """Digest of its prompt; None: any content will do."""


class PinPlan(Record, frozen=True, kw_only=True):
    """What an engine shall do."""

    pin_id: str
    """Names the pin, and the file that says how it ended."""
    requests: tuple[PlannedRequest, ...]
    """All that take part."""
    steps: tuple[EngineStep, ...]
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


def _indices(step: EngineStep) -> Iterable[int]:
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


def _kept(seen: SeenStep, index: Mapping[int, int]) -> EngineStep:
    return EngineStep(
        slots=tuple(
            _planned(slot, index[id(slot.request)])
            for slot in seen.slots
            if id(slot.request) in index
        ),
        preempted=tuple(index[id(one)] for one in seen.preempted if id(one) in index),
    )


def _planned(slot: SeenSlot, request: int) -> StepSlot:
    return StepSlot(
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
    return PinPlan(
        pin_id=pin_id,
        requests=tuple(requests.values()),
        steps=planned_steps(membership, list(requests)),
        wait_s=wait_s,
    )


def planned_steps(
    membership: BatchMembership, request_ids: Sequence[str]
) -> tuple[EngineStep, ...]:
    """Return a commit's steps, slots as indices into `request_ids`, as a scheduler orders them.

    Raises what `plan_of_steps` raises.
    """
    return _Planner(membership, request_ids).steps()


class _Planner:
    """Goes through a commit's steps, and knows how far each request has come."""

    def __init__(self, membership: BatchMembership, request_ids: Sequence[str]) -> None:
        self._index = {name: at for at, name in enumerate(request_ids)}
        self._steps = membership.steps
        self._reached: dict[str, int] = {}
        slots = [slot for step in membership.steps for slot in step.slots]
        self._prompt_end = {(s.request_id, s.content_digest): _reach(s) for s in slots}

    def steps(self) -> tuple[EngineStep, ...]:
        found: list[EngineStep] = []
        for step in self._steps:
            found += self._prelude(step)
            found.append(EngineStep(slots=tuple(map(self._slot, self._in_order(step)))))
            self._reached |= {slot.request_id: _reach(slot) for slot in step.slots}
        return tuple(found)

    def _prelude(self, step: Step) -> Sequence[EngineStep]:
        """Return the steps that bring each companion to where the step met it, one a step.

        A branch's own first step is always there: what it had computed before came out of the
        cache, which is seen when it is scheduled.
        """
        found = []
        for slot in step.slots:
            known = self._reached.get(slot.request_id)
            if known is not None and known != slot.num_computed_tokens:
                raise UnsupportedConditionError(
                    f"request {slot.request_id!r} lost its cache between two steps of this commit; "
                    "plan its replay from the step log"
                )
            if known is None and slot.num_computed_tokens and slot.branch_id is None:
                found.append(EngineStep(slots=(self._until(slot),)))
                self._reached[slot.request_id] = slot.num_computed_tokens
        return found

    def _until(self, slot: Slot) -> StepSlot:
        return StepSlot(
            request=self._index[slot.request_id],
            num_tokens=slot.num_computed_tokens,
            num_computed_tokens=0,
        )

    def _in_order(self, step: Step) -> list[Slot]:
        """Return a step's slots as a scheduler has them: what has begun, then what begins.

        Last, a prompt that is cut here: a scheduler gives it what the others have left.
        """
        return sorted(
            step.slots, key=lambda slot: (slot.request_id not in self._reached, self._is_cut(slot))
        )

    def _is_cut(self, slot: Slot) -> bool:
        return self._prompt_end[slot.request_id, slot.content_digest] > _reach(slot)

    def _slot(self, slot: Slot) -> StepSlot:
        return StepSlot(
            request=self._index[slot.request_id],
            num_tokens=slot.num_tokens,
            num_computed_tokens=slot.num_computed_tokens,
        )


def _reach(slot: Slot) -> int:
    return slot.num_computed_tokens + slot.num_tokens
