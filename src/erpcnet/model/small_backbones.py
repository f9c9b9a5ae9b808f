"""Backbones of this package: a small ResNet, and the ResNet-50 of He et al. (2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SmallResNet(nn.Module):
    """A ResNet for small pictures on a CPU: 14 x 14 before its last block at 112 pixels, as the paper's has at 224.

    Its weights come with the package; `erpcnet.experiments.pretrain_small` made them.
    """

    def __init__(self, widths: tuple[int, int, int, int] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.channels = widths[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        self.layer1 = _Block(widths[0], widths[1], 2)
        self.layer2 = _Block(widths[1], widths[2], 2)
        self.layer3 = _Block(widths[2], widths[3], 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(self.stem(images))))


class _Block(nn.Module):
    """Two 3 x 3 convolutions added to a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, value: Tensor) -> Tensor:
        return torch.relu(self.residual(value) + self.shortcut(value))


def resnet50_v1() -> nn.Module:
    """ResNet-50 as He et al. published it: stride 2 on a block's first convolution.

    torchvision's own has it on the second (v1.5). The keys are the same, so v1 weights load into either without
    an error, and compute something else.
    """
    from torchvision.models.resnet import Bottleneck, resnet50

    network = resnet50(weights=None)
    for module in network.modules():
        if isinstance(module, Bottleneck):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
    return network
