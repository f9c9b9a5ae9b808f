"""Ways to run a batch of images that give the same answers, and a measurement that says which is fastest here."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from erpcnet.errors import InputError
from erpcnet.inference.stopping_graphs import StoppingGraphs
from erpcnet.model import ERPCNet
from erpcnet.model.localities import DirectLocalities, ParallelLocalities
from erpcnet.model.reward import steps_taken
from erpcnet.model.rollout import Rollout, rollout, truncate
from erpcnet.model.scoring import StopRule
from erpcnet.model.selection import SelectionOrder, default_order
from erpcnet.utils.cuda_graphs import CapturedFunction
from erpcnet.utils.runtime import Runtime

Execution = Literal["auto", "sequential", "parallel", "parallel_graph", "sequential_graph", "stopping_graph"]
TRIES = 3  # of each way and batch size; the first warms up
MAX_IMAGES = 6 * 256  # in the batches of all captured rollouts that are kept, by which their memory goes


class Engine:
    """Rolls images out with a trained network, in the order of its variant.

    `sequential` computes a locality when it is selected, and nothing for images that are done; `parallel` computes all
    of them at once and stops afterwards. `parallel_graph` and `sequential_graph`, for a policy on a GPU, are the two
    without stopping, captured once for each batch size as CUDA graphs; `stopping_graph` is `sequential` with every step
    captured, for several numbers of images that are not done. `auto` serves the first batches of each size by
    turns, times them, and keeps to the fastest way from then on: the measurement costs nothing. A way that a network or
    a machine does not have is `sequential`.

    Args:
        network: Where it shall run.
        execution: One of these ways.
        seed: Of random localities.
        runtime: Precision on a GPU.
    """

    def __init__(
        self, network: ERPCNet, execution: Execution = "auto", seed: int = 0, runtime: Runtime | None = None
    ) -> None:
        if execution not in get_args(Execution):
            raise InputError(f"there is no way '{execution}' to execute; choose from {', '.join(get_args(Execution))}.")
        self.network, self.execution, self.seed = network, execution, seed
        self.runtime = runtime or Runtime()
        self._seconds: dict[tuple[int, Execution], list[float]] = defaultdict(list)
        self._graphs: OrderedDict[tuple[int, Execution], Callable[[Tensor, StopRule | None], Rollout]] = OrderedDict()
        self._run: dict[Execution, Callable[[Tensor, StopRule | None], Rollout]] = {
            "sequential": self._sequential,
            "parallel": self._parallel,
            "parallel_graph": partial(self._graph, "parallel_graph"),
            "sequential_graph": partial(self._graph, "sequential_graph"),
            "stopping_graph": partial(self._graph, "stopping_graph"),
        }

    @torch.inference_mode()
    def rollout(self, images: Tensor, stop: StopRule | None = None) -> Rollout:
        """Roll out images [crops, N, 3, H, W]; the shapes of what comes back begin with [crops, N]."""
        batch = images.flatten(0, 1)
        glance_alone = stop is not None and stop.max_steps == 0
        way: Execution = "sequential" if glance_alone else self.way(len(batch))
        tried = self._seconds[len(batch), way]
        timed = self.execution == "auto" and len(tried) < TRIES
        started = _now(batch.device) if timed else 0.0
        with self.runtime.autocast(), self.runtime.tf32(batch.device):
            result = self._run[way](batch, stop)
        if timed:
            tried.append(_now(batch.device) - started)
        return result.each(lambda tensor: tensor.unflatten(0, images.shape[:2]))

    def way(self, count: int) -> Execution:
        """How the next batch of so many images will be run."""
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
            ways += ["parallel_graph"] if at_once else []
            ways += ["sequential_graph", "stopping_graph"]
        return ways

    def _order(self) -> SelectionOrder:
        return default_order(self.network, self.seed)

    def _sequential(self, images: Tensor, stop: StopRule | None) -> Rollout:
        localities = DirectLocalities(self.network, images)
        most = None if stop is None else stop.max_steps
        return rollout(self.network, localities, self._order(), stop=stop, max_steps=most)

    def _parallel(self, images: Tensor, stop: StopRule | None) -> Rollout:
        whole = rollout(self.network, ParallelLocalities(self.network, images), self._order())
        return _stopped(whole, stop)

    def _graph(self, way: Execution, images: Tensor, stop: StopRule | None) -> Rollout:
        graphs, key = self._graphs, (len(images), way)
        if key not in graphs:
            while graphs and sum(count for count, _ in graphs) + len(images) > MAX_IMAGES:
                graphs.popitem(last=False)
            graphs[key] = self._capture(way, images)
        graphs.move_to_end(key)  # the one used longest ago goes first
        return graphs[key](images, stop).each(torch.clone)  # the next replay overwrites what was captured

    def _capture(self, way: Execution, images: Tensor) -> Callable[[Tensor, StopRule | None], Rollout]:
        network, order = self.network, self._order()
        if way == "stopping_graph":
            return StoppingGraphs(network, order, images)
        localities = ParallelLocalities if way == "parallel_graph" else DirectLocalities
        whole = CapturedFunction(
            lambda some: rollout(network, localities(network, some), order), images.device, [images]
        )
        return lambda some, stop: _stopped(whole(some), stop)


def _stopped(whole: Rollout, stop: StopRule | None) -> Rollout:
    return whole if stop is None else truncate(whole, steps_taken(stop.rewards(whole), stop.sigma))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
