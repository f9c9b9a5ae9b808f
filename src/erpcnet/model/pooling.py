"""From a map of features to one embedding."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-6  # largest feature: smaller ones count as none
TINY = torch.finfo(torch.float32).tiny  # mean of powers: the slope of a root is infinite at 0


def pool_places(maps: Tensor, power: float) -> Tensor:
    """Maps [N, C, H, W] to embeddings [N, C]: the mean over places, or with a `power` above 1 the generalised mean.

    The latter is (mean of x^p)^(1/p), which leans towards the largest: an attribute that shows in one place is not
    thinned out by the others. Features below zero count as zero.
    """
    if power == 1:
        return maps.mean(dim=(2, 3))
    maps = maps.float()
    # Powers of shares of the largest neither overflow nor vanish; it cancels out, and so does its gradient.
    largest = maps.amax(dim=(2, 3), keepdim=True).detach().clamp_min(SMALLEST)
    shares = (maps / largest).clamp_min(0).pow(power).mean(dim=(2, 3), keepdim=True)
    return (largest * shares.clamp_min(TINY).pow(1 / power)).flatten(1)
