from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.fx.experimental.optimization import fuse as fold_norms

from conftest import small_network
from erpcnet.inference import Engine
from erpcnet.model.chain import Chain
from erpcnet.model.fusion import FusedConvolution, fuse, fuse_activations
from erpcnet.model.local_subnets import WindowSubnet
from erpcnet.utils.runtime import Runtime


def _used(network: nn.Module) -> None:
    """Give every norm statistics and weights that matter."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, low, high in (("running_mean", -0.5, 0.5), ("running_var", 0.5, 2.0), ("weight", 0.5, 1.5)):
                nn.init.uniform_(getattr(module, name), low, high)


@pytest.mark.parametrize("variant", ["erpcnet", "globalnet", "hardnet"])
def test_a_fused_network_answers_the_same(variant: str) -> None:
    torch.manual_seed(0)
    network = small_network(variant)
    _used(network)
    fused = fuse(copy.deepcopy(network))
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    images = torch.randn(1, 3, 3, 64, 64)
    found, expected = (Engine(one, "sequential").rollout(images) for one in (fused, network))
    assert torch.equal(found.cells, expected.cells)
    torch.testing.assert_close(found.a_g, expected.a_g, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.a_j, expected.a_j, atol=1e-3, rtol=1e-3)


def test_what_cannot_be_traced_is_left_as_it_is() -> None:
    class Choosy(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images if images.sum() > 0 else -images

    network = small_network("globalnet")
    network.backbone.trunk = Chain(Choosy(), network.backbone.trunk)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = network.glance(images).a_g
        torch.testing.assert_close(fuse(network).glance(images).a_g, expected, atol=1e-4, rtol=1e-4)


def _partial() -> nn.Module:
    local = small_network("erpcnet").local
    assert isinstance(local, WindowSubnet)
    return local.partial


def _residual() -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.kept, self.grouped = (nn.Conv2d(8, 8, 3, padding=1, groups=g) for g in (1, 1, 8))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            first = self.relu(self.before(value))
            kept = self.kept(first)  # taken twice: neither use may be fused with it
            return torch.relu(self.grouped(first)) + self.relu(kept + value) + kept

    torch.manual_seed(0)
    return Residual()


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda: small_network("erpcnet").backbone.trunk, 4),
        (_partial, 3),
        (_residual, 1),
    ],
)
def test_fused_convolutions_give_the_same_maps(part: Callable[[], nn.Module], expected: int) -> None:
    folded = fold_norms(part().eval())
    channels = next(m for m in folded.modules() if isinstance(m, nn.Conv2d)).in_channels
    images = torch.randn(2, channels, 16, 16)
    with torch.no_grad():
        before = folded(images)
        fused = fuse_activations(folded)
        assert sum(isinstance(module, FusedConvolution) for module in fused.modules()) == expected
        torch.testing.assert_close(fused(images), before)


@pytest.mark.gpu
def test_fused_convolutions_on_a_gpu_agree_with_full_precision() -> None:
    torch.manual_seed(0)
    network = small_network("erpcnet").cuda()
    _used(network)
    images = torch.randn(4, 3, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        expected = network.glance(images).e_g
        fused = fuse(network.to(memory_format=torch.channels_last), torch.bfloat16)
        assert any(isinstance(module, FusedConvolution) for module in fused.modules())
        with Runtime(torch.bfloat16).autocast():
            found = fused.glance(images).e_g
    assert float((found - expected).norm() / expected.norm()) < 1e-2


def test_only_what_cannot_be_traced_is_left_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: nn.Module) -> nn.Module:
        raise ValueError("a fault of its own")

    monkeypatch.setattr("erpcnet.model.fusion.fold_norms", broken)
    with pytest.raises(ValueError, match="a fault of its own"):
        fuse(small_network("globalnet"))


class _Twice(nn.Module):
    """One convolution before two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.two(self.convolution(self.one(self.convolution(images))))


class _Counts(nn.Module):
    """Asks how many images there are, which tracing cannot answer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(images).reshape(len(images), *images.shape[1:])


@pytest.mark.parametrize("kind", [_Twice, _Counts])
def test_what_folding_would_change_is_left_as_it_is(kind: type[nn.Module]) -> None:
    network, first = small_network("globalnet"), kind()
    _used(first)
    network.backbone.trunk = Chain(first, network.backbone.trunk)
    network.eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = network.glance(images).a_g
        torch.testing.assert_close(fuse(network).glance(images).a_g, expected, atol=1e-4, rtol=1e-4)
