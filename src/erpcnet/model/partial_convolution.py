"""Partial convolution: a kernel that is applied to chosen windows only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.config.model import KernelKind, KernelMode


class PartialConvolution(nn.Module):
    """f_P's kernel on windows [M, C, k, k], followed by norm and ReLU.

    The kernel is written as identity + branch, and the branch starts at zero: at first C_l sees exactly the
    features that it was pretrained on. `same` keeps the window's size; `valid`, the strict reading, shrinks it by
    the kernel's size minus one (to 1 x 1 when kernel and window are of one size), where the identity is the
    middle of the window.

    Args:
        channels: C.
        size: Side of the kernel.
        kind: `full`, as in the paper, or `bottleneck`: 1 x 1, the kernel on a quarter of the channels, 1 x 1.
        mode: `same` or `valid`.

    Examples:
        >>> PartialConvolution(64, size=5)(torch.rand(2, 64, 5, 5)).shape
        torch.Size([2, 64, 5, 5])
    """

    def __init__(
        self, channels: int, size: int = 5, kind: KernelKind = "bottleneck", mode: KernelMode = "same"
    ) -> None:
        super().__init__()
        self.size, self.mode = size, mode
        self.idle = False
        self.branch = _branch(channels, size, kind, padding=size // 2 if mode == "same" else 0)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def skip_idle_branch(self) -> None:
        """Do not run a branch that adds nothing, as before training; for prediction alone."""
        self.idle = not self.norm.weight.any() and not self.norm.bias.any()

    def forward(self, windows: Tensor) -> Tensor:
        if self.idle:
            return torch.relu(self._middle(windows))
        branch = self.norm(self.branch(windows))
        return torch.relu(self._middle(windows) + branch)

    def _middle(self, windows: Tensor) -> Tensor:
        if self.mode == "same":
            return windows
        before = (self.size - 1) // 2
        after = self.size - 1 - before
        return F.pad(windows, (-before, -after, -before, -after))


def _branch(channels: int, size: int, kind: KernelKind, padding: int) -> nn.Module:
    if kind == "full":
        return nn.Conv2d(channels, channels, size, padding=padding, bias=False)
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
