"""HardNet against a plain crop, and a compiled network; the rest is checked part by part."""

from __future__ import annotations

import copy

import pytest
import torch

from conftest import small_network
from erpcnet.config import LocalSettings
from erpcnet.errors import InputError
from erpcnet.model.local_subnets import ZoomSubnet, patch_grid
from erpcnet.model.network import ERPCNet


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


def _zoomed() -> tuple[ERPCNet, ERPCNet]:
    """A network with zoom, and one without that has the same glance."""
    zoomed, plain = small_network("erpcnet", local=LocalSettings(zoom=2)), small_network("erpcnet")
    plain.load_state_dict(
        {
            name: value
            for name, value in zoomed.state_dict().items()
            if name.startswith(("backbone.", "global_", "prototypes"))
        },
        strict=False,
    )
    return zoomed, plain


@torch.inference_mode()
def test_zoom_glances_at_the_small_image() -> None:
    zoomed, plain = _zoomed()
    images = torch.randn(2, 3, 128, 128)
    small = images.view(2, 3, 64, 2, 64, 2).mean(dim=(3, 5))
    found, expected = zoomed.glance(images), plain.glance(small)
    torch.testing.assert_close(found.a_g, expected.a_g, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.described, expected.source, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(zoomed.saliency(images), plain.saliency(small), atol=1e-4, rtol=1e-4)
    # The policy sees the glance's map alone.
    for one, other in zip(
        zoomed.describe_cells(found.described), plain.describe_cells(expected.described), strict=True
    ):
        torch.testing.assert_close(one, other, atol=5e-3, rtol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("power", [1.0, 3.0])
def test_zoom_reads_windows_from_the_fine_image(power: float) -> None:
    network = small_network("erpcnet", local=LocalSettings(zoom=2), pooling=power)
    assert isinstance(network.local, ZoomSubnet)
    images, cells = torch.randn(2, 3, 128, 128), torch.tensor([[0, 6], [15, 9]])
    found = network.embed_localities(network.glance(images).source, cells)
    boxes = network.grid.boxes(128).long()
    for image in range(2):
        for step in range(2):
            left, upper, right, lower = boxes[cells[image, step]].tolist()
            patch = images[image : image + 1, :, upper:lower, left:right]
            features = network.local.extractor(patch)[0]
            expected = features.clamp_min(0).pow(power).mean(dim=(1, 2)).pow(1 / power)
            torch.testing.assert_close(found[image, step], expected, atol=1e-4, rtol=1e-4)


def test_zoom_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(InputError, match=r"model\.local\.zoom is 5; it must be from 1 to 4"):
        LocalSettings(zoom=5)
    with pytest.raises(InputError, match="which has no padding"):
        LocalSettings(zoom=2, padding=1)
    with pytest.raises(InputError, match="HardNet reads patches of the glance's own image"):
        small_network("hardnet", local=LocalSettings(zoom=2))
