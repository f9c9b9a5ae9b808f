"""Checkpoints: what training leaves behind on its way, to resume from after an interruption."""

from __future__ import annotations

import copy
import math
import os
import time
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from erpcnet.utils.files import whole_file
from erpcnet.utils.progress import console

MAGIC = b"erpcnet checkpoint 1\n"


class Resumable(Protocol):
    """A training that can be resumed."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoint:
    """The file of one stage: on the way what the next epoch depends on, at the end what came out.

    It is written `every` so many seconds, between epochs, with a checksum, and the one before it is kept. Without a
    path nothing is written; of several processes one `writes`, and all read.
    """

    def __init__(self, path: Path | None = None, every: float = math.inf, writes: bool = True) -> None:
        self._path, self._every, self._writes = path, every, writes and path is not None
        self._written = time.monotonic()

    def resume(self, training: Resumable) -> int:
        """Bring a new training to where the checkpoint was: after so many epochs.

        One that is damaged is set aside, and the one before it used; without one the stage starts again.
        """
        untouched = copy.deepcopy(training.state_dict()) if self._candidates() else {}
        for path in self._candidates():
            try:
                stored = _read(path)
                if "training" not in stored:
                    return 0
                epochs = int(stored["epochs"])
                if epochs < 0:
                    raise ValueError("there are fewer than no epochs")
                training.load_state_dict(stored["training"])
            except Exception as error:  # of whatever is wrong with it
                _set_aside(path, error)
                training.load_state_dict(untouched)
            else:
                return epochs
        return 0

    def save(self, training: Resumable, epochs: int) -> None:
        """Write where a training is after so many epochs, if that was not done a short while ago."""
        if self._writes and time.monotonic() - self._written >= self._every:
            self._write({"epochs": epochs, "training": training.state_dict()})
            self._written = time.monotonic()

    def finished(self, module: nn.Module) -> bool:
        """Fill a module with what came out of the stage, if it came to its end."""
        for path in self._candidates()[:1]:
            untouched = copy.deepcopy(module.state_dict())
            try:
                stored = _read(path)
                if "outcome" not in stored:
                    return False
                if not all(tensor.isfinite().all() for tensor in stored["outcome"].values()):
                    raise ValueError("it holds values that are no numbers")
                module.load_state_dict(stored["outcome"])
            except Exception as error:
                _set_aside(path, error)
                module.load_state_dict(untouched)
            else:
                return True
        return False

    def finish(self, module: nn.Module) -> None:
        """Write what came out."""
        if self._writes:
            self._write({"outcome": module.state_dict()})

    def _candidates(self) -> list[Path]:
        """The checkpoint, and the one before it, where they are."""
        if self._path is None:
            return []
        return [path for path in (self._path, _previous(self._path)) if path.is_file()]

    def _write(self, stored: dict[str, Any]) -> None:
        assert self._path is not None
        file = BytesIO()
        torch.save(stored, file)
        content = file.getvalue()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self._path) as partial:
            with partial.open("wb") as out:
                out.write(MAGIC + zlib.crc32(content).to_bytes(4, "big"))
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            # Whoever is killed in between leaves the old one under its second name.
            if self._path.is_file():
                self._path.replace(_previous(self._path))


def _previous(path: Path) -> Path:
    return path.with_suffix(".previous.pt")


def _read(path: Path) -> dict[str, Any]:
    """What a checkpoint holds, if its checksum holds."""
    content = path.read_bytes()
    head = len(MAGIC) + 4
    if not content.startswith(MAGIC) or zlib.crc32(content[head:]).to_bytes(4, "big") != content[len(MAGIC) : head]:
        raise ValueError("its checksum is wrong")
    stored = torch.load(BytesIO(content[head:]), map_location="cpu", weights_only=True)
    if not isinstance(stored, dict):
        raise TypeError("it holds no dictionary")
    return stored


def _set_aside(path: Path, error: Exception) -> None:
    """Give a damaged checkpoint another name, and say so."""
    aside = path.with_suffix(".damaged")
    with suppress(OSError):
        path.replace(aside)
    why = " ".join(str(error).split())[:120]
    console.print(
        f"{path} is damaged ({type(error).__name__}: {why}) and set aside; going on from what is before it",
        soft_wrap=True,
    )


class Checkpoints:
    """The checkpoints of both stages, in a folder, or nowhere."""

    def __init__(self, folder: Path | None = None, every: float = math.inf, writes: bool = True) -> None:
        self._folder, self._every, self._writes = folder, every, writes

    def stage(self, number: int) -> Checkpoint:
        path = None if self._folder is None else self._folder / f"stage{number}.pt"
        return Checkpoint(path, self._every, self._writes)
