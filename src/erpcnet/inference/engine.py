"""Two ways to walk over a batch of images, and a measurement that says which is faster here."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from erpcnet.model import ERPCNet
from erpcnet.model.walk import DirectLocalities, Localities, Order, ParallelLocalities, StopRule, Walk, walk

Execution = Literal["auto", "sequential", "parallel"]
WAYS: dict[Execution, Callable[[ERPCNet, Tensor], Localities]] = {
    "sequential": DirectLocalities,
    "parallel": ParallelLocalities,
}
TRIES = 3  # of each way and batch size; the first warms up


class Engine:
    """Walks over images with a frozen network.

    `sequential` computes a locality when it is looked at, and nothing for images that have stopped; `parallel`
    computes all of them at once. The answers are the same, so `auto` serves the first batches of each size by turns,
    times them, and keeps to the faster way from then on: the measurement costs nothing.
    """

    def __init__(self, network: ERPCNet, execution: Execution = "auto") -> None:
        self.network, self.execution = network, execution
        self._seconds: dict[tuple[int, Execution], list[float]] = defaultdict(list)

    @torch.inference_mode()
    def walk(self, images: Tensor, order: Order, stop: StopRule | None) -> Walk:
        """Walk over images [N, 3, H, W]."""
        way = self.way(len(images))
        tried = self._seconds[len(images), way]
        watched = self.execution == "auto" and len(tried) < TRIES
        started = _now(images.device) if watched else 0.0
        found = walk(self.network, WAYS[way](self.network, images), order, stop=stop)
        if watched:
            tried.append(_now(images.device) - started)
        return found

    def way(self, count: int) -> Execution:
        """How the next batch of so many images will be walked over."""
        if self.network.steps == 0 or not self.network.tabulable:
            return "sequential"
        if self.execution != "auto":
            return self.execution
        tries = {way: self._seconds[count, way] for way in WAYS}
        fewest = min(tries, key=lambda way: len(tries[way]))
        if len(tries[fewest]) < TRIES:
            return fewest
        return min(tries, key=lambda way: min(tries[way][1:]))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
