"""Checkpoints: what training leaves behind on its way, to resume from after an interruption."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from erpcnet.errors import InputError


class Resumable(Protocol):
    """A training that can be resumed."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoint:
    """The file of one stage: on the way what the next epoch depends on, at the end what came out.

    It is written `every` so many seconds, between epochs. Without a path nothing is written; of several processes one
    `writes`, and all read.
    """

    def __init__(self, path: Path | None = None, every: float = math.inf, writes: bool = True) -> None:
        self._path, self._every, self._writes = path, every, writes and path is not None
        self._written = time.monotonic()

    def resume(self, training: Resumable) -> int:
        """Bring a new training to where the checkpoint was: after so many epochs."""
        stored = self._read()
        if "training" not in stored:
            return 0
        training.load_state_dict(stored["training"])
        return int(stored["epochs"])

    def save(self, training: Resumable, epochs: int) -> None:
        """Write where a training is after so many epochs, if that was not done a short while ago."""
        if self._writes and time.monotonic() - self._written >= self._every:
            self._write({"epochs": epochs, "training": training.state_dict()})
            self._written = time.monotonic()

    def finished(self, module: nn.Module) -> bool:
        """Fill a module with what came out of the stage, if it came to its end."""
        stored = self._read()
        if "outcome" not in stored:
            return False
        module.load_state_dict(stored["outcome"])
        return True

    def finish(self, module: nn.Module) -> None:
        """Write what came out."""
        if self._writes:
            self._write({"outcome": module.state_dict()})

    def _read(self) -> dict[str, Any]:
        if self._path is None or not self._path.is_file():
            return {}
        try:
            stored: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        except Exception as error:
            detail = " ".join(str(error).split())[:200]
            raise InputError(
                f"{self._path} cannot be read ({type(error).__name__}: {detail}); remove it to start this stage again."
            ) from None
        return stored

    def _write(self, stored: dict[str, Any]) -> None:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        torch.save(stored, partial)
        partial.replace(self._path)  # whoever is killed here leaves the old one or the new one


class Checkpoints:
    """The checkpoints of both stages, in a folder, or nowhere."""

    def __init__(self, folder: Path | None = None, every: float = math.inf, writes: bool = True) -> None:
        self._folder, self._every, self._writes = folder, every, writes

    def stage(self, number: int) -> Checkpoint:
        path = None if self._folder is None else self._folder / f"stage{number}.pt"
        return Checkpoint(path, self._every, self._writes)
