"""Partial convolution: a kernel that is applied to chosen windows only."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KernelKind = Literal["bottleneck", "full", "grouped", "depthwise"]
KernelMode = Literal["same", "valid"]


class PartialConvolution(nn.Module):
    """f_P's kernel on crops [M, C, k, k], followed by norm and ReLU.

    The kernel is written as identity + branch, and the branch starts at zero: at first C_l sees exactly the
    features that it was pretrained on. `same` keeps the crop's size; `valid`, the strict reading, shrinks it by
    the kernel's size minus one (to 1 x 1 when kernel and window are of one size), where the identity is the
    middle of the crop.
    """

    def __init__(
        self,
        channels: int,
        size: int = 5,
        kind: KernelKind = "bottleneck",
        mode: KernelMode = "same",
        groups: int = 32,
    ) -> None:
        super().__init__()
        self.size, self.mode = size, mode
        padding = size // 2 if mode == "same" else 0
        self.branch = _branch(channels, size, kind, padding, groups)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, crops: Tensor) -> Tensor:
        branch = self.norm(self.branch(crops))
        return torch.relu(self._middle(crops) + branch)

    def _middle(self, crops: Tensor) -> Tensor:
        if self.mode == "same":
            return crops
        before = (self.size - 1) // 2
        after = self.size - 1 - before
        return F.pad(crops, (-before, -after, -before, -after))


def _branch(channels: int, size: int, kind: KernelKind, padding: int, groups: int) -> nn.Module:
    if kind == "bottleneck":
        narrow = max(channels // 4, 8)
        return nn.Sequential(
            nn.Conv2d(channels, narrow, 1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, narrow, size, padding=padding, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, 1, bias=False),
        )
    # The largest number of groups up to the one asked for that divides the channels.
    grouped = next(number for number in range(min(groups, channels), 0, -1) if channels % number == 0)
    parts = {"full": 1, "grouped": grouped, "depthwise": channels}[kind]
    return nn.Conv2d(channels, channels, size, padding=padding, groups=parts, bias=False)
