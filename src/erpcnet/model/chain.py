"""Modules one after the other."""

from __future__ import annotations

from torch import Tensor, nn


class Chain(nn.Sequential):
    """Modules one after the other. torch.compile of torch 2.11 takes this forward whole, and torch's own in pieces."""

    def forward(self, value: Tensor) -> Tensor:
        for link in self:
            value = link(value)
        return value
