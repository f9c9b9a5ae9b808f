"""The grid of windows on e^{n-1} among which localities are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.errors import InputError


@dataclass(frozen=True)
class Grid:
    """Windows of `window` x `window` every `stride` positions of a `height` x `width` map padded by `padding`."""

    height: int
    width: int
    window: int
    stride: int
    padding: int = 0

    def __post_init__(self) -> None:
        if self.window > min(self.height, self.width) + 2 * self.padding:
            raise InputError(
                f"a window of {self.window} does not fit the {self.height} x {self.width} feature map; "
                "use larger images or a smaller --model.local.window."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: (H' + 2p - k) / q + 1 a side."""
        rows = (self.height + 2 * self.padding - self.window) // self.stride + 1
        columns = (self.width + 2 * self.padding - self.window) // self.stride + 1
        return rows, columns

    @property
    def cells(self) -> int:
        return self.shape[0] * self.shape[1]

    def crop(self, feature_map: Tensor, cells: Tensor) -> Tensor:
        """Crop: the windows of `cells` [N, T] out of e^{n-1} [N, C, H', W'], as [N, T, C, k, k]."""
        # Cut with the channels last, as they lie in memory: whole rows of them are copied, and convolutions like it so.
        windows = self._windows(feature_map).permute(0, 2, 3, 4, 5, 1)
        image = torch.arange(cells.shape[0], device=cells.device)[:, None]
        return windows[image, cells // self.shape[1], cells % self.shape[1]].permute(0, 1, 4, 2, 3)

    def means(self, feature_map: Tensor) -> Tensor:
        """The mean of every window of [N, C, H', W'], as [N, cells, C]."""
        means = F.avg_pool2d(self._padded(feature_map), self.window, self.stride)
        return means.flatten(2).transpose(1, 2)

    def boxes(self, image_size: int) -> Tensor:
        """Every cell's window in pixels of the network's input: [cells, 4] x1, y1, x2, y2."""
        rows, columns = torch.meshgrid(*(torch.arange(n) for n in self.shape), indexing="ij")
        upper = rows.flatten() * self.stride - self.padding
        left = columns.flatten() * self.stride - self.padding
        corners = torch.stack([left, upper, left + self.window, upper + self.window], dim=1).float()
        scale = image_size / torch.tensor([self.width, self.height] * 2)
        return (corners * scale).clamp(0, image_size)

    def centre_first(self) -> Tensor:
        """The cells from the middle of the grid outwards."""
        rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float) for n in self.shape), indexing="ij")
        away = (rows - (self.shape[0] - 1) / 2) ** 2 + (columns - (self.shape[1] - 1) / 2) ** 2
        return away.flatten().argsort(stable=True)

    def _windows(self, feature_map: Tensor) -> Tensor:
        padded = self._padded(feature_map)
        return padded.unfold(2, self.window, self.stride).unfold(3, self.window, self.stride)

    def _padded(self, feature_map: Tensor) -> Tensor:
        return F.pad(feature_map, (self.padding,) * 4) if self.padding else feature_map


def entropy(histogram: Tensor) -> Tensor:
    """Shannon entropy (nats) of counts in the last dimension."""
    share = histogram / histogram.sum(dim=-1, keepdim=True)
    return torch.special.entr(share).sum(dim=-1)


def entropy_ratios(feature_map: Tensor, grid: Grid, bins: int = 256) -> Tensor:
    """beta of every cell: the entropy of its window over that of the whole map, [N, cells].

    The values are counted in `bins` equal bins over the map's own range. Positions are counted first, and the
    windows' histograms are sums of theirs, so every cell costs one pass over the map together.
    """
    count, channels, height, width = feature_map.shape
    # As few passes over the map as there can be: they are what this costs.
    values = feature_map.flatten(1)
    low, high = (bound.float()[:, None] for bound in torch.aminmax(values, dim=1))
    scale = bins / (high - low).clamp_min(bins * torch.finfo(torch.float).tiny)
    places = (values - low).mul_(scale).clamp_(0, bins - 1).long()
    places = places.view(count, channels, height * width)
    histogram = torch.zeros(count, bins, height * width, device=feature_map.device)
    histogram.scatter_add_(1, places, histogram.new_ones(()).expand_as(places))
    # Padding is no value of the map: pad the counts, not the values.
    cells = grid.means(histogram.view(count, bins, height, width))
    whole = entropy(histogram.sum(dim=2)).clamp_min(1e-6)
    return entropy(cells.clamp_min(0)) / whole[:, None]
