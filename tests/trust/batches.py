"""Many cases one after the other in one forked process, each with a limit of time and of memory, and judged there."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from erpcnet.errors import InputError
from trust.cases import Row, clean, command, generator, listing

SECONDS = 20.0  # that a case may take
LATE = 5.0  # seconds after which a case that does not answer to the alarm is killed
MEMORY = 700 * 2**20  # bytes that a case may take at its peak
ADDRESSES = 6 * 2**30  # bytes that a batch may ask the system for
LONGEST = 2100  # characters of a sentence
OUT_OF_MEMORY = "erpcnet: out of memory"


class Trial(NamedTuple):
    """One thing that is handed over.

    Attributes:
        what: It, in a line.
        act: What hands it over; it returns the exit code of a command, or what a function of the library returned.
        wrong: Whether it must be refused; otherwise it may be.
        sane: What is wrong with what came of it, where it was accepted.
        library: Whether a function is called, which raises, and not a command, which ends with a code.
        wanting: Whether a command may end with 1, checked and found wanting.
        several: Whether it may say one sentence for each of several files.
        heavy: Whether it may need more memory than there is, and say so.
        leaves: Whether it may leave files although it refused.
    """

    what: str
    act: Callable[[], Any]
    wrong: bool = True
    sane: Callable[[Any, str], str | None] = lambda result, out: None
    library: bool = False
    wanting: bool = False
    several: bool = False
    heavy: bool = False
    leaves: bool = False


Maker = Callable[[Path, np.random.Generator], Trial]


def cli(what: str, words: Sequence[object], **options: Any) -> Trial:
    """A command line of the package."""
    return Trial(what, command([str(word) for word in words]), **options)


class _Late(BaseException):
    """The alarm of a case."""


def run_batch(row: Row, makers: Sequence[Maker], seed: int, folder: Path, seconds: float = SECONDS) -> Row:
    """Try all cases of a row, in as few processes as their ends allow.

    Args:
        row: Where they are counted.
        makers: What makes each, in an empty folder and with draws of its own.
        seed: Of the draws.
        folder: An empty one for everything that is written.
        seconds: That a case may take.
    """
    place, slowest = 0, (0.0, "")
    while place < len(makers):
        for number, what, problem, took in _fork(row.kind, makers, place, seed, folder, seconds):
            row.count(problem, f"{number} ({what})")
            place, slowest = number + 1, max(slowest, (took, what))
    row.note = f"the slowest {slowest[0]:.1f} s"
    if "TRUST_SLOWEST" in os.environ:
        print(f"{row.kind}: {slowest}", file=sys.stderr)
    return row


def _fork(
    kind: str, makers: Sequence[Maker], first: int, seed: int, folder: Path, seconds: float
) -> Iterator[tuple[int, str, str | None, float]]:
    """The verdicts from a process that begins with case `first`; where it dies, that is the last one's."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _as_child(kind, makers, first, seed, folder, seconds, writing)
    os.close(writing)
    number, what = first, "its preparation"
    done, started = False, time.monotonic()
    for line in _lines(reading, seconds + LATE + 5):
        if line is None:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            break
        told = json.loads(line)
        if told[0] == "begin":
            number, what, done, started = told[1], told[2], False, time.monotonic()
        else:
            done = True
            yield number, what, told[1], time.monotonic() - started
            number += 1
    os.close(reading)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if not done or (code and number < len(makers)):
        died = f"it died of {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
        yield number, what, "it hung, and was killed" if code == -signal.SIGKILL else died, time.monotonic() - started


def _lines(reading: int, seconds: float) -> Iterator[bytes | None]:
    """The lines of a pipe until it closes; None when there was none for so long."""
    import select

    rest = b""
    while True:
        ready, _, _ = select.select([reading], [], [], seconds)
        if not ready:
            yield None
            return
        more = os.read(reading, 65536)
        if not more:
            return
        *whole, rest = (rest + more).split(b"\n")
        yield from whole


def _as_child(
    kind: str, makers: Sequence[Maker], first: int, seed: int, folder: Path, seconds: float, writing: int
) -> None:  # never returns
    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = _status("VmSize") + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        # What libraries in C print goes where nobody looks; it is not Python's.
        gc.freeze()  # what is imported is no case's garbage
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        for number in range(first, len(makers)):
            work = clean(folder / "work")
            os.chdir(work)
            trial = makers[number](work, generator(seed, kind, number))
            what = trial.what.encode("ascii", "backslashreplace").decode()[:200]
            os.write(writing, json.dumps(["begin", number, what]).encode() + b"\n")
            problem = _try(trial, work, seconds)
            os.write(writing, json.dumps(["end", problem]).encode() + b"\n")
        code = 0
    except BaseException:
        told = traceback.format_exc()[-1500:]
        with suppress(BaseException):
            os.write(writing, json.dumps(["end", f"the campaign itself failed: {told}"]).encode() + b"\n")
            code = 0  # the next process goes on with the next case
    finally:
        os._exit(code)


def _try(trial: Trial, work: Path, seconds: float) -> str | None:
    """Hand it over, and say what did not hold."""
    before = listing(work)
    out, err = io.StringIO(), io.StringIO()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is counted from here
    started, resident = time.monotonic(), _status("VmRSS")
    result: Any = None
    error: BaseException | None = None
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)
            result = trial.act()
    except BaseException as caught:
        error = caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(work.parent)
    if isinstance(error, _Late):
        return f"it hung, and was stopped after {time.monotonic() - started:.0f} s"
    memory = _status("VmHWM") - resident
    if memory > MEMORY and not trial.heavy:
        return f"it took {memory >> 20} MiB"
    problem = _of_library(trial, result, error) if trial.library else _of_command(trial, result, error, out, err)
    if problem is None and not trial.library and result == 2 and not trial.leaves:
        left = sorted(set(listing(work)) - set(before))
        problem = f"it refused, and left {left[:4]}" if left else None
    return problem


def _ring(*_: object) -> None:
    raise _Late


def _of_library(trial: Trial, result: Any, error: BaseException | None) -> str | None:
    if isinstance(error, InputError):
        told = str(error)
        return None if told.strip() and len(told) <= LONGEST else f"a sentence of {len(told)} characters"
    if error is not None:
        return f"a traceback: {_last(error)}"
    return "accepted in silence" if trial.wrong else _judged(trial, result, "")


def _of_command(trial: Trial, code: Any, error: BaseException | None, out: io.StringIO, err: io.StringIO) -> str | None:
    if error is not None:
        return f"a traceback: {_last(error)}"
    said, complained = out.getvalue(), err.getvalue()
    odd = next((one for one in said + complained if not one.isprintable() and one not in "\n\t"), None)
    if odd is not None:
        return f"it printed {odd!r}"
    if "Warning: " in complained:
        return f"a warning of Python: {complained.strip()[-300:]}"
    sentences = [line for line in complained.splitlines() if line.startswith("erpcnet: ")]
    if sentences and sentences[0].startswith(OUT_OF_MEMORY) and not trial.heavy:
        return "it ran out of memory"
    if code not in ((0, 1, 2) if trial.wanting else (0, 2)):
        return f"exit code {code}: {complained.strip()[-200:]}"
    if code == 2 or (code == 1 and sentences):
        if not sentences or complained.strip().splitlines()[-1] != sentences[-1]:
            return f"exit code {code} without a sentence at the end: {complained.strip()[-300:]!r}"
        if len(sentences) > 1 and not trial.several:
            return f"{len(sentences)} sentences: {complained.strip()[-300:]!r}"
        return next((wrong for wrong in map(_sentence, sentences) if wrong), None)
    if code == 0 and trial.wrong:
        return f"accepted in silence: {said.strip()[-200:]!r}"
    return _judged(trial, code, said) if code == 0 else None


def _judged(trial: Trial, result: Any, out: str) -> str | None:
    try:
        return trial.sane(result, out)
    except Exception as error:
        return f"what came of it cannot be judged: {_last(error)}"


def _sentence(text: str) -> str | None:
    """What is wrong with a sentence that refuses."""
    if not text.strip() or len(text) > LONGEST:
        return f"a sentence of {len(text)} characters"
    if "\n" in text.strip():
        return f"more than one line: {text[:200]!r}"
    if any(name in text for name in ("Traceback", "Error(", "object at 0x", "<class '", "NoneType")):
        return f"a sentence of Python's: {text[:200]!r}"
    return None if text.rstrip().endswith((".", ")", "?", "!")) else f"a sentence without an end: {text[-200:]!r}"


def _last(error: BaseException) -> str:
    """An error, and where in the package it came from."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "/erpcnet/" in one.filename]
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{where}"


def _status(name: str) -> int:
    """Bytes of this process, as the system counts them under that name."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) * 1024
