from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from conftest import shared
from erpcnet.config import BackboneSettings, ModelSettings
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet, SplitBackbone, register_backbone
from erpcnet.model.backbone import BACKBONES, create_backbone
from erpcnet.model.backbone_split import split
from erpcnet.model.chain import Chain
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.small_backbones import SmallResNet, resnet50_v1


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


@pytest.mark.parametrize(
    ("name", "near"), [("timm/resnet51", "resnet50"), ("timm/vit_bse_patch16_clip_224", "vit_base_patch16_clip_224")]
)
def test_unknown_names_of_timm_tell_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InputError, match=rf"timm has no backbone '{name[5:]}' \(near: .*{near}"):
        create_backbone(name)


def test_hidden_arithmetic_between_modules_is_found() -> None:
    """A block that starts as the identity hides what is done before it from whoever looks at the last map alone."""

    class Hidden(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            self.stem, self.layer1 = nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
            self.layer2 = nn.Conv2d(4, 8, 3, stride=2, padding=1)
            nn.init.zeros_(self.layer1.weight)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layer2(self.layer1(self.stem(images) * self.factor))

    assert split(Hidden(1.0)).channels == 8
    with pytest.raises(InputError, match=r"'Hidden' gives no .*: it computes something between its modules; choose"):
        split(Hidden(2.0))


def test_a_norm_before_the_blocks_is_not_lost() -> None:
    torch.manual_seed(0)
    network: Any = timm.create_model("vit_xsmall_patch16_clip_224", num_classes=0).eval()
    nn.init.uniform_(network.norm_pre.weight, 0.5, 2)
    backbone = split(network).eval()
    images, found = torch.randn(1, 3, 224, 224), list[torch.Tensor]()
    network.blocks[-1].register_forward_pre_hook(lambda _, given: found.append(given[0]))
    with torch.no_grad():
        network.forward_features(images)
        feature_map = backbone.trunk(images)
    torch.testing.assert_close(feature_map.flatten(2).transpose(1, 2), found[0][:, 1:])
    assert backbone.trunk.get_submodule("0.before") is network.norm_pre


@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_the_trunk_normalises_as_googles_networks_do(name: str) -> None:
    """With weights and without: a run is loaded without, and its backbone has to compute the same."""
    torch.manual_seed(0)
    backbone = create_backbone(name).eval()
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None, init_weights=False, transform_input=True).eval()
    images, shown = torch.randn(1, 3, 128, 128), list[torch.Tensor]()
    network.avgpool.register_forward_pre_hook(lambda _, given: shown.append(given[0]))
    with torch.no_grad():
        network(images)
        torch.testing.assert_close(backbone(images), shown[0], atol=1e-4, rtol=1e-4)
    assert not any("aux" in key.lower() for key in backbone.state_dict())


def test_a_pooling_at_the_end_is_no_block() -> None:
    last = create_backbone("alexnet").last
    assert [type(link).__name__ for link in last] == ["Conv2d", "ReLU", "MaxPool2d"]


@pytest.fixture
def registry() -> Iterator[None]:
    """What is registered in a test is gone after it."""
    before = dict(BACKBONES)
    yield
    BACKBONES.clear()
    BACKBONES.update(before)


class Halves(nn.Module):
    """A backbone that comes in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        )
        self.last: nn.Module = nn.Conv2d(8, 16, 3, stride=2, padding=1)


@pytest.mark.usefixtures("registry")
def test_a_registered_backbone_is_found_by_name() -> None:
    assert register_backbone("halves")(Halves) is Halves
    register_backbone("chain")(lambda: SmallResNet((8, 8, 8, 24)))
    split_by_hand = SplitBackbone(
        Chain(nn.Conv2d(3, 8, 8, stride=8)), Chain(nn.Conv2d(8, 4, 1)), early=0, map_channels=8, channels=4, stride=8
    )
    register_backbone("by hand")(lambda: split_by_hand)
    shapes = {}
    for name in ("halves", "chain", "by hand"):
        one = create_backbone(name)
        shapes[name] = (one.map_channels, one.channels, one.stride, len(one.early))
        network = ERPCNet(ModelSettings(BackboneSettings(name, "none")), attributes=5, image_size=64)
        assert network(torch.rand(2, 3, 64, 64), torch.zeros(2, 6, dtype=torch.long)).a_j.shape == (2, 6, 5)
    assert shapes == {"halves": (8, 16, 8, 2), "chain": (8, 24, 8, 2), "by hand": (8, 4, 8, 0)}
    with pytest.raises(InputError, match=r"no backbone 'halve' \(near: halves\)"):
        create_backbone("halve")
    with pytest.raises(InputError, match=r"'halves' has no weights 'IMAGENET1K_V1', .* takes 'none' or a file"):
        create_backbone("halves", "IMAGENET1K_V1")


@pytest.mark.usefixtures("registry")
def test_weights_of_a_registered_backbone_come_from_a_file(tmp_path: Path) -> None:
    register_backbone("halves")(Halves)
    state = Halves().state_dict()
    torch.save(state, tmp_path / "halves.pth")
    found = create_backbone("halves", str(tmp_path / "halves.pth"))
    assert torch.equal(found.trunk.get_parameter("0.weight"), state["trunk.0.weight"])


@pytest.mark.usefixtures("registry")
def test_a_registered_backbone_has_its_own_normalisation() -> None:
    wanted = Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    register_backbone("halves", wanted)(Halves)
    backbone, pixels = create_backbone("halves").eval(), torch.rand(2, 3, 64, 64)

    def normalised(how: Preprocessing) -> torch.Tensor:
        return (pixels - torch.tensor(how.mean)[:, None, None]) / torch.tensor(how.std)[:, None, None]

    with torch.no_grad():
        found = backbone.trunk(normalised(Preprocessing()))
        expected = Chain(*list(backbone.trunk)[1:])(normalised(wanted))
    torch.testing.assert_close(found, expected)
    assert len(backbone.early) == 3
    with pytest.raises(InputError, match=r"'other' can have a mean and a std of its own, and no more; --data\.crop"):
        register_backbone("other", Preprocessing(crop_share=1.0))


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["small", "resnet50", "timm/mine"])
def test_names_of_backbones_do_not_collide(name: str) -> None:
    with pytest.raises(InputError, match=f"there is a backbone '{name}' already"):
        register_backbone(name)
    with pytest.raises(InputError, match="is no name for a backbone"):
        register_backbone(" mine")


def _broken(**parts: Any) -> nn.Module:
    network = Halves()
    for name, part in parts.items():
        setattr(network, name, part)
    return network


class Otherwise(Halves):
    """What its own forward computes is something else."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * self.last(self.trunk(images))


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: _broken(last=nn.Conv2d(9, 16, 3)), "its parts do not take what they are given"),
        (lambda: _broken(last=nn.Flatten()), "its parts give no maps"),
        (lambda: _broken(last=nn.Conv2d(8, 16, 9)), "its last block does not take a window of 5 x 5 of the map"),
        (Otherwise, "its own forward computes something else than its last of its trunk"),
        (dict, "was registered with what builds no module"),
    ],
)
def test_a_registered_backbone_that_does_not_fit_is_refused(build: Any, problem: str) -> None:
    register_backbone("halves")(build)
    with pytest.raises(InputError, match=f"backbone 'halves' .*{problem}"):
        create_backbone("halves")


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


def _save(content: Any, path: Path) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)


STATE = SmallResNet().state_dict()
CUT = "torch.save did not write it, or not all of it"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.pth", b"", f"is no file of weights: {CUT}."),
        ("page.pth", b"<html>not found</html>", "is no file of weights: torch.save did not write it."),
        ("codes.pth", b"\x1b[31mred\x1b[0m" * 9, "is no file of weights: torch.save did not write it."),
        ("pickled.pth", pickle.dumps(Path("x")), "is no file of weights: torch.save did not write it."),
        ("module.pth", {"model": nn.Linear(2, 2)}, "is no file of weights: it holds more than tensors."),
        ("number.pth", {"epoch": 3}, "is no file of weights: it holds no tensors by name."),
        ("nested.pth", {"state_dict": STATE}, "is no file of weights: it holds no tensors by name."),
        ("tensor.pth", torch.ones(3), "is no file of weights: it holds no tensors by name."),
        ("text.safetensors", b"weights" * 9, "is no file of weights: it is not safetensors, or not all of it."),
        ("empty.safetensors", b"", "is no file of weights: it is not safetensors, or not all of it."),
        (
            "shape.pth",
            {**STATE, "stem.0.weight": torch.ones(1)},
            "does not fit the backbone: its 'stem.0.weight' is (1,), and not (16, 3, 3, 3).",
        ),
        (
            "nan.safetensors",
            {**STATE, "stem.0.weight": STATE["stem.0.weight"] * torch.nan},
            "is damaged: its 'stem.0.weight' holds values that are no numbers.",
        ),
        ("\x1b[31mred.pth", b"", f"is no file of weights: {CUT}."),
    ],
)
def test_a_wrong_file_of_weights_says_why(
    name: str, content: object, problem: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    _save(content, tmp_path / name)
    with pytest.raises(InputError) as caught:
        create_backbone("small", str(tmp_path / name))
    shown = name.replace("\x1b", r"\x1b")
    assert str(caught.value) == f"{tmp_path / shown} {problem}"
    assert not recwarn


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
def test_truncated_files_of_weights_are_refused(name: str, tmp_path: Path) -> None:
    _save(STATE, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for length in (100, len(whole) // 2, len(whole) - 9):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.\w+ is no file of weights: .*not all of it\.$"):
            create_backbone("small", str(tmp_path / name))


def test_weights_of_another_network_than_the_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some for larger images: a run of them could not be loaded, as that is built from the name alone."""

    def made(_: str, weights: str | None) -> nn.Module:
        return SmallResNet() if weights is None else SmallResNet((16, 32, 64, 256))

    monkeypatch.setattr("erpcnet.model.backbone._create", made)
    with pytest.raises(InputError, match="'IMAGENET1K_SWAG_E2E_V1' of 'vit_b_16' are of another network"):
        create_backbone("vit_b_16", "IMAGENET1K_SWAG_E2E_V1")


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
