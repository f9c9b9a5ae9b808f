"""Progress bars: one over the whole of a plan, one each otherwise; lines instead of bars where nobody watches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

T = TypeVar("T")
# Of several processes, one speaks.
SPEAKS = os.environ.get("RANK", "0") == "0"
LINE_SECONDS = 10.0  # between two lines of a long epoch, or of what has none, where there is no bar


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


@dataclass(frozen=True)
class Phase:
    """A part of a long work that has a count of its own; as text it is its name.

    Attributes:
        kind: What its bar is called; all units of a kind take about as long.
        units: How many there are.
        part: Which of several alike it belongs to, such as "fold 2"; None: there is but one, or all share it.
    """

    kind: str
    units: float
    part: str | None = None

    def __str__(self) -> str:
        """The kind, and of which part."""
        return self.kind if self.part is None else f"{self.kind}, {self.part}"


@dataclass
class Plan:
    """The phases of a long work, in order, from which follow how much of it is done and the time left.

    Units of a kind take as long as those that were seen, and until then as long as `guess` says in proportion to
    others. How much is done follows from the guess alone, so that it never falls.

    Args:
        phases: Those to come.
        guess: What a unit of each kind may take, in proportion.

    Examples:
        >>> plan = Plan([Phase("Stage I", 8), Phase("Stage II", 30)], {"Stage I": 20.0, "Stage II": 1.0})
        >>> with planned(plan), bar("Stage I", 8) as advance:
        ...     advance(note="loss 1.5")
    """

    phases: list[Phase]
    guess: dict[str, float]
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # units and seconds of each kind
    _now: tuple[str, float, float] | None = None
    _started: float = field(default_factory=lambda: time.monotonic())

    def __post_init__(self) -> None:
        self._work = self._guessed(self.phases)

    def enter(self, part: str) -> None:
        """What comes now is of this part: what is planned before it for others was done earlier."""
        first = next((number for number, phase in enumerate(self.phases) if phase.part == part), 0)
        self.phases[:first] = [phase for phase in self.phases[:first] if phase.part is None]

    def begin(self, kind: str) -> Phase:
        """A phase of this kind begins: those before it were not needed. One that is not planned has no units."""
        kinds = [phase.kind for phase in self.phases]
        if kind not in kinds:
            return Phase(kind, 0)
        begun = self.phases[kinds.index(kind)]
        del self.phases[: kinds.index(kind) + 1]
        return begun

    def measured(self, kind: str, units: float, seconds: float, ended: bool) -> None:
        """So many units of the phase at work took so long until now."""
        self._now = None if ended else (kind, units, seconds)
        if ended:
            known, took = self._seen.get(kind, (0.0, 0.0))
            self._seen[kind] = known + units, took + seconds

    def done(self, phase: Phase, share: float) -> float:
        """How much of the work is done, from 0 to 1, with this share of the phase at work."""
        left = self._guessed(self.phases) + (1 - share) * self._guessed([phase])
        return 1 - left / self._work if self._work else 0.0

    def left(self, phase: Phase, units: float) -> float | None:
        """Seconds until all is done, with so many units of the phase at work to come; None while nothing tells."""
        rates = self._rates()
        if self._now is not None and self._now[1] > 0:
            return self._now[2] / self._now[1] * units + self._expected(self.phases, rates)
        return self._expected([Phase(phase.kind, units), *self.phases], rates) if rates else None

    def elapsed(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._started

    def _guessed(self, phases: Iterable[Phase]) -> float:
        return sum(phase.units * self.guess.get(phase.kind, 0.0) for phase in phases)

    def _rates(self) -> dict[str, float]:
        """Seconds that a unit of each kind took, of those that were seen."""
        seen = dict(self._seen)
        if self._now is not None:
            kind, units, seconds = self._now
            known, took = seen.get(kind, (0.0, 0.0))
            seen[kind] = known + units, took + seconds
        return {kind: took / units for kind, (units, took) in seen.items() if units > 0}

    def _expected(self, phases: Iterable[Phase], rates: dict[str, float]) -> float:
        slower = [rate / self.guess[kind] for kind, rate in rates.items() if self.guess.get(kind)]
        scale = sum(slower) / len(slower) if slower else 1.0
        return sum(phase.units * rates.get(phase.kind, scale * self.guess.get(phase.kind, 0.0)) for phase in phases)


class Advance:
    """Moves a bar on, optionally with a word on how things stand, which is given where an epoch has ended.

    Args:
        phase: What the bar is of.
        total: How many units it turned out to have.
        plan: What it is a part of.
        draw: Draws it; without that, a line is printed for every epoch, and where nothing was said for long.
    """

    def __init__(self, phase: Phase, total: int, plan: Plan | None, draw: Draw | None) -> None:
        self.phase, self.total, self.done, self.note = phase, total, 0, ""
        self._plan, self._draw, self._skipped = plan, draw, 0
        self._started = self._line = time.monotonic()

    def __call__(self, steps: int = 1, note: str | None = None) -> None:
        if self.done == 0 and steps and self._elapsed() < 1e-2:
            self._skipped = steps  # resumed from there
        self.done += steps
        self.note = self.note if note is None else note
        self._measure(ended=False)
        if self._draw is not None:
            self._draw(self)
        elif SPEAKS and (note is not None or time.monotonic() - self._line >= LINE_SECONDS):
            self._line = time.monotonic()
            note = f", {self.note}" if self.note else ""
            console.print(f"{self.phase}: {self.count()}{note}; {self.times()}", soft_wrap=True)

    def finish(self) -> None:
        """The phase is over."""
        self._measure(ended=True)

    def count(self) -> str:
        """How many units of how many are done."""
        return f"{self.done} of {self.total}"

    def times(self) -> str:
        """The time since the beginning and until the end, of the whole plan if there is one."""
        elapsed, left = self._elapsed() if self._plan is None else self._plan.elapsed(), self.left()
        return f"{_clock(elapsed)} elapsed" + ("" if left is None else f", {_clock(left)} left")

    def left(self) -> float | None:
        """Seconds until the end; None while nothing tells."""
        if self._plan is not None:
            return self._plan.left(self.phase, self.total - self.done)
        counted = self.done - self._skipped
        return self._elapsed() / counted * (self.total - self.done) if counted > 0 else None

    def _measure(self, ended: bool) -> None:
        if self._plan is not None:
            self._plan.measured(self.phase.kind, self.done - self._skipped, self._elapsed(), ended)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started


Draw = Callable[[Advance], None]
_PLANNED: ContextVar[tuple[Plan, Draw | None] | None] = ContextVar("planned", default=None)


@contextmanager
def planned(plan: Plan) -> Iterator[None]:
    """Within, there is one bar, over all of the plan, which says what is at work and how much time is left."""
    with _whole_bar(plan) as draw:
        before = _PLANNED.set((plan, draw))
        try:
            yield
        finally:
            _PLANNED.reset(before)


def enter(part: str) -> None:
    """What comes now is of this part of the plan, if there is one: see `Plan.enter`."""
    plan, _ = _PLANNED.get() or (None, None)
    if plan is not None:
        plan.enter(part)


def track(items: Iterable[T], *, total: int, what: str) -> Iterator[T]:
    """Pass `items` through, drawing a bar."""
    with bar(what, total) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def bar(what: str, total: int) -> Iterator[Advance]:
    """A bar that the body moves on by calling what it is given; in a plan, a phase of the bar that is there."""
    plan, whole = _PLANNED.get() or (None, None)
    phase = Phase(what, total) if plan is None else plan.begin(what)
    with _own_bar(what, total) if plan is None else nullcontext(whole) as draw:
        advance = Advance(phase, total, plan, draw)
        advance(0)
        yield advance
        advance.finish()


def _watched() -> bool:
    """Whether there is a terminal to draw on."""
    return SPEAKS and console.file.isatty() and not console.quiet


@contextmanager
def _own_bar(what: str, total: int) -> Iterator[Draw | None]:
    if not _watched():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[times]}"),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total, note="", times="")
        yield lambda advance: progress.update(task, completed=advance.done, note=advance.note, times=advance.times())


@contextmanager
def _whole_bar(plan: Plan) -> Iterator[Draw | None]:
    if not _watched():
        yield None
        return
    columns = (
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[time]}"),
        _GivingWay("name"),
        TextColumn("{task.fields[count]}"),
        _GivingWay("note"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=1.0, visible=False, time="", name="", count="", note="")

        def draw(advance: Advance) -> None:
            share = min(1.0, advance.done / advance.total) if advance.total else 1.0
            done, left = plan.done(advance.phase, share), advance.left()
            time_left = f"{_clock(plan.elapsed())} elapsed" if left is None else f"{_clock(left)} left"
            name, count = f"{advance.phase}:", advance.count()
            progress.update(
                task, completed=done, visible=True, time=time_left, name=name, count=count, note=advance.note
            )

        yield draw
        progress.update(task, completed=1.0, time=f"{_clock(plan.elapsed())} elapsed")


class _GivingWay(ProgressColumn):
    """A text of the task that is cut where the terminal is narrow; of several the longest first."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def render(self, task: Task) -> Text:
        return Text(task.fields[self._name], no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
