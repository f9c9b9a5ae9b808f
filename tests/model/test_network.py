"""HardNet against a plain crop; the other variants are checked part by part."""

from __future__ import annotations

import torch

from conftest import small_network
from erpcnet.model.network import patch_grid
from erpcnet.model.settings import PatchSettings


def test_hardnets_places_are_the_papers_patches() -> None:
    grid = patch_grid(224, PatchSettings())
    assert (grid.window, grid.shape) == (80, (19, 19))
    assert patch_grid(448, PatchSettings()).window == 160


@torch.inference_mode()
def test_hardnet_reads_patches_of_the_image_by_a_second_backbone() -> None:
    network = small_network("hardnet")
    assert network.local is not None
    images = torch.randn(2, 3, 64, 64)
    cells = torch.tensor([[0, 20], [360, 7]])
    found = network.look(network.glance(images).feature_map, cells)
    window, stride, columns = network.grid.window, network.grid.stride, network.grid.shape[1]
    for image in range(2):
        for step in range(2):
            y, x = (int(place) * stride for place in divmod(int(cells[image, step]), columns))
            patch = images[image : image + 1, :, y : y + window, x : x + window]
            expected = network.local.extractor(patch).mean(dim=(2, 3))[0]
            torch.testing.assert_close(found[image, step], expected, atol=1e-4, rtol=1e-4)
    own = {name for name, _ in network.local.extractor.named_parameters()}
    assert own == {name for name, _ in network.backbone.named_parameters()}
