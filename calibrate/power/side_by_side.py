"""Several runs at a time, each in a thread; an error in one of them ends them all."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

from harness.scoring import Advance

__all__ = ["side_by_side"]

T = TypeVar("T")


def side_by_side(
    calls: Sequence[Callable[[Advance], T]], num_at_a_time: int, advance: Advance
) -> list[T]:
    """Return what `calls` return, in their order; `advance` may be called by several threads."""
    with ThreadPoolExecutor(num_at_a_time) as pool, _stoppable(advance) as stoppable:
        return list(pool.map(lambda call: call(stoppable), calls))


@contextmanager
def _stoppable(advance: Advance) -> Iterator[Advance]:
    """Give an `advance` that ends its thread once the block has been left by an error."""
    stop = Event()

    def checked(count: int) -> None:
        if stop.is_set():
            raise InterruptedError
        advance(count)

    try:
        yield checked
    except BaseException:
        stop.set()
        raise
