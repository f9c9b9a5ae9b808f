"""Ways to walk over a batch of images that give the same answers, and a measurement that says which is fastest here."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.walk import (
    DirectLocalities,
    Order,
    ParallelLocalities,
    StopRule,
    Walk,
    cut_short,
    usual_order,
    walk,
)
from erpcnet.precision import rough_products
from erpcnet.recording import Replay

Execution = Literal["auto", "sequential", "parallel", "parallel_graph", "sequential_graph"]
TRIES = 3  # of each way and batch size; the first warms up
RECORDINGS = 6  # graphs that are kept


class Engine:
    """Walks over images with a frozen network, in the order that is usual for it.

    `sequential` computes a locality when it is looked at, and nothing for images that have stopped; `parallel`
    computes all of them at once and stops afterwards. `parallel_graph` and `sequential_graph`, for a policy on a GPU,
    are the two without stopping, recorded once for each batch size as CUDA graphs. `auto` serves the first batches of
    each size by turns, times them, and keeps to the fastest way from then on: the measurement costs nothing. A way that
    a network or a machine does not have is `sequential`.
    """

    def __init__(self, network: ERPCNet, execution: Execution = "auto", seed: int = 0) -> None:
        if execution not in get_args(Execution):
            raise InputError(f"there is no way '{execution}' to execute; choose from {', '.join(get_args(Execution))}.")
        self.network, self.execution, self.seed = network, execution, seed
        self._seconds: dict[tuple[int, Execution], list[float]] = defaultdict(list)
        self._recordings: OrderedDict[tuple[int, type[DirectLocalities]], Replay[Walk]] = OrderedDict()
        self._run: dict[Execution, Callable[[Tensor, StopRule | None], Walk]] = {
            "sequential": self._sequential,
            "parallel": self._parallel,
            "parallel_graph": partial(self._graph, ParallelLocalities),
            "sequential_graph": partial(self._graph, DirectLocalities),
        }

    @torch.inference_mode()
    def walk(self, images: Tensor, stop: StopRule | None = None) -> Walk:
        """Walk over images [N, 3, H, W]."""
        way = self.way(len(images))
        tried = self._seconds[len(images), way]
        watched = self.execution == "auto" and len(tried) < TRIES
        started = _now(images.device) if watched else 0.0
        with rough_products(self.network):
            found = self._run[way](images, stop)
        if watched:
            tried.append(_now(images.device) - started)
        return found

    def way(self, count: int) -> Execution:
        """How the next batch of so many images will be walked over."""
        possible = self._possible()
        if self.execution != "auto":
            return self.execution if self.execution in possible else "sequential"
        tries = {way: self._seconds[count, way] for way in possible}
        fewest = min(tries, key=lambda way: len(tries[way]))
        if len(tries[fewest]) < TRIES and len(possible) > 1:
            return fewest
        return min(tries, key=lambda way: min(tries[way][1:], default=0.0))

    def _possible(self) -> list[Execution]:
        network = self.network
        ways: list[Execution] = ["sequential"]
        at_once = network.steps > 0 and network.tabulable
        if at_once:
            ways.append("parallel")
        if network.policy is not None and next(network.parameters()).is_cuda:
            ways += ["parallel_graph", "sequential_graph"] if at_once else ["sequential_graph"]
        return ways

    def _order(self) -> Order:
        return usual_order(self.network, self.seed)

    def _sequential(self, images: Tensor, stop: StopRule | None) -> Walk:
        return walk(self.network, DirectLocalities(self.network, images), self._order(), stop=stop)

    def _parallel(self, images: Tensor, stop: StopRule | None) -> Walk:
        whole = walk(self.network, ParallelLocalities(self.network, images), self._order())
        return whole if stop is None else cut_short(self.network, whole, stop)

    def _graph(self, localities: type[DirectLocalities], images: Tensor, stop: StopRule | None) -> Walk:
        network, order = self.network, self._order()
        kept, key = self._recordings, (len(images), localities)
        if key not in kept:
            if len(kept) == RECORDINGS:
                kept.popitem(last=False)
            kept[key] = Replay(lambda some: walk(network, localities(network, some), order), images.device, [images])
        kept.move_to_end(key)  # the one used longest ago goes first
        whole = Walk.join([kept[key](images)])  # a copy: the next replay overwrites what was recorded
        return whole if stop is None else cut_short(self.network, whole, stop)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
