"""The gradients of one batch; on a GPU, where small batches wait for their launches, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from erpcnet.recording import Pool, Recorded

GradientStep = Callable[..., dict[str, Tensor]]


def gradient_step(
    objective: nn.Module,
    backward: Callable[[Tensor], object] = Tensor.backward,
    recorded_on: torch.device | None = None,
    pool: Pool | None = None,
) -> GradientStep:
    """A function that runs an objective forwards and backwards, and leaves the gradients in its parameters.

    It takes the objective's arguments and returns the losses without their history, which hold until the next batch.
    Nobody else may clear the gradients: a recording writes them where they are.
    """

    def step(*batch: Tensor | None) -> dict[str, Tensor]:
        objective.zero_grad()
        losses: dict[str, Tensor] = objective(*batch)
        backward(losses["total"])
        return {name: value.detach() for name, value in losses.items()}

    return step if recorded_on is None else Recorded(step, recorded_on, pool)
