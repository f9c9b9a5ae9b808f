from __future__ import annotations

import pytest
import torch

from erpcnet.config import BackboneSettings, ModelSettings
from erpcnet.model import ERPCNet
from erpcnet.model.pooling import pool_places


def _maps() -> torch.Tensor:
    return torch.rand(3, 4, 5, 6, generator=torch.Generator().manual_seed(0)) * 7


@pytest.mark.parametrize("power", [1.0, 3.0, 6.0])
def test_generalised_means_follow_the_formula(power: float) -> None:
    maps, plain = _maps().requires_grad_(), _maps().double().requires_grad_()
    found, expected = pool_places(maps, power), (plain**power).mean(dim=(2, 3)) ** (1 / power)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 2, found.numel()).view_as(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert maps.grad is not None
    torch.testing.assert_close(maps.grad.double(), plain.grad, rtol=1e-4, atol=1e-6)


def test_a_large_power_takes_the_largest_and_nothing_overflows() -> None:
    maps = 1000 * _maps()
    torch.testing.assert_close(pool_places(maps, 200.0), maps.amax(dim=(2, 3)), rtol=0.03, atol=0)


@pytest.mark.parametrize("power", [1.5, 6.0, 12.0, 50.0])
@pytest.mark.parametrize("value", [-1.0, 0.0, 1e-11, 1e-7, 1e-5])
def test_a_map_of_next_to_nothing_has_finite_gradients(power: float, value: float) -> None:
    maps = torch.zeros(1, 2, 3, 3)
    maps[0, 0, 1, 1] = value
    maps.requires_grad_()
    pooled = pool_places(maps, power)
    pooled.sum().backward()
    assert maps.grad is not None
    assert pooled.abs().max() < 2e-5
    assert maps.grad.isfinite().all()
    assert maps.grad.abs().max() <= 1 + 1e-4


def test_the_network_pools_as_asked() -> None:
    torch.manual_seed(0)
    settings = ModelSettings(backbone=BackboneSettings("small", "default"))
    network = ERPCNet(settings, attributes=7, image_size=224, variant="pcnet").eval()
    images = torch.rand(2, 3, 224, 224)
    with torch.inference_mode():
        mean = network.glance(images).e_g
        network.settings.pooling = 4.0
        last = network.backbone(images)
        torch.testing.assert_close(network.glance(images).e_g, pool_places(last, 4.0))
        alive = mean > 1e-3
        assert alive.any()
        assert (network.glance(images).e_g[alive] > mean[alive]).all()
