"""Bars on standard error: how far the work is, and about how long the rest takes.

A bar counts only what is left to do, so that work stored by an earlier run is not taken for speed.
Without a terminal nothing is shown.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from calibrate import console

__all__ = ["RunProgress", "rows_progress"]


class RunProgress:
    """One bar over a whole calibration, in padded tokens; see `calibrate.run.Progress`."""

    def __init__(self, num_processes: int) -> None:
        """Say how many processes the run has; their work is known as each is ready."""
        self._num_processes = num_processes
        self._ready, self._known, self._stored = 0, 0, 0
        self._bar = _bar(TaskProgressColumn())
        self._task = self._bar.add_task(self._words(), total=None)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()

    def planned(self, process_id: str, cost: int, done: int) -> None:  # noqa: ARG002 - the protocol's
        """Count a process's work; until all are ready the rest is taken to be like it."""
        self._ready += 1
        self._known += cost - done
        self._stored += done
        total = self._known * max(self._num_processes, self._ready) / self._ready
        self._bar.update(self._task, total=total, description=self._words())

    def advanced(self, process_id: str, cost: int) -> None:  # noqa: ARG002 - the protocol's
        """Count what is stored."""
        self._bar.advance(self._task, cost)

    def _words(self) -> str:
        expected = max(self._num_processes, self._ready)  # appeals come on top
        begun = f"{self._ready} of {expected} processes begun"
        return f"scoring ({begun}{', resumed' if self._stored else ''})"


@contextmanager
def rows_progress(words: str, num_rows: int) -> Iterator[Progress]:
    """Show a bar over `num_rows` rows; its first task is the bar. Threads may advance it."""
    with _bar(MofNCompleteColumn()) as bar:
        bar.add_task(words, total=num_rows)
        yield bar


def _bar(last: MofNCompleteColumn | TaskProgressColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        last,
        TimeRemainingColumn(),
        TextColumn("left,"),
        TimeElapsedColumn(),
        TextColumn("so far"),
        console=console.errors,
        disable=not console.errors.is_terminal,
    )
