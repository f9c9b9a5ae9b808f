from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from conftest import shared
from erpcnet.errors import InputError
from erpcnet.model.backbone import create_backbone, resnet50_v1, split


@pytest.mark.parametrize(
    ("name", "channels", "stride"),
    [
        ("resnet18", 512, 16),
        ("resnet50", 2048, 16),
        ("convnext_tiny", 768, 16),
        ("mobilenet_v3_small", 576, 16),
    ],
)
def test_torchvision_splits_before_the_last_drop_in_resolution(name: str, channels: int, stride: int) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    backbone = split(network, name).eval()
    images = torch.randn(2, 3, 96, 96)
    assert (backbone.channels, backbone.stride) == (channels, stride)
    with torch.no_grad():
        feature_map = backbone.trunk(images)
        assert feature_map.shape[1:] == (backbone.map_channels, 6, 6)
        whole = network.features(images) if hasattr(network, "features") else _resnet_features(network, images)
        torch.testing.assert_close(backbone.last(feature_map), whole)


def _resnet_features(network: torchvision.models.ResNet, images: torch.Tensor) -> torch.Tensor:
    value = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    return network.layer4(network.layer3(network.layer2(network.layer1(value))))


@pytest.mark.parametrize("name", ["resnet26", "efficientnet_b0", "convnext_atto", "regnetx_002", "resnetv2_50"])
def test_timm_splits_compute_what_timm_computes(name: str) -> None:
    torch.manual_seed(0)
    network: Any = timm.create_model(name, pretrained=False, num_classes=0).eval()
    backbone = split(network, name).eval()
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), network.forward_features(images), atol=1e-4, rtol=1e-4)
        assert backbone.trunk(images).shape[-1] == 2 * backbone(images).shape[-1]


def test_a_resnet_is_split_before_its_last_block() -> None:
    torch.manual_seed(0)
    network = torchvision.models.resnet50(weights=None).eval()
    backbone = split(network, "resnet50").eval()
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert backbone.trunk(images).shape == (1, 1024, 6, 6)
        torch.testing.assert_close(backbone(images), _resnet_features(network, images))
    assert backbone.map_channels == 1024
    assert backbone.early[-1] is network.layer2


@pytest.mark.parametrize("name", ["timm/mixer_s32_224"])
def test_a_backbone_without_a_feature_map_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' gives no feature map"):
        create_backbone(name)


def test_an_unknown_backbone_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"no backbone 'resnet51' \(near: resnet50"):
        create_backbone("resnet51")


def test_v1_and_v15_share_keys_and_compute_different_things() -> None:
    torch.manual_seed(0)
    v15 = torchvision.models.resnet50(weights=None)
    v1: Any = resnet50_v1()
    v1.load_state_dict(v15.state_dict())
    assert [block.conv1.stride for block in (v1.layer2[0], v1.layer3[0], v1.layer4[0])] == [(2, 2)] * 3
    assert [block.conv2.stride for block in (v1.layer2[0], v1.layer3[0], v1.layer4[0])] == [(1, 1)] * 3
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert not torch.allclose(v1.eval()(images), v15.eval()(images), atol=1e-2)


def test_weights_come_from_a_file_and_must_fit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torchvision.models.resnet18(weights=None)
    state = {key: value for key, value in network.state_dict().items() if not key.startswith("fc.")}
    save_file(state, tmp_path / "whole.safetensors")
    torch.save(state, tmp_path / "whole.pth")
    for name in ("whole.safetensors", "whole.pth"):
        backbone = create_backbone("resnet18", str(tmp_path / name))
        torch.testing.assert_close(backbone.trunk[0].weight, network.conv1.weight)
    save_file({key: value for key, value in state.items() if "layer3" not in key}, tmp_path / "part.safetensors")
    with pytest.raises(InputError, match="weights are missing, 'layer3"):
        create_backbone("resnet18", str(tmp_path / "part.safetensors"))
    with pytest.raises(
        InputError, match=r"no weights '.*nowhere\.pth', .* takes 'none', 'default', IMAGENET1K_V1 or a"
    ):
        create_backbone("resnet18", str(tmp_path / "nowhere.pth"))


def test_a_missing_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"'resnet18' could not be downloaded .*--model\.backbone\.weights FILE"):
        create_backbone("resnet18", "default")


def test_the_small_backbone_brings_its_weights() -> None:
    drawn, brought = create_backbone("small", "none"), create_backbone("small", "default")
    assert not torch.equal(drawn.trunk.get_parameter("0.0.weight"), brought.trunk.get_parameter("0.0.weight"))
    again = create_backbone("small", "default")
    assert torch.equal(again.trunk.get_parameter("0.0.weight"), brought.trunk.get_parameter("0.0.weight"))


def test_the_real_v1_weights_fit_and_are_v1s() -> None:
    """On a drawn picture: features of v1 weights in v1.5's strides are others."""
    path = shared("weights", "resnet50_v1_imagenet.safetensors")
    images = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        right, wrong = (create_backbone(name, str(path)).eval()(images) for name in ("resnet50_v1", "resnet50"))
    assert right.shape == wrong.shape == (1, 2048, 3, 3)
    assert (right - wrong).norm() > 0.1 * right.norm()


@pytest.mark.parametrize(
    ("weights", "member"),
    [("IMAGENET1K_V1", "IMAGENET1K_V1"), ("IMAGENET1K_V2", "IMAGENET1K_V2"), ("default", "DEFAULT")],
)
def test_torchvisions_weights_are_fetched_by_name(weights: str, member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(url: str, *_: object, **__: object) -> dict[str, torch.Tensor]:
        fetched.append(url)
        torch.manual_seed(1)
        return torchvision.models.resnet50(weights=None).state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    backbone = create_backbone("resnet50", weights)
    assert fetched == [torchvision.models.ResNet50_Weights[member].url]
    torch.manual_seed(1)
    assert torch.equal(backbone.trunk.get_parameter("0.weight"), torchvision.models.resnet50(weights=None).conv1.weight)


def test_a_missing_timm_is_a_missing_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match="timm"):  # the command line names the extra
        create_backbone("timm/resnet18", "none")
