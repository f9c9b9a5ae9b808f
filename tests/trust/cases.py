"""What the campaigns share: a row of the table, cases in processes of their own, and small things to try on."""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

Size = Literal["full", "short"]
SECONDS = 60.0  # that a case may take, unless it says otherwise
MEMORY = 1500 * 2**20  # bytes that a case may take beyond what it starts with
NOBODY = 65534


@dataclass
class Row:
    """A line of the table: how often something was tried, and how often the promise held."""

    campaign: str
    kind: str
    promise: str
    tried: int = 0
    held: int = 0
    problems: list[str] = field(default_factory=list)
    note: str = ""

    def count(self, problem: str | None, case: object = "") -> None:
        """One more case; None says that the promise held."""
        self.tried += 1
        if problem is None:
            self.held += 1
        else:
            self.problems.append(f"{self.campaign}, {self.kind}, case {case or self.tried}: {problem}")


class Ended(NamedTuple):
    """How a case ended: `code` of its process, negative for a signal, None if it had to be stopped."""

    code: int | None
    out: str
    err: str
    seconds: float
    memory: int  # bytes beyond what it started with, at most


def in_child(
    work: Callable[[], int | None],
    folder: Path,
    seconds: float = SECONDS,
    memory: int | None = MEMORY,
    user: int | None = None,
) -> Ended:
    """Run something in a process of its own, which has everything imported already, and wait for its end.

    Args:
        work: What to do; what it returns is the exit code.
        folder: An existing one, for what the process prints.
        seconds: After which it is killed.
        memory: What it may allocate; None: anything.
        user: Who it is, if the tests run as root.
    """
    out, err = folder / ".case-out", folder / ".case-err"
    started = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _as_child(work, out, err, memory, user)
    status, usage = _wait(child, started + seconds)
    took = time.monotonic() - started
    told, complained = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
    out.unlink()
    err.unlink()
    code = None if status is None else os.waitstatus_to_exitcode(status)
    grown = max(0, usage - _resident())
    return Ended(code, told, complained, took, grown)


def _as_child(
    work: Callable[[], int | None], out: Path, err: Path, memory: int | None, user: int | None
) -> None:  # never returns
    code = 70
    try:
        os.setsid()
        # As in a shell, whatever the campaign was started by.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(one, signal.SIG_DFL)
        for stream, path in ((1, out), (2, err)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
            os.dup2(file, stream)
            os.close(file)
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        if memory is not None:
            limit = _virtual() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if user is not None and os.geteuid() == 0:
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        code = work() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, deadline: float) -> tuple[int | None, int]:
    """The status of a process, None if it had to be killed, and its peak of memory in bytes."""
    pause = 0.002
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return status, usage.ru_maxrss * 1024
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            return None, usage.ru_maxrss * 1024
        time.sleep(pause)
        pause = min(1.2 * pause, 0.05)


def left_running(session: int) -> list[int]:
    """The processes of a session that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            after = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(after[3]) == session and after[0] != "Z":
                found.append(int(entry.name))
    return found


def _virtual() -> int:
    return _memory_pages(0)


def _resident() -> int:
    return _memory_pages(1)


def _memory_pages(column: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[column]) * resource.getpagesize()


def command(words: Sequence[str]) -> Callable[[], int]:
    """What runs a command line of the package."""

    def run() -> int:
        from erpcnet.cli import main

        return main(list(words))

    return run


def complaint(ended: Ended, codes: Iterable[int] = (0, 1, 2)) -> str | None:
    """What is wrong with how a command ended, whatever it was given; None if nothing is."""
    if ended.code is None:
        return f"it hung, and was stopped after {ended.seconds:.0f} s"
    if ended.code < 0:
        return f"it died of {signal.Signals(-ended.code).name}"
    if "Traceback (most recent call last)" in ended.err or "Traceback (most recent call last)" in ended.out:
        return f"a traceback that ends in: {ended.err.strip().splitlines()[-1][:200] if ended.err.strip() else ''}"
    if ended.code not in codes:
        return f"exit code {ended.code}: {ended.err.strip()[-200:]}"
    if ended.code == 2 and sum(line.startswith("erpcnet: ") for line in ended.err.splitlines()) < 1:
        return f"refused without a sentence: {ended.err.strip()[-200:]}"
    if ended.code == 2 and not ended.err.strip().splitlines()[-1].startswith("erpcnet: "):
        return f"more than one sentence: {ended.err.strip()[-300:]}"
    return None


def refused(ended: Ended) -> str | None:
    """What is wrong, if something was to be refused in one sentence."""
    wrong = complaint(ended)
    return wrong or (None if ended.code == 2 else f"accepted in silence (exit code {ended.code}): {ended.out[-200:]}")


def import_all(modules: Iterable[str]) -> None:
    """Import what a first case imported, so that no other waits for it."""
    for name in modules:
        if name not in sys.modules:
            with suppress(BaseException):
                importlib.import_module(name)


def told_modules() -> str:
    return "\n".join(sorted(name for name in sys.modules if not name.startswith("__")))


def clean(folder: Path) -> Path:
    """An empty folder of that name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def listing(folder: Path) -> list[str]:
    """Every file and folder below a folder; TensorBoard's files by their folder alone, and torch's own not at all."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return sorted({name.partition("events.out.")[0] for name in names if "torchinductor" not in name})


# Trainings of seconds on drawn creatures: every phase is there, and little in each.
TINY_FLAGS = (
    *("--config", "creatures", "--data.image_size", "64", "--data.cache_size", "72", "--stage1.epochs", "2"),
    *("--stage1.batch_size", "16", "--stage2.epochs", "2", "--stage2.minibatch_size", "16", "--evaluation.folds", "1"),
    *("--checkpoint_minutes", "0", "--model.steps", "3", "--model.policy.width", "32", "--model.policy.memory", "16"),
)


def draw_tiny(folder: Path) -> Path:
    """A dataset of 16 classes and 80 pictures."""
    from erpcnet.data.creatures import make_creatures

    return make_creatures(folder, tiny_settings(), workers=1)


def tiny_settings() -> Any:
    """Of that dataset."""
    from erpcnet.data.creatures import CreatureSettings

    return CreatureSettings(
        families=8, siblings=2, unseen_families=2, train_images=3, test_images=2, unseen_images=5, size=64
    )


def link_tree(source: Path, target: Path, without: Sequence[str] = ()) -> Path:
    """A copy of a folder whose files are links to the same bytes."""
    shutil.copytree(source, target, copy_function=os.link, ignore=shutil.ignore_patterns(*without))
    return target


def generator(seed: int, *more: object) -> np.random.Generator:
    """Draws that depend on the seed, and on what they are for."""
    import zlib

    return np.random.default_rng([seed, *(zlib.crc32(str(one).encode()) for one in more)])


def temporary() -> Iterator[Path]:
    """A folder for a campaign, gone in the end."""
    folder = Path(tempfile.mkdtemp(prefix="trust-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
