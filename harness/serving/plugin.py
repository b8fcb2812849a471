"""What lives inside an engine, apart from the engine: its log and its pin.

`harness.serving.scheduler` hands facts in and follows what comes out. Rule kept here: nothing of
ours ends an engine that serves. A log that cannot be written ends with a warning, a pin that fails
ends as `failed`, and the engine goes on.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError, ScorepinError
from harness.serving.log_lines import FORMAT, FileHeader
from harness.serving.pin import Allowed, EngineRequest, Pin, PinEnd, Scheduled
from harness.serving.pin_files import take_plan, write_outcome
from harness.serving.recorder import RanStep, Recorder, ScheduledStep
from harness.serving.settings import ServingSettings
from harness.serving.step_log import StepLogWriter

__all__ = ["EnginePin", "EngineRecording"]

_LOGGER = logging.getLogger("vllm.scorepin")  # under vllm's root, so that its handlers print it


class EngineRecording:
    """Records what an engine computes."""

    def __init__(self, folder: Path, settings: ServingSettings, facts: Mapping[str, Any]) -> None:
        """Begin a log in `folder`; raises StoreError when that cannot be done."""
        self._recorder = Recorder()
        self._run, self._facts = uuid.uuid4().hex, dict(facts)
        self._writer: StepLogWriter | None = StepLogWriter(folder, self._header, settings.limits)

    def record(self, step: ScheduledStep, ran: RanStep) -> None:
        """Log one step whose results are in."""
        if self._writer is None:
            return
        try:
            self._writer.make_room()
            line = self._recorder.record(step, ran)
            if line is not None:
                self._writer.append(line)
        except Exception:
            _LOGGER.exception("scorepin: recording ends here; the engine goes on")
            self._writer = None

    def close(self) -> None:
        """Sync and close the log."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _header(self) -> FileHeader:
        return FileHeader(
            format=FORMAT, run=self._run, facts=self._facts, live=self._recorder.live()
        )


class EnginePin:
    """Pins what an engine computes, when it is asked to."""

    def __init__(self, folder: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Look for requests to pin in `folder`."""
        self._folder, self._clock_s = folder, clock_s
        self._pin: Pin | None = None

    def arrived(self, request: Callable[[], EngineRequest]) -> None:
        """Take note of a request that came to the engine."""
        if self._pin is not None:
            self._guarded(lambda pin: pin.arrived(request(), self._clock_s()))

    def decide(
        self,
        computed: Mapping[str, int],
        running: Sequence[str],
        present: Callable[[], Sequence[EngineRequest]],
    ) -> Allowed | None:
        """Return what the next step may compute; None: whatever the engine likes.

        `present` gives the requests in the engine; it is asked when a pin begins.
        """
        self._begin(present)
        if self._pin is None:
            return None
        return self._guarded(lambda pin: pin.decide(computed, running, self._clock_s()))

    def observe(self, scheduled: Scheduled) -> None:
        """Take note of what was scheduled."""
        if self._pin is not None:
            self._guarded(lambda pin: pin.observe(scheduled, self._clock_s()))

    def end(self, reason: PinEnd, detail: str) -> None:
        """End the pin, if there is one."""
        if self._pin is not None:
            self._guarded(lambda pin: pin.end(reason, detail))

    @property
    def is_pinned(self) -> bool:
        """Whether a pin is being carried out."""
        return self._pin is not None

    def _begin(self, present: Callable[[], Sequence[EngineRequest]]) -> None:
        try:
            plan = take_plan(self._folder)
        except (ScorepinError, OSError):
            _LOGGER.exception("scorepin: a request to pin is left aside")
            return
        if plan is None:
            return
        self.end(PinEnd.SUPERSEDED, f"pin {plan.pin_id!r} was asked for")
        self._pin = Pin(plan, self._clock_s())
        self._guarded(lambda pin: self._greet(pin, present()))

    def _greet(self, pin: Pin, present: Sequence[EngineRequest]) -> None:
        for request in present:
            pin.arrived(request, self._clock_s())

    def _guarded(self, act: Callable[[Pin], Allowed | None]) -> Allowed | None:
        """Act on the pin; afterwards there is none if it has ended, for whatever reason."""
        pin = self._pin
        if pin is None:
            return None
        try:
            allowed = act(pin)
        except Exception as error:
            _LOGGER.exception("scorepin: the pin fails; the engine goes on")
            pin.end(PinEnd.FAILED, repr(error))
            allowed = None
        if pin.outcome is not None:
            self._pin = None
            _LOGGER.info("scorepin: pin %s: %s", pin.plan.pin_id, pin.outcome)
            self._tell(pin)
        return allowed

    def _tell(self, pin: Pin) -> None:
        if pin.outcome is None:
            return
        try:
            write_outcome(self._folder, pin.outcome)
        except (EvidenceError, ScorepinError, OSError):
            _LOGGER.exception("scorepin: how pin %s ended cannot be written", pin.plan.pin_id)
