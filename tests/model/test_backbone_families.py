"""A small member of every tested family: split, compared with its library, and trained one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import models

from erpcnet.config import BackboneSettings, ModelSettings, Stage1Settings
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.experiments.reference import FAMILIES, backbone_cells, backbones_table, refusal
from erpcnet.model import ERPCNet, SplitBackbone
from erpcnet.model.backbone import BACKBONES, RegisteredBackbone, create_backbone
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.stage1_sources import random_cells

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- backbones -->\n")[2].partition("\n<!-- /backbones -->")[0]
ROWS = {line.split(" | ")[1].strip("`"): line.strip("| ").split(" | ") for line in TABLE.splitlines() if "`" in line}
REFUSED = [name for name, row in ROWS.items() if len(row) == 3]
LARGE = {"vit_b_16", "wide_resnet50_2"}  # on one core seconds each
SIDES = {"inception_v3": 192, "alexnet": 192}  # pixels, of which these leave less than others; 96 for those
TRAINED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in ROWS if name not in REFUSED
]


def _library(name: str) -> Any:
    """The library's network; its norms and scales are not at values that hide a block, as zero does."""
    if name in BACKBONES:
        network = BACKBONES[name].build()
    elif name.startswith("timm/"):
        network = timm.create_model(name.removeprefix("timm/"), num_classes=0)
    else:
        more: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        network = models.get_model(name, weights=None, **more)
        if more:  # as it has with weights
            network.transform_input = True
    with torch.no_grad():
        for weight in network.parameters():
            if weight.numel() == max(weight.shape):
                weight.add_(0.2 * torch.rand_like(weight))
    return network


def _library_map(name: str, network: Any, images: Tensor) -> Tensor:
    """What the library calls its features, from its own forward."""
    if name == "small":
        return network(images)
    if hasattr(network, "forward_features"):
        return network.forward_features(images)
    if hasattr(network, "avgpool") and not name.startswith("densenet"):
        return _shown_to(network.avgpool, network, images)
    if name.startswith("shufflenet"):
        return _shown_to(network.conv5, network, images, after=True)
    found = network.layers(images) if name.startswith("mnasnet") else network.features(images)
    return found.relu() if name.startswith("densenet") else found


def _shown_to(module: nn.Module, network: nn.Module, images: Tensor, after: bool = False) -> Tensor:
    """What a module is given, or gives, in the network's own forward."""
    found: list[Tensor] = []
    hook = module.register_forward_hook(lambda _, given, out: found.append((out if after else given[0]).clone()))
    network(images)
    hook.remove()
    return found[0]


def _check_transformer(network: Any, backbone: SplitBackbone) -> None:
    """e^{n-1} are the library's patches before the last block; the last block is its own, on patches alone."""
    blocks = network.encoder.layers if hasattr(network, "encoder") else network.blocks
    norm = network.encoder.ln if hasattr(network, "encoder") else network.norm
    images = torch.rand(1, 3, 224, 224) if not hasattr(network, "patch_embed") else _native(network)
    tokens = _shown_to(blocks[-1], network, images)
    found = backbone.trunk(images)
    patches = tokens[:, tokens.shape[1] - found.shape[2] * found.shape[3] :]
    torch.testing.assert_close(found.flatten(2).transpose(1, 2), patches, atol=1e-4, rtol=1e-4)
    expected = norm(blocks[-1](patches))
    torch.testing.assert_close(backbone.last(found).flatten(2).transpose(1, 2), expected, atol=1e-4, rtol=1e-4)


def _native(network: Any) -> Tensor:
    return torch.rand(1, 3, *network.patch_embed.img_size)


def _batch(dataset: ZeroShotDataset, side: int) -> Tensor:
    """Drawn images [4, 3, side, side]."""
    paths = [dataset.root / dataset.image_paths[row] for row in dataset.train[:: len(dataset.train) // 4][:4]]
    pictures = [np.asarray(Image.open(path).convert("RGB").resize((side, side)), dtype=np.float32) for path in paths]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 127.5 - 1


def _weights(part: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in part.parameters() if weight.dim() > 1]


@pytest.mark.parametrize("name", TRAINED)
def test_a_family_computes_its_librarys_map_and_trains(
    name: str, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _library(name)
    monkeypatch.setitem(BACKBONES, "tested", RegisteredBackbone(lambda: library))
    side = SIDES.get(name, 96)
    settings = ModelSettings(backbone=BackboneSettings("tested", "none"))
    network = ERPCNet(settings, attributes=len(dataset.attribute_names), image_size=side, variant="pcnet")
    backbone, images = network.backbone, _batch(dataset, side)

    network.eval(), library.eval()
    with torch.no_grad():
        if type(library).__name__ == "VisionTransformer":
            _check_transformer(library, backbone)
        else:
            expected = _library_map(name, library, images)
            torch.testing.assert_close(backbone(images), expected, atol=1e-4, rtol=1e-4)
    assert backbone_cells(backbone) == ROWS[name][2:]

    network.train()
    before = [weight.detach().clone() for weight in _weights(backbone)]
    optimizer = torch.optim.SGD(network.stage1_parameters(), lr=0.01)
    cells = random_cells(len(images), network.grid.cells, network.steps, torch.Generator().manual_seed(0))
    phi = torch.from_numpy(dataset.unit_attributes[dataset.seen])
    losses = Stage1Loss(network, Stage1Settings())(images, cells, torch.arange(4), phi)
    losses["total"].backward()
    optimizer.step()
    assert all(loss.isfinite() for loss in losses.values())
    assert network.local is not None
    for part in (backbone.trunk, backbone.last, network.local.extractor):
        for weight in (_weights(part)[0], _weights(part)[-1]):
            assert weight.grad is not None
            assert weight.grad.isfinite().all()
            assert weight.grad.abs().max() > 0
    after = _weights(backbone)
    assert not torch.equal(before[0], after[0])
    assert not torch.equal(before[-1], after[-1])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_split_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(InputError) as caught:
        create_backbone(name)
    sentence = str(caught.value)
    assert sentence.startswith(f"backbone '{name}' gives no feature map that can be split before its last block: ")
    assert "\n" not in sentence
    assert refusal(caught.value) == ROWS[name][2]


def test_the_page_lists_every_tested_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are compared above, as each is built."""
    assert {name: row[0] for name, row in ROWS.items()} == {name: family for family, name in FAMILIES.items()}
    few = {family: name for family, name in FAMILIES.items() if name in ("small", "mnasnet0_5", "timm/vgg11")}
    monkeypatch.setattr("erpcnet.experiments.reference.FAMILIES", few)
    lines = [line for line in backbones_table().splitlines() if line]
    assert len(lines) == 3 + 4
    assert set(lines) <= set(TABLE.splitlines())
