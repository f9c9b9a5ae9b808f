"""Counts the moments of a command at which it can die, and ends it, or fills its disk, at one of them."""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

Action = Literal["kill", "stop", "full", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]
RANDOM = (
    (re.compile(r"\.building-[^/]*"), ".building"),
    (re.compile(r"events\.out\.[^/]*"), "events"),
    (re.compile(r"/tmp[a-z0-9_]{6,}"), "/tmp"),
    (re.compile(r"\d{3,}|[0-9a-f]{20}"), "*"),
)


class Moment(NamedTuple):
    """A place where a process can die: what it does then, and to which file or in which phase."""

    kind: str
    where: str


class Saboteur:
    """Within a process of its own: counts moments, and acts at the one of number `at`, counted from 0.

    Args:
        root: Files below it are watched.
        at: At which moment; None: never.
        action: What happens: an end without warning (`kill`), a stop until somebody lets it go on (`stop`), a disk
            that is full from there on (`full`), or a signal.
        notes: A file to which the moments are written; None: they are not.
    """

    def __init__(self, root: Path, at: int | None = None, action: Action = "kill", notes: Path | None = None) -> None:
        self._root, self._at, self._action = os.fspath(root), at, action
        self._notes = None if notes is None else os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._count, self._phase, self._phases = -1, "start", 0
        self._process, self._full = os.getpid(), False

    def install(self) -> None:
        """From here on, count."""
        self._watch_files()
        self._watch_training()

    def moment(self, kind: str, where: str, before: Callable[[], None] | None = None) -> None:
        """One more; `before` is what still happens before the end."""
        if os.getpid() != self._process or threading.current_thread() is not threading.main_thread():
            return
        self._count += 1
        if self._notes is not None:
            os.write(self._notes, f"{kind}\t{where}\n".encode())
        if self._count != self._at:
            return
        if before is not None:
            before()
        if self._action == "full":
            self._full = True
        else:
            name = {"kill": "SIGKILL", "stop": "SIGSTOP"}.get(self._action, self._action)
            os.kill(self._process, getattr(signal, name))

    def check_room(self, path: object) -> None:
        """The disk is full, if it is."""
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _label(self, path: object) -> str:
        text = os.path.relpath(os.fspath(path), self._root)  # type: ignore[call-overload]
        for pattern, plain in RANDOM:
            text = pattern.sub(plain, text)
        return str(text)

    def _below(self, path: object) -> bool:
        try:
            return os.path.abspath(os.fspath(path)).startswith(self._root)  # type: ignore[call-overload]  # noqa: PTH100
        except TypeError:
            return False

    def _watch_files(self) -> None:
        opened = io.open

        def watched_open(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if isinstance(file, str | os.PathLike) and set(mode) & set("wax+") and self._below(file):
                self.moment("open", self._label(file))
                self.check_room(file)
                return _Watched(opened(file, mode, *more, **named), file, self._label(file), self)
            return opened(file, mode, *more, **named)

        builtins.open = io.open = watched_open
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir"):
            setattr(os, name, self._watched(name, getattr(os, name)))
        synced = os.fsync

        def fsync(file: Any) -> None:
            self.moment("fsync", self._phase)
            synced(file)

        os.fsync = fsync  # type: ignore[assignment]

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *more: Any, **named: Any) -> Any:
            inside = named.get("dir_fd") is not None or self._below(path)
            if inside:
                self.moment(name, self._label(path) if named.get("dir_fd") is None else "in a folder")
            if inside and name == "mkdir":
                self.check_room(path)
            return function(path, *more, **named)

        return call

    def _watch_training(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from erpcnet.utils import progress

        register_optimizer_step_post_hook(lambda *_: self.moment("step", self._phase))
        advance, begin = progress.Advance.__call__, progress.Advance.__init__

        def advanced(bar: Any, *given: Any, **named: Any) -> None:
            advance(bar, *given, **named)
            self.moment("progress", self._phase)

        def begun(bar: Any, what: Any, *given: Any, **named: Any) -> None:
            begin(bar, what, *given, **named)
            self._phases += 1
            self._phase = f"{what} ({self._phases})"
            self.moment("phase", self._phase)

        progress.Advance.__call__ = advanced  # type: ignore[assignment,method-assign]
        progress.Advance.__init__ = begun  # type: ignore[assignment,method-assign]


class _Watched:
    """An open file, in the middle of whose writes a process can die."""

    def __init__(self, file: Any, path: object, label: str, saboteur: Saboteur) -> None:
        self._file, self._path, self._label, self._saboteur = file, path, label, saboteur

    def write(self, content: Any) -> Any:
        half = len(content) // 2

        def before() -> None:
            self._file.write(content[:half])
            self._file.flush()

        self._saboteur.moment("write", self._label, before)
        self._saboteur.check_room(self._path)
        return self._file.write(content)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)


def read_moments(notes: Path) -> list[Moment]:
    """What a saboteur counted."""
    return [Moment(*line.split("\t", 1)) for line in notes.read_text(encoding="utf-8").splitlines()]
