"""Two ways to walk over a batch of images, and a measurement that says which is faster here."""

from __future__ import annotations

import time
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
REPEATS = 3


class Engine:
    """Walks over images with a frozen network.

    `sequential` computes a locality when it is looked at, and nothing for images that have stopped; `parallel`
    computes all of them at once. `auto` measures both on the first batch of each size and keeps to the faster; on a
    CPU, where arithmetic is all that costs, it is `sequential`. The answers are the same.
    """

    def __init__(self, network: ERPCNet, execution: Execution = "auto") -> None:
        self.network, self.execution = network, execution
        self._chosen: dict[int, Execution] = {}

    @torch.inference_mode()
    def walk(self, images: Tensor, order: Callable[[], Order], stop: StopRule | None) -> Walk:
        """Walk over images [N, 3, H, W]; `order` makes the order anew for every walk."""
        way = self._way(images, order, stop)
        return walk(self.network, WAYS[way](self.network, images), order(), stop=stop)

    def _way(self, images: Tensor, order: Callable[[], Order], stop: StopRule | None) -> Execution:
        if self.network.steps == 0 or not self.network.tabulable:
            return "sequential"
        if self.execution != "auto":
            return self.execution
        if images.device.type == "cpu":
            return "sequential"
        if len(images) not in self._chosen:
            seconds = {way: self._seconds(way, images, order, stop) for way in WAYS}
            self._chosen[len(images)] = min(seconds, key=lambda way: seconds[way])
        return self._chosen[len(images)]

    def _seconds(self, way: Execution, images: Tensor, order: Callable[[], Order], stop: StopRule | None) -> float:
        """The fastest of some walks, after one that warms up."""
        found = []
        for _ in range(REPEATS + 1):
            torch.cuda.synchronize(images.device)
            started = time.perf_counter()
            walk(self.network, WAYS[way](self.network, images), order(), stop=stop)
            torch.cuda.synchronize(images.device)
            found.append(time.perf_counter() - started)
        return min(found[1:])
