"""What a step log tells, put together: requests, and the steps in which each took part.

Rules kept here:

* a membership is what the log says, whole or not at all: a request that is not in the log, steps
  that have been rotated away, or tokens that it does not know are an error, never a shorter answer;
* a client's id that stands for several requests is refused: nobody could say which was meant;
* memory is bounded where that is asked for: the oldest steps are forgotten.

It does not know where the lines come from, or what a score is.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from harness.errors import InputFileError, InvalidRecordError
from harness.records.document import Record
from harness.records.membership import BatchMembership, Slot, Step
from harness.serving.content import sequence_digest
from harness.serving.log_lines import Admitted, FileHeader, LoggedSlot, StepLine
from harness.serving.request_ids import client_request

__all__ = ["History", "LoggedRequest", "SeenSlot", "SeenStep"]


class LoggedRequest:
    """A request as the log tells it; grows as the log does."""

    def __init__(self, admitted: Admitted) -> None:
        """Take what the log says when it first has the request."""
        self.engine_id = admitted.engine_id
        self.client = client_request(admitted.engine_id)
        self.num_prompt_tokens = admitted.num_prompt_tokens
        self.prompt_digest = admitted.prompt_digest
        self.generated = list(admitted.generated)
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.is_whole = True

    def content_digest(self, num_tokens: int) -> str:
        """Return the digest of the sequence's first `num_tokens`, or of the whole prompt.

        Raises InvalidRecordError when the log does not know a token of them.
        """
        num_generated = max(num_tokens - self.num_prompt_tokens, 0)
        if num_generated > len(self.generated):
            raise InvalidRecordError(
                f"request {self.client.name!r}: token {num_tokens} was computed before the log knew"
                " it (speculative decoding?); its membership cannot be told"
            )
        return sequence_digest(self.prompt_digest, self.generated[:num_generated])


class SeenSlot(Record, frozen=True, kw_only=True):
    """A request's part in a step."""

    request: LoggedRequest
    """Whose it is."""
    num_tokens: int
    """Tokens computed in this step."""
    num_computed_tokens: int
    """Tokens computed before."""
    num_sampled: int
    """Tokens that came out."""


class SeenStep(Record, frozen=True, kw_only=True):
    """One step."""

    slots: tuple[SeenSlot, ...]
    """In the scheduler's order."""
    rows: tuple[SeenSlot, ...]
    """In the order of the model's rows."""
    preempted: tuple[LoggedRequest, ...]
    """Requests that lost their cache in it, the first to lose it first."""


class History:
    """A log, line by line."""

    def __init__(self, max_slots: int | None = None) -> None:
        """Remember all of it, or the newest steps, of `max_slots` slots together."""
        self.facts: dict[str, object] = {}
        self._max_slots = max_slots
        self._num_slots = 0
        self._steps: deque[SeenStep] = deque()
        self._first = 0
        self._run = ""
        self._by_number: dict[int, LoggedRequest] = {}
        self._by_id: dict[str, list[LoggedRequest]] = {}

    def feed(self, lines: Iterable[FileHeader | StepLine]) -> "History":
        """Take more lines, in the log's order; return self."""
        for line in lines:
            if isinstance(line, FileHeader):
                self._begin(line)
            else:
                self._add(line)
        return self

    @property
    def num_steps(self) -> int:
        """Steps that were taken in, the forgotten ones included."""
        return self._first + len(self._steps)

    def requests(self) -> list[LoggedRequest]:
        """Return all requests, in the order of their admission."""
        return [one for known in self._by_id.values() for one in known]

    def request(self, request_id: str) -> LoggedRequest:
        """Return the one request that a client sent under `request_id`.

        Raises InputFileError when there is none, InvalidRecordError when there are several.
        """
        found = self._by_id.get(request_id, [])
        if not found:
            advice = "it was not computed yet, or the log has been rotated past it"
            raise InputFileError(f"request {request_id!r} is not in the step log: {advice}")
        if len(found) > 1:
            advice = "give each prompt an id of its own"
            raise InvalidRecordError(f"{len(found)} requests go by {request_id!r}: {advice}")
        return found[0]

    def span(self, request: LoggedRequest) -> tuple[int, int]:
        """Return a request's first and last step.

        Raises InputFileError when its first steps are not remembered.
        """
        if request.first_step is None or request.last_step is None or not request.is_whole:
            name = request.client.name
            raise InputFileError(f"request {name!r}: the log has been rotated past its first steps")
        return request.first_step, request.last_step

    def between(self, first: int, last: int) -> Iterator[SeenStep]:
        """Yield the steps `first` to `last`, the last included.

        Raises InputFileError when the first is not remembered any more.
        """
        if first < self._first:
            raise InputFileError("the step log has been rotated past the steps asked for")
        for at in range(first - self._first, last - self._first + 1):
            yield self._steps[at]

    def membership(self, branches: Mapping[str, str | None]) -> BatchMembership:
        """Return the steps in which the requests took part, by client id; the values label slots.

        Raises what `request` raises, and InputFileError when some of the steps are gone.
        """
        wanted = {id(self.request(name)): branch for name, branch in branches.items()}
        spans = [self.span(self.request(name)) for name in branches]
        first, last = min(span[0] for span in spans), max(span[1] for span in spans)
        steps = [
            _step(seen, wanted)
            for seen in self.between(first, last)
            if any(id(slot.request) in wanted for slot in seen.slots)
        ]
        return BatchMembership(steps=tuple(steps))

    def _begin(self, header: FileHeader) -> None:
        self.facts = dict(header.facts)
        if header.run != self._run:
            self._run, self._by_number = header.run, {}
        for admitted in header.live:
            if admitted.number not in self._by_number:
                self._admit(admitted).is_whole = False

    def _admit(self, admitted: Admitted) -> LoggedRequest:
        request = self._by_number[admitted.number] = LoggedRequest(admitted)
        self._by_id.setdefault(request.client.name, []).append(request)
        return request

    def _add(self, line: StepLine) -> None:
        for number in line.finished:
            self._by_number.pop(number, None)
        for admitted in line.admitted:
            self._admit(admitted)
        at = self.num_steps
        slots = tuple(self._slot(slot, at) for slot in line.slots)
        preempted = tuple(self._by_number[number] for number in line.preempted)
        rows = tuple(slots[at] for at in line.rows) or slots
        self._steps.append(SeenStep(slots=slots, rows=rows, preempted=preempted))
        self._num_slots += len(slots)
        while self._max_slots is not None and self._num_slots > self._max_slots:
            self._forget()

    def _slot(self, slot: LoggedSlot, at: int) -> SeenSlot:
        request = self._by_number[slot.number]
        request.first_step = at if request.first_step is None else request.first_step
        request.last_step = at
        request.generated += slot.sampled
        return SeenSlot(
            request=request,
            num_tokens=slot.num_tokens,
            num_computed_tokens=slot.num_computed_tokens,
            num_sampled=len(slot.sampled),
        )

    def _forget(self) -> None:
        """Drop the oldest step, and the requests that were in no later one."""
        step = self._steps.popleft()
        self._num_slots -= len(step.slots)
        for slot in step.slots:
            slot.request.is_whole = False
            if slot.request.last_step == self._first:
                self._drop(slot.request)
        self._first += 1

    def _drop(self, request: LoggedRequest) -> None:
        """Drop a request; one that runs on keeps its number, for the slots to come."""
        known = self._by_id.get(request.client.name, [])
        if request in known:
            known.remove(request)
        if not known:
            self._by_id.pop(request.client.name, None)


def _step(seen: SeenStep, wanted: Mapping[int, str | None]) -> Step:
    return Step(
        slots=tuple(_membership_slot(slot, wanted.get(id(slot.request))) for slot in seen.rows)
    )


def _membership_slot(slot: SeenSlot, branch_id: str | None) -> Slot:
    return Slot(
        request_id=slot.request.client.name,
        content_digest=slot.request.content_digest(slot.num_computed_tokens + slot.num_tokens),
        num_tokens=slot.num_tokens,
        num_computed_tokens=slot.num_computed_tokens,
        branch_id=branch_id,
    )
