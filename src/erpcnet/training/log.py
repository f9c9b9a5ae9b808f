"""Where training writes its metrics."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from erpcnet.errors import InputError


class Log:
    """Scalars for TensorBoard; without a folder nothing is written.

    What the folder holds already stays, and is not written again: a training that is resumed does again what came after
    its checkpoint.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._writer, self._within = None, ""
        self._written: set[tuple[str, int]] = set()
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, so only where it is used

            self._written = read_points(folder)
            self._writer = SummaryWriter(str(folder))

    def within(self, name: str) -> Log:
        """The same log, where all scalars have this name before their own."""
        inner = copy.copy(self)
        inner._within = f"{self._within}{name}/"
        return inner

    def scalars(self, group: str, values: dict[str, float], step: int) -> None:
        """Write `group`/name = value for each, so that they are there even if the process is killed."""
        if self._writer is not None:
            for name, value in values.items():
                point = f"{self._within}{group}/{name}", step
                if point not in self._written:
                    self._written.add(point)
                    self._writer.add_scalar(point[0], value, step)
            self._writer.flush()

    def text(self, name: str, text: str) -> None:
        """Write a text, as it is."""
        if self._writer is not None:
            self._writer.add_text(name, f"```\n{text}\n```")

    def picture(self, name: str, path: Path) -> None:
        """Write a picture from its file."""
        if self._writer is not None:
            with Image.open(path) as picture:
                self._writer.add_image(name, np.asarray(picture.convert("RGB")), dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def read_points(folder: Path) -> set[tuple[str, int]]:
    """The tags and steps of the scalars that a folder holds."""
    if not any(folder.glob("*tfevents*")):
        return set()
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]

    every = {event_accumulator.SCALARS: 0}
    found = event_accumulator.EventAccumulator(str(folder), size_guidance=every, purge_orphaned_data=False).Reload()
    return {(tag, event.step) for tag in found.Tags()[event_accumulator.SCALARS] for event in found.Scalars(tag)}


def check_finite(values: Mapping[str, float], where: str, remedy: str) -> None:
    """End a training whose figures are no longer numbers, before anything of it is kept."""
    wrong = [name for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        raise InputError(
            f"{where}: the training has diverged ({wrong[0]} is {values[wrong[0]]}); lower {remedy} and give another "
            "--out. Nothing of this epoch is kept; the same command goes on from the checkpoint before it."
        )


def check_weights(module: nn.Module, where: str, remedy: str) -> None:
    """The same of weights and statistics: the gradient of a finite loss may be none, and nothing computed with it."""
    state = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    finite = torch.stack([value.isfinite().all() for value in state.values()]).tolist()  # a GPU is waited for once
    check_finite({name: math.nan for name, good in zip(state, finite, strict=True) if not good}, where, remedy)
