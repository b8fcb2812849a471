"""Messages between a runner and the process of one condition, and how they cross a pipe.

A frame is an 8-byte big-endian length and that many bytes of MessagePack. Non-finite scores cross
unchanged. A pipe that ends between two frames is the end; one that ends inside a frame is an error,
and so is anything else that was printed into it: no text begins with the zeros of a real length.
"""

from typing import BinaryIO

import msgspec

from harness.conditions.batching import Batch
from harness.conditions.condition import Condition
from harness.conditions.flight import EngineStep
from harness.errors import WorkerError
from harness.orders.fingerprint import OrderProbe
from harness.records.build import Build
from harness.records.document import Record
from harness.records.verifier import VerifierSpec
from harness.verifiers.divergence import Divergence
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText

__all__ = [
    "Failed",
    "FromWorker",
    "Job",
    "Probe",
    "Probed",
    "Ready",
    "Run",
    "Scored",
    "ToWorker",
    "Trace",
    "Traced",
    "receive",
    "send",
]


class Job(Record, frozen=True, kw_only=True, tag=True):
    """The first message to a worker."""

    verifier: VerifierSpec
    """What to load."""
    condition: Condition
    """Under which switches."""
    texts: tuple[RowText, ...]
    """Every row that may be scored."""


class Run(Record, frozen=True, kw_only=True, tag=True):
    """Score these batches, in this order."""

    batches: tuple[Batch, ...]
    """Batches of row indices into `Job.texts`."""


class Trace(Record, frozen=True, kw_only=True, tag=True):
    """Compare the computations of one row in two batches."""

    left: Batch
    """A batch of row indices into `Job.texts`."""
    right: Batch
    """Another."""
    row: int
    """The row, which is in both."""


class Probe(Record, frozen=True, kw_only=True, tag=True):
    """Measure the reduction orders, over the ladder and at the shapes of these batches."""

    batches: tuple[Batch, ...]
    """Batches of row indices into `Job.texts`; the first row of each is looked at."""


class Ready(Record, frozen=True, kw_only=True, tag=True):
    """The model is loaded and the rows are encoded."""

    build: Build
    """What was loaded."""
    condition: ResolvedCondition
    """Under which switches, read back."""
    rows: tuple[EncodedRow, ...]
    """The rows as the model sees them."""


class Scored(Record, frozen=True, kw_only=True, tag=True):
    """One batch is done."""

    scores: tuple[float, ...]
    """One score a row, in slot order."""
    steps: tuple[EngineStep, ...] = ()
    """Of a flight: the steps that really ran; empty for a forward, and where nobody saw them."""
    generated: tuple[tuple[int, ...], ...] = ()
    """Of a flight whose steps were seen: the tokens that each row generated, `[rows]`."""
    note: str = ""
    """Of a pinned flight: why the pin ended early; empty for one that ran as planned."""


class Traced(Record, frozen=True, kw_only=True, tag=True):
    """A comparison is done."""

    divergence: Divergence
    """Where the two part."""


class Probed(Record, frozen=True, kw_only=True, tag=True):
    """The reduction orders are measured."""

    found: OrderProbe
    """Trees, fingerprints, and what the batches gave."""


class Failed(Record, frozen=True, kw_only=True, tag=True):
    """The worker gives up."""

    kind: str
    """Name of the error class of `harness.errors`, or of the foreign one."""
    message: str
    """Its message."""


ToWorker = Job | Run | Trace | Probe
FromWorker = Ready | Scored | Traced | Probed | Failed

_DECODER = msgspec.msgpack.Decoder(ToWorker | FromWorker)
_LENGTH_BYTES = 8
_MAX_BYTES = 2**40


def send(stream: BinaryIO, message: ToWorker | FromWorker) -> None:
    """Write one frame and flush it."""
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    stream.flush()


def receive(stream: BinaryIO) -> ToWorker | FromWorker | None:
    """Read one frame; None when the other side has ended.

    Raises WorkerError when it ended inside a frame, or sent something else.
    """
    head = stream.read(_LENGTH_BYTES)
    if not head:
        return None
    length = int.from_bytes(head, "big")
    if len(head) == _LENGTH_BYTES and length > _MAX_BYTES:
        raise WorkerError(f"{head!r}... is no message: something printed to standard output")
    data = stream.read(length) if len(head) == _LENGTH_BYTES else b""
    if len(head) < _LENGTH_BYTES or len(data) < length:
        raise WorkerError("a message was cut short: the other process died while writing")
    try:
        message: ToWorker | FromWorker = _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WorkerError(f"a message is not of this release: {error}") from error
    return message
