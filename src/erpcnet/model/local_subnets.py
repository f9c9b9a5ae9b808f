"""Local subnets, where localities come from: windows of the glance's map, of a finer image (zoom), HardNet patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from erpcnet.config.model import ModelSettings
from erpcnet.errors import InputError
from erpcnet.model.backbone import create_backbone
from erpcnet.model.backbone_split import SplitBackbone, copy_of_last
from erpcnet.model.grid import Grid, entropy_ratios
from erpcnet.model.heads import Predictor
from erpcnet.model.partial_convolution import PartialConvolution
from erpcnet.model.pooling import pool_places

# HardNet's patches, in pixels of an image of 224: as large as the paper's windows, and how far apart.
PATCH_SIZE, PATCH_STRIDE = 80, 8


class LocalSubnet(nn.Module):
    """Where localities come from: what they are cut from, and what makes embeddings of them.

    Attributes:
        cut: The windows, on `source`; cell by cell those of the network's grid.
        described_channels: Of what the cells are described by.
        tabulable: An image has so few cells that all localities can be computed.
        extractor: What begins with pretrained weights.
        predictor: f_cl.
    """

    tabulable = True
    cut: Grid
    described_channels: int
    extractor: nn.Module
    predictor: Predictor

    def source(self, images: Tensor, feature_map: Tensor) -> Tensor:
        """What localities are cut from, given the images and e^{n-1} of the glance."""
        raise NotImplementedError

    def described(self, images: Tensor, feature_map: Tensor) -> Tensor:
        """What the cells are described by."""
        return feature_map

    def entropy(self, described: Tensor, grid: Grid) -> Tensor:
        """beta of every cell, [N, cells]."""
        return entropy_ratios(described, grid)

    def forward(self, windows: Tensor) -> Tensor:
        """Windows [N, T, C, k, k] of the source to localities e_l [N, T, D]."""
        raise NotImplementedError


class WindowSubnet(LocalSubnet):
    """The paper's: windows of e^{n-1}, partial convolution, C_l."""

    def __init__(self, backbone: SplitBackbone, grid: Grid, attributes: int, settings: ModelSettings) -> None:
        super().__init__()
        local = settings.local
        self.cut, self.described_channels = grid, backbone.map_channels
        if local.kernel_mode == "valid" and local.kernel > grid.window:
            raise InputError(
                f"a 'valid' kernel of {local.kernel} does not fit windows of {grid.window}; "
                "use larger images or a smaller --model.local.kernel."
            )
        self.partial = PartialConvolution(backbone.map_channels, local.kernel, local.kernel_kind, local.kernel_mode)
        self.extractor = copy_of_last(backbone)
        self.predictor = Predictor(backbone.channels, attributes, settings.dropout)

    def source(self, images: Tensor, feature_map: Tensor) -> Tensor:
        return feature_map

    def forward(self, windows: Tensor) -> Tensor:
        maps = self.extractor(self.partial(windows.flatten(0, 1)))
        return maps.mean(dim=(2, 3)).unflatten(0, windows.shape[:2])


class PatchSubnet(LocalSubnet):
    """A second backbone, on patches of the image: the base of zoom and of HardNet."""

    def __init__(self, cut: Grid, attributes: int, settings: ModelSettings, pooling: float = 1.0) -> None:
        super().__init__()
        self.cut, self._pooling = cut, pooling
        self.extractor = create_backbone(settings.backbone.name, settings.backbone.weights)
        self.predictor = Predictor(self.extractor.channels, attributes, settings.dropout)

    def source(self, images: Tensor, feature_map: Tensor) -> Tensor:
        return images

    def forward(self, windows: Tensor) -> Tensor:
        patches = windows.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return pool_places(self.extractor(patches), self._pooling).unflatten(0, windows.shape[:2])


class ZoomSubnet(PatchSubnet):
    """A chosen window read again, from pixels up, from an image `zoom` times finer than the glance's.

    The policy and beta see the glance's map alone, so that a locality which is not selected is never computed. A
    window's last map is pooled as the glance's is (`model.pooling`): it is large enough for that to matter.
    """

    def __init__(
        self, backbone: SplitBackbone, grid: Grid, image_size: int, attributes: int, settings: ModelSettings
    ) -> None:
        super().__init__(magnified(grid, settings.local.zoom * image_size), attributes, settings, settings.pooling)
        self.described_channels = backbone.map_channels


class HardSubnet(PatchSubnet):
    """HardNet's: patches of the glance's own image, in so many places that no table holds them; without beta."""

    tabulable = False
    described_channels = 3

    def described(self, images: Tensor, feature_map: Tensor) -> Tensor:
        return images

    def entropy(self, described: Tensor, grid: Grid) -> Tensor:
        """1 for every cell: the paper's HardNet has no beta."""
        return torch.ones(described.shape[0], grid.cells, device=described.device)


def magnified(grid: Grid, side: int) -> Grid:
    """The same windows on an image of `side` pixels."""
    scale = side / grid.height
    window, gaps = round(grid.window * scale), grid.shape[0] - 1
    # Both rounded up, the last window would not fit, and there were fewer cells.
    stride = min(round(grid.stride * scale), (side - window) // gaps) if gaps else side
    return Grid(side, side, window, stride)


def patch_grid(image_size: int) -> Grid:
    """HardNet's places for patches of an image."""
    scale = image_size / 224
    return Grid(image_size, image_size, round(PATCH_SIZE * scale), max(1, round(PATCH_STRIDE * scale)))
