from __future__ import annotations

import math

import pytest
import torch

from erpcnet.config import LocalSettings
from erpcnet.errors import InputError
from erpcnet.model.grid import Grid, entropy_ratios
from erpcnet.model.local_subnets import magnified
from erpcnet.model.network import scale_windows


def test_the_papers_map_gives_four_by_four_cells() -> None:
    assert Grid(14, 14, window=5, stride=3).shape == (4, 4)
    assert Grid(28, 28, window=10, stride=6).shape == (4, 4)


@pytest.mark.parametrize(("height", "width", "padding"), [(14, 14, 0), (11, 14, 0), (9, 8, 2)])
def test_crop_is_slicing(height: int, width: int, padding: int) -> None:
    grid = Grid(height, width, window=5, stride=3, padding=padding)
    feature_map = torch.randn(3, 4, height, width)
    padded = torch.zeros(3, 4, height + 2 * padding, width + 2 * padding)
    padded[:, :, padding : padding + height, padding : padding + width] = feature_map
    cells = torch.stack([torch.randperm(grid.cells)[:2] for _ in range(3)])
    crops = grid.crop(feature_map, cells)
    means = grid.means(feature_map)
    for image in range(3):
        for step in range(2):
            row, column = divmod(int(cells[image, step]), grid.shape[1])
            expected = padded[image, :, row * 3 : row * 3 + 5, column * 3 : column * 3 + 5]
            torch.testing.assert_close(crops[image, step], expected)
            torch.testing.assert_close(means[image, cells[image, step]], expected.mean(dim=(1, 2)))


def test_windows_of_padding_alone_are_refused() -> None:
    """Of them there is no entropy."""
    assert LocalSettings(padding=4).padding < LocalSettings().window
    with pytest.raises(InputError, match="padding is 5, so windows of 5 lie outside of the map; it must be smaller"):
        LocalSettings(padding=5)


def test_boxes_are_windows_in_pixels() -> None:
    boxes = Grid(14, 14, window=5, stride=3).boxes(image_size=224)
    assert boxes.shape == (16, 4)
    assert boxes[0].tolist() == [0, 0, 80, 80]
    assert boxes[-1].tolist() == [144, 144, 224, 224]


def test_centre_first_begins_in_the_middle() -> None:
    order = Grid(14, 14, window=5, stride=3).centre_first().tolist()
    assert sorted(order) == list(range(16))
    assert set(order[:4]) == {5, 6, 9, 10}
    assert set(order[-4:]) == {0, 3, 12, 15}


def _entropy(values: list[float], low: float, high: float, bins: int) -> float:
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    return -sum(c / len(values) * math.log(c / len(values)) for c in counts if c)


def test_entropy_ratios_against_plain_loops() -> None:
    grid = Grid(8, 8, window=4, stride=2)
    # In the middle of bins, and at the two ends of the range: no value is near the edge of a bin.
    feature_map = (torch.randint(0, 16, (2, 3, 8, 8)) + 0.5) / 16
    feature_map[:, 0, 0, 0], feature_map[:, 0, 0, 1] = 0.0, 1.0
    found = entropy_ratios(feature_map, grid, bins=16)
    for image in range(2):
        values = feature_map[image].flatten().tolist()
        low, high = min(values), max(values)
        whole = _entropy(values, low, high, 16)
        for cell in range(grid.cells):
            row, column = divmod(cell, grid.shape[1])
            window = feature_map[image, :, row * 2 : row * 2 + 4, column * 2 : column * 2 + 4]
            expected = _entropy(window.flatten().tolist(), low, high, 16) / whole
            assert found[image, cell].item() == pytest.approx(expected, abs=1e-5)


def test_a_map_without_any_information_has_finite_ratios() -> None:
    assert entropy_ratios(torch.ones(1, 2, 8, 8), Grid(8, 8, 4, 2)).isfinite().all()


def test_a_window_larger_than_the_map_is_refused() -> None:
    with pytest.raises(InputError, match="window of 5 does not fit the 4 x 4"):
        Grid(4, 4, window=5, stride=3)


@pytest.mark.parametrize(
    ("side", "window", "stride"),
    [(14, 5, 3), (28, 10, 6), (24, 9, 5), (20, 8, 4), (12, 3, 3), (8, 2, 2), (4, 1, 1)],
)
def test_windows_scale_with_the_map_and_the_grid_stays(side: int, window: int, stride: int) -> None:
    assert scale_windows(side, LocalSettings()) == (window, stride, 0)
    assert Grid(side, side, window, stride).shape == (4, 4)


def test_windows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="no room for 4 windows a side"):
        scale_windows(3, LocalSettings())


@pytest.mark.parametrize("zoom", [2, 3, 4])
def test_magnified_windows_are_the_same_cells(zoom: int) -> None:
    """At sizes that are no multiples of a backbone's stride, too."""
    for stride in (14, 16, 32):
        for side in range(6 * stride, 520, 4):
            glance = -(-side // stride)
            grid = Grid(glance, glance, *scale_windows(glance, LocalSettings()))
            finer = magnified(grid, zoom * side)
            assert finer.shape == grid.shape, (stride, side)
            apart = (finer.boxes(zoom * side) - grid.boxes(zoom * side)).abs().max()
            # A rounded stride is off by half a pixel, or by one where the last window would not fit.
            assert float(apart) <= grid.shape[0], (stride, side)
