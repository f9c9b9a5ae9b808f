from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from conftest import small_network
from erpcnet.inference import Engine
from erpcnet.model.fusion import freeze


def _used(network: nn.Module) -> None:
    """Give every norm statistics and weights that matter."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, low, high in (("running_mean", -0.5, 0.5), ("running_var", 0.5, 2.0), ("weight", 0.5, 1.5)):
                nn.init.uniform_(getattr(module, name), low, high)


@pytest.mark.parametrize("variant", ["erpcnet", "globalnet", "hardnet"])
def test_a_frozen_network_answers_the_same_without_norms(variant: str) -> None:
    torch.manual_seed(0)
    network = small_network(variant)
    _used(network)
    frozen = freeze(copy.deepcopy(network))
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())
    images = torch.randn(3, 3, 64, 64)
    found, expected = (Engine(one, "sequential").walk(images) for one in (frozen, network))
    assert torch.equal(found.cells, expected.cells)
    torch.testing.assert_close(found.whole, expected.whole, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.joint, expected.joint, atol=1e-3, rtol=1e-3)


def test_what_cannot_be_traced_is_left_as_it_is() -> None:
    class Choosy(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images if images.sum() > 0 else -images

    network = small_network("globalnet")
    network.backbone.trunk = nn.Sequential(Choosy(), network.backbone.trunk)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = network.glance(images).attributes
        torch.testing.assert_close(freeze(network).glance(images).attributes, expected, atol=1e-4, rtol=1e-4)
