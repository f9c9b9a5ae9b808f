"""Early stop among CUDA graphs: the glance and every step captured, and images that are done leave the batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from erpcnet.model import ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import Rollout, RolloutState, begin_rollout, empty_rollout, take_step, truncate
from erpcnet.model.scoring import StopRule
from erpcnet.model.selection import SelectionOrder
from erpcnet.utils.cuda_graphs import CapturedFunction

SIZES = 16  # how many numbers of images a step is captured for, at most


class _Glance(NamedTuple):
    """What a captured glance writes into, and steps read from."""

    localities: DirectLocalities
    order: SelectionOrder
    result: Rollout
    state: RolloutState


class _Step(NamedTuple):
    """What a captured step returns."""

    state: RolloutState
    a_j: Tensor
    beta: Tensor


class StoppingGraphs:
    """Rollouts of batches of one size, by graphs of the glance and of every step.

    A step has a graph for each of a few numbers of images; where fewer than that are left, images that are done fill
    the batch up, and what they look at further is forgotten. A graph is captured when it is first needed. All of them
    work in the same memory. It pays where a step keeps the GPU busy: large batches, and localities read by zoom.

    Args:
        network: On a GPU.
        order: Its policy's; begun anew by every rollout.
        images: [N, 3, H, W], a batch of that size.
    """

    def __init__(self, network: ERPCNet, order: SelectionOrder, images: Tensor) -> None:
        self._network, self._device, self._count = network, images.device, images.shape[0]
        self._pool = torch.cuda.graph_pool_handle() if images.is_cuda else None
        self._steps: dict[tuple[int, int], CapturedFunction[_Step]] = {}

        def glance(some: Tensor) -> _Glance:
            localities = DirectLocalities(network, some)
            state = begin_rollout(network, localities, order)
            return _Glance(localities, order, empty_rollout(network, localities), state)

        self._glance = CapturedFunction(glance, self._device, [images], pool=self._pool)

    def __call__(self, images: Tensor, stop: StopRule | None) -> Rollout:
        """The rollout of these images; the next one overwrites it."""
        while True:
            captured = len(self._steps)
            result = self._roll_out(images, stop)
            # A capture is warmed up by steps that are taken in earnest, which the policy remembers.
            if len(self._steps) == captured:
                return result

    def _roll_out(self, images: Tensor, stop: StopRule | None) -> Rollout:
        glance = self._glance(images)
        state, last = glance.state, self._network.steps - 1
        done = torch.zeros(self._count, dtype=torch.bool, device=self._device)
        steps = torch.full_like(state.rows, last + 1)
        for step in range(last + 1):
            taken = self._step(glance, step, state)
            state = taken.state
            if stop is None or step == last:
                continue
            rows = state.rows
            now = stop(glance.result.a_g[rows], taken.a_j, taken.beta) & ~done[rows]
            done[rows] |= now
            steps[rows] = torch.where(now, torch.full_like(rows, step + 1), steps[rows])
            left = self._count - int(done.sum())  # waits for the GPU
            if left == 0:
                break
            if self._size(left) < len(rows):
                state = state.take(done[rows].int().argsort(stable=True)[: self._size(left)])
        return glance.result if stop is None else truncate(glance.result, steps)

    def _size(self, left: int) -> int:
        """The number of images that a step is captured for, if so many are not done."""
        share = -(-self._count // SIZES)
        return min(self._count, -(-left // share) * share)

    def _step(self, glance: _Glance, step: int, state: RolloutState) -> _Step:
        tensors = state.tensors()
        key = (step, len(state.rows))
        if key not in self._steps:

            def take(rows: Tensor, previous: Tensor, visited: Tensor, *joint: Tensor) -> _Step:
                now = RolloutState(rows, previous, visited, type(state.joint)(*joint))
                return _Step(*take_step(self._network, glance.localities, glance.order, glance.result, now, step))

            self._steps[key] = CapturedFunction(take, self._device, tensors, pool=self._pool)
        return self._steps[key](*tensors)
