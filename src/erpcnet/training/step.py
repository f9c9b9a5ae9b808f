"""The gradients of one batch; on a GPU, where small batches wait for their launches, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from erpcnet.recording import Pool, Recorded


class GradientStep:
    """Runs an objective forwards and backwards, and leaves the gradients in its parameters.

    Nobody else may clear them: a recording writes them where they are.
    """

    def __init__(
        self,
        objective: nn.Module,
        backward: Callable[[Tensor], object] = Tensor.backward,
        recorded_on: torch.device | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._objective, self._backward = objective, backward
        self._run = self._plain if recorded_on is None else Recorded(self._plain, recorded_on, pool)

    def __call__(self, *batch: Tensor | None) -> dict[str, Tensor]:
        """The losses of a batch, the objective's arguments, without their history; they hold until the next batch."""
        return self._run(*batch)

    def _plain(self, *batch: Tensor | None) -> dict[str, Tensor]:
        self._objective.zero_grad()
        losses: dict[str, Tensor] = self._objective(*batch)
        self._backward(losses["total"])
        return {name: value.detach() for name, value in losses.items()}
