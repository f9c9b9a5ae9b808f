from __future__ import annotations

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.config.model import KernelKind
from erpcnet.model.grid import Grid
from erpcnet.model.partial_convolution import PartialConvolution


def _unlike_its_start(convolution: PartialConvolution) -> PartialConvolution:
    norm = convolution.norm
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return convolution.eval()


def _affine(convolution: PartialConvolution, value: Tensor) -> Tensor:
    norm = convolution.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return value * scale[:, None, None] + (norm.bias - norm.running_mean * scale)[:, None, None]


def test_valid_is_a_convolution_at_chosen_cells() -> None:
    grid = Grid(14, 14, window=5, stride=3)
    convolution = _unlike_its_start(PartialConvolution(6, 5, "full", "valid"))
    feature_map = torch.randn(2, 6, 14, 14)
    # Everywhere, by an ordinary strided convolution; the identity is the middle of each window.
    everywhere = F.conv2d(feature_map, convolution.branch.get_parameter("weight"), stride=3)
    middle = feature_map[:, :, 2:12:3, 2:12:3]
    expected = torch.relu(middle + _affine(convolution, everywhere)).flatten(2)
    cells = torch.tensor([[0, 5, 15], [3, 9, 6]])
    found = convolution(grid.crop(feature_map, cells).flatten(0, 1)).view(2, 3, 6)
    for image in range(2):
        for step, cell in enumerate(cells[image]):
            torch.testing.assert_close(found[image, step], expected[image, :, cell], atol=1e-5, rtol=1e-5)


def test_same_pads_each_window_with_zeros() -> None:
    convolution = _unlike_its_start(PartialConvolution(4, 3, "full", "same"))
    crops = torch.randn(2, 4, 5, 5)
    expected = torch.empty_like(crops)
    padded = F.pad(crops, (1, 1, 1, 1))
    for y in range(5):
        for x in range(5):
            window = padded[:, :, y : y + 3, x : x + 3]
            expected[:, :, y, x] = torch.einsum("nchw,ochw->no", window, convolution.branch.weight)
    expected = torch.relu(crops + _affine(convolution, expected))
    torch.testing.assert_close(convolution(crops), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", get_args(KernelKind))
@pytest.mark.parametrize("mode", ["same", "valid"])
def test_every_kind_starts_as_the_identity(kind: KernelKind, mode: str) -> None:
    crops = torch.rand(3, 64, 5, 5)  # e^{n-1} comes out of a ReLU
    found = PartialConvolution(64, 5, kind, mode)(crops)  # type: ignore[arg-type]
    torch.testing.assert_close(found, crops if mode == "same" else crops[:, :, 2:3, 2:3])


def test_kinds_differ_in_what_they_cost() -> None:
    sizes = {
        kind: sum(p.numel() for p in PartialConvolution(128, 5, kind).branch.parameters())
        for kind in get_args(KernelKind)
    }
    assert sizes["full"] == 128 * 128 * 25
    assert sizes["bottleneck"] < sizes["full"] / 10
