"""Progress bars with the time left over everything that is to come; lines instead of bars where nobody watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

T = TypeVar("T")
# Of several processes, one speaks.
SPEAKS = os.environ.get("RANK", "0") == "0"
LINE_SECONDS = 10.0  # between two lines of a phase, where there is no bar


class _LoggedConsole(Console):
    """A console whose lines are also written to a file, while there is one."""

    also: Console | None = None

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options)
        if self.also is not None:
            self.also.print(*objects, **options)


# Tables and results go to standard output; everything a person merely watches goes here.
console = _LoggedConsole(stderr=True, highlight=False, quiet=not SPEAKS)


@contextmanager
def console_log(path: Path | None) -> Iterator[None]:
    """Within, what the console prints is also appended to a file."""
    if path is None:
        yield
        return
    with path.open("a", encoding="utf-8") as file:
        console.also = Console(file=file, width=120, highlight=False)
        try:
            yield
        finally:
            console.also = None


@contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Within, print nothing but results."""
    before = console.quiet
    console.quiet = before or quiet
    try:
        yield
    finally:
        console.quiet = before


@dataclass
class Plan:
    """The phases of a long work, in order, from which the time left over all of them follows.

    Each has a kind and a number of units. Units of a kind take as long as those that were seen, and until then as long
    as `guess` says in proportion to others.

    Args:
        phases: (kind, units) each.
        guess: What a unit of each kind may take, in proportion.
    """

    phases: list[tuple[str, float]]
    guess: dict[str, float]
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # units and seconds of each kind
    _now: tuple[str, float, float] | None = None
    _started: float = field(default_factory=lambda: time.monotonic())

    def begin(self, kind: str) -> None:
        """A phase of this kind begins: those before it were not needed."""
        kinds = [one for one, _ in self.phases]
        if kind in kinds:
            del self.phases[: kinds.index(kind) + 1]

    def measured(self, kind: str, units: float, seconds: float, ended: bool) -> None:
        """So many units of the phase at work took so long until now."""
        self._now = None if ended else (kind, units, seconds)
        if ended:
            known, took = self._seen.get(kind, (0.0, 0.0))
            self._seen[kind] = known + units, took + seconds

    def ahead(self) -> float:
        """Seconds that the phases to come will take."""
        seen = dict(self._seen)
        if self._now is not None:
            kind, units, seconds = self._now
            known, took = seen.get(kind, (0.0, 0.0))
            seen[kind] = known + units, took + seconds
        rates = {kind: took / units for kind, (units, took) in seen.items() if units > 0}
        slower = [rate / self.guess[kind] for kind, rate in rates.items() if self.guess.get(kind)]
        scale = sum(slower) / len(slower) if slower else 1.0
        return sum(units * rates.get(kind, scale * self.guess.get(kind, 0.0)) for kind, units in self.phases)

    def elapsed(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._started


_PLAN: ContextVar[Plan | None] = ContextVar("plan", default=None)


@contextmanager
def planned(plan: Plan) -> Iterator[None]:
    """Within, bars say how much time is left until the plan is done."""
    before = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(before)


def track(items: Iterable[T], *, total: int, what: str) -> Iterator[T]:
    """Pass `items` through, drawing a bar."""
    with bar(what, total) as advance:
        for item in items:
            yield item
            advance()


class Advance:
    """Moves a bar on, optionally with a word on how things stand."""

    def __init__(self, what: str, total: int, progress: Progress, task: TaskID, plan: Plan | None) -> None:
        self._what, self._total, self._progress, self._task, self._plan = what, total, progress, task, plan
        self._done, self._skipped, self._note = 0, 0, ""
        self._started = self._line = time.monotonic()

    def __call__(self, steps: int = 1, note: str | None = None) -> None:
        if self._done == 0 and steps and time.monotonic() - self._started < 1e-2:
            self._skipped = steps  # resumed from there
        self._done += steps
        self._note = self._note if note is None else note
        self._progress.update(self._task, advance=steps, note=self._note, left=self._times())
        # A line where an epoch has ended, or where nothing was said for long.
        waited = time.monotonic() - self._line
        if self._progress.disable and SPEAKS and waited >= (LINE_SECONDS if note is None else LINE_SECONDS / 4):
            self._say()

    def finish(self) -> None:
        """The phase is over."""
        if self._plan is not None:
            seconds = time.monotonic() - self._started
            self._plan.measured(self._what, self._done - self._skipped, seconds, ended=True)

    def _say(self) -> None:
        self._line = time.monotonic()
        note = f", {self._note}" if self._note else ""
        console.print(f"{self._what}: {self._done} of {self._total}{note}; {self._times()}", soft_wrap=True)

    def _times(self) -> str:
        own = time.monotonic() - self._started
        counted = self._done - self._skipped
        left = own / counted * (self._total - self._done) if counted > 0 else None
        if self._plan is None:
            return f"{_clock(own)} elapsed" + ("" if left is None else f", {_clock(left)} left")
        self._plan.measured(self._what, counted, own, ended=False)
        whole = "" if left is None else f", {_clock(left + self._plan.ahead())} left"
        return f"{_clock(self._plan.elapsed())} elapsed{whole}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def bar(what: str, total: int) -> Iterator[Advance]:
    """A bar that the body moves on by calling what it is given."""
    plan = _PLAN.get()
    if plan is not None:
        plan.begin(what)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[note]}"),
    )
    watched = SPEAKS and sys.stderr.isatty() and not console.quiet
    progress = Progress(*columns, console=console, disable=not watched)
    with progress if watched else nullcontext():  # rich before 14.1 ends a disabled one with an empty line
        advance = Advance(what, total, progress, progress.add_task(what, total=total, note="", left=""), plan)
        yield advance
        advance.finish()
