"""Messages between a runner and the process of one condition, and how they cross a pipe.

A frame is an 8-byte big-endian length and that many bytes of MessagePack. Non-finite scores cross
unchanged. A pipe that ends between two frames is the end; one that ends inside a frame is an error,
and so is anything else that was printed into it: no text begins with the zeros of a real length.
"""

from typing import BinaryIO

import msgspec

from harness.conditions.batching import Batch
from harness.conditions.condition import Condition
from harness.errors import WorkerError
from harness.records.build import Build
from harness.records.document import Record
from harness.records.verifier import VerifierSpec
from harness.verifiers.protocol import EncodedRow, ResolvedCondition, RowText

__all__ = ["Failed", "FromWorker", "Job", "Ready", "Run", "Scored", "ToWorker", "receive", "send"]


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


class Failed(Record, frozen=True, kw_only=True, tag=True):
    """The worker gives up."""

    kind: str
    """Name of the error class of `harness.errors`, or of the foreign one."""
    message: str
    """Its message."""


ToWorker = Job | Run
FromWorker = Ready | Scored | Failed

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
        return msgspec.msgpack.decode(data, type=Job | Run | Ready | Scored | Failed)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WorkerError(f"a message is not of this release: {error}") from error
