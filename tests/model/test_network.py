"""HardNet against a plain crop, and a compiled network; the rest is checked part by part."""

from __future__ import annotations

import copy

import torch

from conftest import small_network
from erpcnet.model.network import patch_grid


def test_hardnets_places_are_the_papers_patches() -> None:
    grid = patch_grid(224)
    assert (grid.window, grid.shape) == (80, (19, 19))
    assert patch_grid(448).window == 160


@torch.inference_mode()
def test_hardnet_reads_patches_of_the_image() -> None:
    network = small_network("hardnet")
    assert network.local is not None
    images = torch.randn(2, 3, 64, 64)
    cells = torch.tensor([[0, 20], [360, 7]])
    found = network.embed_localities(network.glance(images).source, cells)
    window, stride, columns = network.grid.window, network.grid.stride, network.grid.shape[1]
    for image in range(2):
        for step in range(2):
            y, x = (int(place) * stride for place in divmod(int(cells[image, step]), columns))
            patch = images[image : image + 1, :, y : y + window, x : x + window]
            expected = network.local.extractor(patch).mean(dim=(2, 3))[0]
            torch.testing.assert_close(found[image, step], expected, atol=1e-4, rtol=1e-4)
    own = {name for name, _ in network.local.extractor.named_parameters()}
    assert own == {name for name, _ in network.backbone.named_parameters()}


def test_a_compiled_network_is_the_same_network() -> None:
    network = small_network("pcnet")
    plain = copy.deepcopy(network)
    ran: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        ran.append(module)
        return module

    network.compile_convolutions(backend)
    images, cells = torch.randn(3, 3, 64, 64), torch.tensor([[0, 5, 9, 12, 3, 7]] * 3)
    with torch.no_grad():
        found, expected = network(images, cells), plain(images, cells)
    assert len(ran) == 3  # the trunk, the last block and the local subnet
    torch.testing.assert_close(found.a_j, expected.a_j)
    assert list(network.state_dict()) == list(plain.state_dict())  # a run reads the same either way
