"""The gradients of one batch; on a GPU, where small batches wait for their launches, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from erpcnet.utils.cuda_graphs import GraphedFunction, Pool

GradientStep = Callable[..., dict[str, Tensor]]


def gradient_step(
    objective: nn.Module,
    backward: Callable[[Tensor], object] = Tensor.backward,
    graph_device: torch.device | None = None,
    pool: Pool | None = None,
) -> GradientStep:
    """A function that runs an objective forwards and backwards, and leaves the gradients in its parameters.

    It takes the objective's arguments and returns the losses without their history, which hold until the next batch.
    With a `graph_device` it becomes a CUDA graph there. Nobody else may clear the gradients: a graph writes them where
    they are.
    """

    def step(*batch: Tensor | None) -> dict[str, Tensor]:
        objective.zero_grad()
        losses: dict[str, Tensor] = objective(*batch)
        backward(losses["total"])
        return {name: value.detach() for name, value in losses.items()}

    return step if graph_device is None else GraphedFunction(step, graph_device, pool)
