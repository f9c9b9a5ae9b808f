"""Progress bars with the time left; silent where nobody watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
# Of several processes, one speaks.
SPEAKS = os.environ.get("RANK", "0") == "0"
# Tables and results go to standard output; everything a person merely watches goes here.
console = Console(stderr=True, highlight=False, quiet=not SPEAKS)


def track(items: Iterable[T], *, total: int, what: str) -> Iterator[T]:
    """Pass `items` through, drawing a bar."""
    with bar(what, total) as advance:
        for item in items:
            yield item
            advance()


class Advance:
    """Moves a bar on, optionally with a word on how things stand."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, steps: int = 1, note: str | None = None) -> None:
        self._progress.advance(self._task, steps)
        if note is not None:
            self._progress.update(self._task, note=note)


@contextmanager
def bar(what: str, total: int) -> Iterator[Advance]:
    """A bar that the body moves on by calling what it is given."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not (SPEAKS and sys.stderr.isatty())) as progress:
        yield Advance(progress, progress.add_task(what, total=total, note=""))
