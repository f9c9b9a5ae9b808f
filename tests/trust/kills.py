"""Commands that end in the middle of everything: the same command again ends as if nothing had happened."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trust.cases import (
    TINY_FLAGS,
    Ended,
    Row,
    Size,
    clean,
    command,
    complaint,
    draw_tiny,
    generator,
    import_all,
    in_child,
    left_running,
    listing,
    tiny_settings,
    told_modules,
)
from trust.sabotage import Action, Moment, Saboteur, read_moments

PROMISE = "killed anywhere, the same command ends with the same weights, to the bit, and nothing is left behind"
SHORT_KILLS = 4  # of trainings in the short form; in the full one every place is killed
TIMES = ("seconds", "started", "revision")  # of run.json, which may differ between two runs
GROUPS = {
    "inside a write": ("open", "write"),
    "between a write and its rename": ("fsync", "replace", "rename"),
    "while cleaning up": ("unlink", "remove", "rmdir", "mkdir"),
    "in every phase of training": ("phase", "progress", "step"),
}


class Scene(NamedTuple):
    """A command, tried again and again in a folder that is made anew."""

    folder: Path
    prepare: Callable[[Path], None]
    work: Callable[[Path], int | None]
    outcome: Callable[[Path], dict[str, object]]  # what must be the same

    def fresh(self) -> Path:
        """The folder as it is before the command."""
        self.prepare(clean(self.folder / "work"))
        clean(self.folder / "work" / "tmp")
        return self.folder / "work"

    def run(
        self, at: int | None = None, action: Action = "kill", notes: Path | None = None, seconds: float = 120.0
    ) -> Ended:
        """Run the command in the folder as it is, with an end at the moment `at`."""
        work = self.folder / "work"

        def act() -> int | None:
            _use_tmp(work / "tmp")
            if at is not None or notes is not None:
                Saboteur(work, at, action, notes).install()
            code = self.work(work)
            if notes is not None:
                notes.with_suffix(".modules").write_text(told_modules())
            return code

        return in_child(act, self.folder, seconds, memory=None)

    def expected(self) -> tuple[list[Moment], dict[str, object]]:
        """The moments of an uninterrupted run, and what it leaves."""
        notes = self.folder / "notes"
        self.fresh()
        ended = self.run(notes=notes)
        if ended.code != 0:
            raise RuntimeError(f"the uninterrupted command ended with {ended.code}: {ended.err[-2000:]}")
        import_all(notes.with_suffix(".modules").read_text().splitlines())
        return read_moments(notes), self.outcome(self.folder / "work")


def _use_tmp(folder: Path) -> None:
    import tempfile

    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)


def run(size: Size, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of this campaign."""
    random = generator(seed, "kills")
    data = draw_tiny(folder / "creatures")
    scene = training_scene(clean(folder / "training"), data)
    moments, expected = scene.expected()
    kills = len(set(moments)) if size == "full" else SHORT_KILLS
    yield from killed_trainings(scene, moments, expected, kills, random)
    if size == "full":
        yield killed_in_a_row(scene, moments, expected, random, 6)
    yield signalled(scene, moments, expected, random, 12 if size == "full" else 1)
    yield full_disk(scene, moments, expected, random, 16 if size == "full" else 2)
    yield two_at_once(scene, moments, expected, random, 4 if size == "full" else 1)
    if size == "full":
        yield full_file_system(folder, data)
        finished = finished_run(scene, folder)
        for name, other in other_scenes(folder, data, finished):
            yield killed_command(name, other, random)
        yield killed_worker(folder, random)


def training_scene(folder: Path, data: Path) -> Scene:
    """A training with validation, on a dataset without a cache."""

    def prepare(work: Path) -> None:
        shutil.copytree(data, work / "data", ignore=shutil.ignore_patterns(".erpcnet-cache"))

    def train(work: Path) -> int:
        words = ["train", *TINY_FLAGS, "--dataset", str(work / "data"), "--out", str(work / "run")]
        return command(words)()

    return Scene(folder, prepare, train, run_outcome)


def run_outcome(work: Path) -> dict[str, object]:
    """What a training leaves, but for the times in it."""
    run = work / "run"
    kept: dict[str, object] = {"files": listing(work)}
    for name in ("model.safetensors", "config.yaml", "localities.png"):
        kept[name] = digest(run / name)
    for name in ("metrics.json", "validation.json", "run.json"):
        with suppress(OSError, ValueError):
            values = json.loads((run / name).read_text())
            kept[name] = {key: value for key, value in values.items() if key not in TIMES}
    return kept


def digest(path: Path) -> str | None:
    """Of a file's bytes; None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def difference(found: dict[str, object], expected: dict[str, object]) -> str | None:
    """What is not as it was to be."""
    for name, value in expected.items():
        if found.get(name) != value:
            if name == "files":
                more, less = (sorted(set(a) - set(b)) for a, b in ((found[name], value), (value, found[name])))  # type: ignore[call-overload]
                return f"left behind {more[:5]}, missing {less[:5]}"
            return f"{name} differs: {str(found.get(name))[:160]} in place of {str(value)[:160]}"
    return None


def choose(moments: Sequence[Moment], count: int, random: np.random.Generator) -> list[int]:
    """So many moments: each place is there once before any is there twice, and kinds take turns."""
    places: dict[Moment, list[int]] = {}
    for number, moment in enumerate(moments):
        places.setdefault(moment, []).append(number)
    left = [list(map(int, random.permutation(own))) for own in places.values()]
    chosen: list[int] = []
    while left and len(chosen) < count:
        chosen += _by_turns([own.pop() for own in left], moments, random)
        left = [own for own in left if own]
    return sorted(chosen[:count])


def _by_turns(numbers: Sequence[int], moments: Sequence[Moment], random: np.random.Generator) -> list[int]:
    """Moments in another order: of every kind one, then of every kind another, so that the first few are of each."""
    kinds: dict[str, list[int]] = {}
    for number in map(int, random.permutation(numbers)):
        kinds.setdefault(_group(moments[number].kind), []).append(number)
    return [number for turn in zip_longest(*kinds.values()) for number in turn if number is not None]


def _group(kind: str) -> str:
    return next(name for name, kinds in GROUPS.items() if kind in kinds)


def killed_trainings(
    scene: Scene, moments: Sequence[Moment], expected: dict[str, object], count: int, random: np.random.Generator
) -> Iterator[Row]:
    """One kill each, then the same command again."""
    rows = {name: Row("kills", name, PROMISE) for name in GROUPS}
    chosen = choose(moments, count, random)
    for at in chosen:
        problem = _killed_once(scene, at, expected)
        rows[_group(moments[at].kind)].count(problem, f"{at} ({': '.join(moments[at])})")
    for name, row in rows.items():
        own = [moment for moment in moments if moment.kind in GROUPS[name]]
        row.note = places_of([moments[at] for at in chosen if moments[at] in own], own)
        yield row


def places_of(chosen: Sequence[Moment], moments: Sequence[Moment]) -> str:
    """At how many of the places something was tried."""
    return f"{len(set(chosen))} of {len(set(moments))} places"


def _killed_once(scene: Scene, at: int, expected: dict[str, object], again: Sequence[int] = ()) -> str | None:
    scene.fresh()
    for place in (at, *again):
        ended = scene.run(place)
        if ended.code == 0:  # it had no moment of that number any more
            return difference(scene.outcome(scene.folder / "work"), expected)
        if ended.code != -signal.SIGKILL:
            return f"it was not killed, but ended with {ended.code}: {ended.err[-300:]}"
    last = scene.run()
    wrong = complaint(last, (0,))
    return wrong or difference(scene.outcome(scene.folder / "work"), expected)


def killed_in_a_row(
    scene: Scene, moments: Sequence[Moment], expected: dict[str, object], random: np.random.Generator, count: int
) -> Row:
    """Killed again and again, the resumed one too."""
    row = Row("kills", "several times in a row", PROMISE)
    for case in range(count):
        # A resumed training has fewer moments ahead of it than a new one.
        places = [int(random.integers(len(moments))), *map(int, random.integers(5, 60, size=4))]
        row.count(_killed_once(scene, places[0], expected, places[1:]), f"{case} ({places})")
    return row


def signalled(
    scene: Scene, moments: Sequence[Moment], expected: dict[str, object], random: np.random.Generator, count: int
) -> Row:
    """Ctrl-C and the signals of a system that shuts down."""
    row = Row("kills", "TERM, INT, HUP, QUIT", "a signal ends it in a line at most, and the same command resumes it")
    signals: tuple[Action, ...] = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    for case, at in enumerate(choose(moments, count, random)):
        scene.fresh()
        name = signals[case % len(signals)]
        ended = scene.run(at, name)
        allowed = (130,) if name == "SIGINT" else (-getattr(signal, name),)
        problem = None if ended.code in allowed else f"{name} ended it with {ended.code}: {ended.err[-300:]}"
        if "Traceback" in ended.err:
            problem = f"a traceback after {name}: {ended.err[-400:]}"
        problem = problem or complaint(scene.run(), (0,)) or difference(scene.outcome(scene.folder / "work"), expected)
        row.count(problem, f"{at} ({name}, {': '.join(moments[at])})")
    return row


def full_disk(
    scene: Scene, moments: Sequence[Moment], expected: dict[str, object], random: np.random.Generator, count: int
) -> Row:
    """Every write from one on fails for want of room; then there is room again."""
    row = Row("kills", "a write finds the disk full", "one sentence; with room again, the same command ends the same")
    writes = [number for number, moment in enumerate(moments) if moment.kind in ("open", "write")]
    for at in sorted(map(int, random.choice(writes, size=min(count, len(writes)), replace=False))):
        scene.fresh()
        ended = scene.run(at, "full")
        problem = complaint(ended, (2,))
        if problem is None and "No space left" not in " ".join(ended.err.split()):
            problem = f"the sentence does not name the full disk: {ended.err[-200:]}"
        problem = problem or complaint(scene.run(), (0,)) or difference(scene.outcome(scene.folder / "work"), expected)
        row.count(problem, f"{at} ({': '.join(moments[at])})")
    return row


def two_at_once(
    scene: Scene, moments: Sequence[Moment], expected: dict[str, object], random: np.random.Generator, count: int
) -> Row:
    """A second training on one --out, while the first is held in the middle."""
    row = Row("kills", "two trainings on one --out", "the second is refused in a sentence, the first is not disturbed")
    # The folder is claimed once the images are decoded.
    first = next(number for number, moment in enumerate(moments) if moment.kind == "step")
    for at in map(int, random.integers(first, len(moments) - 60, size=count)):
        scene.fresh()
        problem = _two_at_once(scene, at, expected)
        row.count(problem, f"{at} ({': '.join(moments[at])})")
    return row


def _two_at_once(scene: Scene, at: int, expected: dict[str, object]) -> str | None:
    first = os.fork()
    if first == 0:
        code = 70
        try:
            code = scene.run(at, "stop").code or 0
        finally:
            os._exit(code & 0xFF)
    stopped = _stopped_child(first)
    if stopped is None:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        return "the first training did not come to the place where it is held"
    second = Scene(clean(scene.folder / "second"), scene.prepare, lambda _: scene.work(scene.folder / "work"), listed)
    clean(second.folder / "work" / "tmp")
    refusal = second.run()
    os.kill(stopped, signal.SIGCONT)
    _, status = os.waitpid(first, 0)
    problem = complaint(refusal, (2,))
    if problem is None and "another training is at work" not in " ".join(refusal.err.split()):
        problem = f"the second one was told: {refusal.err[-300:]}"
    if os.waitstatus_to_exitcode(status) != 0:
        problem = problem or f"the first one ended with {os.waitstatus_to_exitcode(status)}"
    return problem or difference(scene.outcome(scene.folder / "work"), expected)


def _stopped_child(parent: int, seconds: float = 60.0) -> int | None:
    """The child of a process that has stopped itself."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(above) == parent and state in "Tt":
                    return int(entry.name)
        time.sleep(0.02)
    return None


def finished_run(scene: Scene, folder: Path) -> Path:
    """A run to try other commands on."""
    scene.fresh()
    scene.run()
    kept = folder / "finished"
    shutil.copytree(scene.folder / "work" / "run", kept)
    return kept


def other_scenes(folder: Path, data: Path, finished: Path) -> Iterator[tuple[str, Scene]]:
    """Other commands that write."""

    def with_run(work: Path) -> None:
        shutil.copytree(data, work / "data", ignore=shutil.ignore_patterns(".erpcnet-cache"))
        shutil.copytree(finished, work / "run")

    def words(*given: str) -> Callable[[Path], int]:
        return lambda work: command([word.replace("WORK", str(work)) for word in given])()

    def picture(work: Path) -> str:
        return str(next(iter(sorted((work / "data" / "images").glob("*/*.png")))))

    def make(work: Path) -> None:
        from erpcnet.data.creatures import make_creatures

        if not (work / "drawn" / "attributes.csv").exists():
            make_creatures(work / "drawn", tiny_settings(), workers=2)

    def pictures_alone(work: Path) -> None:
        shutil.copytree(data / "images", work / "own")

    yield "data make", Scene(clean(folder / "make"), lambda _: None, make, contents)
    yield "data init", Scene(clean(folder / "init"), pictures_alone, words("data", "init", "WORK/own"), contents)
    evaluate = words("evaluate", "WORK/run", "--dataset", "WORK/data", "--json")
    yield "evaluate", Scene(clean(folder / "evaluate"), with_run, evaluate, contents)
    analyse = words("analyse", "WORK/run", "--dataset", "WORK/data", "--overwrite")
    yield "analyse", Scene(clean(folder / "analyse"), with_run, analyse, contents)

    def explain(work: Path) -> int:
        out = work / "why.html"
        return 0 if out.exists() else command(["explain", str(work / "run"), picture(work), "--out", str(out)])()

    yield "explain", Scene(clean(folder / "explain"), with_run, explain, contents)

    def export(work: Path) -> int:
        out = work / "model.pt2"
        return 0 if out.exists() else command(["export", str(work / "run"), "--out", str(out)])()

    yield "export", Scene(clean(folder / "export"), with_run, export, listed)


def contents(work: Path) -> dict[str, object]:
    """Every file with its bytes, but for what tells the time."""
    kept: dict[str, object] = {"files": listing(work)}
    for path in sorted(work.rglob("*")):
        if path.is_file() and path.suffix not in (".html", ".lock"):
            kept[path.relative_to(work).as_posix()] = digest(path)
    return kept


def listed(work: Path) -> dict[str, object]:
    """The files, where their bytes tell the time."""
    return {"files": listing(work)}


def killed_command(name: str, scene: Scene, random: np.random.Generator) -> Row:
    """Kills of another command than train, one at each place."""
    row = Row("kills", f"`{name}`", "killed anywhere, the same command ends the same; nothing is left or runs on")
    moments, expected = scene.expected()
    chosen = choose(moments, len(set(moments)), random)
    row.note = places_of([moments[at] for at in chosen], moments)
    for at in chosen:
        scene.fresh()
        sessions = _sessions()
        ended = scene.run(at)
        problem = None if ended.code == -signal.SIGKILL else f"not killed, but {ended.code}: {ended.err[-300:]}"
        problem = problem or _orphans(sessions)
        problem = problem or complaint(scene.run(), (0,)) or difference(scene.outcome(scene.folder / "work"), expected)
        row.count(problem, f"{at} ({': '.join(moments[at])})")
    return row


def _sessions() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*")}


def _orphans(before: set[int], seconds: float = 10.0) -> str | None:
    """Processes of sessions that began after `before`, once they had time to end."""
    deadline = time.monotonic() + seconds
    running: list[int] = []
    while time.monotonic() < deadline:
        began = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                own = Path(f"/proc/{entry.name}/environ").read_bytes() == Path("/proc/self/environ").read_bytes()
                if own and int(words[3]) not in before and int(words[3]) != os.getsid(0):
                    began.add(int(words[3]))
        running = [one for session in began for one in left_running(session)]
        if not running:
            return None
        time.sleep(0.1)
    for process in running:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return f"{len(running)} processes run on"


def killed_worker(folder: Path, random: np.random.Generator) -> Row:
    """One of the processes that draw is killed."""
    row = Row("kills", "a worker of `data make`", "one sentence, and nothing is left behind")

    def draw(work: Path) -> int:
        from erpcnet.data import creatures

        whole, number = creatures.draw_creature, [0]

        def draw_creature(*given: Any) -> Any:
            number[0] += 1
            if number[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given)

        creatures.draw_creature = draw_creature  # type: ignore[assignment]
        return command(["data", "make", "creatures", str(work / "drawn")])()

    for case in range(3):
        limit = int(random.integers(1, 20))
        scene = Scene(clean(folder / "worker"), lambda _: None, draw, listed)
        scene.fresh()
        ended = scene.run()
        problem = complaint(ended, (2,))
        left = [name for name in listing(scene.folder / "work") if name != "tmp"]
        row.count(problem or (f"left behind {left[:5]}" if left else None), case)
    return row


def full_file_system(folder: Path, data: Path) -> Row:
    """A file system of so little room, where one can be mounted."""
    row = Row("kills", "a file system without room", "one sentence; with room again, the same command ends the same")
    place = clean(folder / "small")
    options = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True, check=False).returncode != 0:
        row.note = "not tried: no file system can be mounted here"
        return row
    try:
        for kib in (300, 700, 1500, 2600, 4200, 6500):
            _small(place, kib)
            for path in place.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            row.count(_without_room(place, data, folder, "cache" if kib < 2000 else "run"), f"{kib} KiB")
            _small(place, 64 * 1024)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
    return row


def _small(place: Path, kib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kib}k", str(place)], check=False, capture_output=True)


def _without_room(place: Path, data: Path, folder: Path, what: str) -> str | None:
    """The cache, or the folder of the run, lies where there is little room."""
    other = clean(folder / "roomy")
    shutil.copytree(data, other / "data", ignore=shutil.ignore_patterns(".erpcnet-cache"))
    cache, out = (place, other) if what == "cache" else (other, place)
    words = ["train", *TINY_FLAGS, "--dataset", str(other / "data"), "--out", str(out / "run")]

    def train() -> int:
        os.environ["ERPCNET_CACHE"] = str(cache / "cache")
        return command(words)()

    ended = in_child(train, folder, 120, memory=None)
    problem = complaint(ended, (0, 2))
    if problem is None and ended.code == 2 and "No space left" not in " ".join(ended.err.split()):
        problem = f"the sentence does not name the full disk: {ended.err[-200:]}"
    _small(place, 64 * 1024)
    return problem or (complaint(in_child(train, folder, 120, memory=None), (0,)) if ended.code else None)
