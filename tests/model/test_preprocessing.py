"""What a picture is before it reaches a backbone belongs to the backbone's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torchvision.models import get_model_weights

import erpcnet
from erpcnet.config import BackboneSettings, Config
from erpcnet.data.images import squeeze
from erpcnet.data.transforms import centre_boxes, resample
from erpcnet.errors import InputError
from erpcnet.model.preprocessing import Preprocessing, preprocessing_of
from erpcnet.training.runs import train_run

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        ("resnet50", "IMAGENET1K_V1", Preprocessing()),
        ("resnet50", "IMAGENET1K_V2", Preprocessing(crop_share=224 / 232)),
        ("resnet50", "default", Preprocessing(crop_share=224 / 232)),
        ("efficientnet_b0", "IMAGENET1K_V1", Preprocessing(interpolation="bicubic")),
        ("resnet50", "somewhere/resnet50-11ad3fa6.pth", Preprocessing(crop_share=224 / 232)),  # V2 as it is downloaded
        ("resnet50", "somewhere/mine.pth", Preprocessing()),
        ("resnet50", "none", Preprocessing()),
        ("resnet50_v1", "somewhere/resnet50_v1.safetensors", Preprocessing()),
        ("timm/resnetv2_50x1_bit", "default", Preprocessing(HALF, HALF, "bicubic", 0.875)),
        ("timm/test_resnet", "somewhere/file.safetensors", Preprocessing(HALF, HALF, "bilinear", 0.95)),
    ],
)
def test_the_record_of_weights_is_their_librarys_own(name: str, weights: str, expected: Preprocessing) -> None:
    assert preprocessing_of(name, weights) == expected


def test_records_of_four_torchvision_networks() -> None:
    for name in ("convnext_tiny", "regnet_y_400mf", "mobilenet_v3_small", "vgg11_bn"):
        for member in get_model_weights(name):
            recipe = member.transforms()
            found = preprocessing_of(name, member.name)
            assert (list(found.mean), list(found.std)) == (recipe.mean, recipe.std)
            assert found.crop_share == recipe.crop_size[0] / recipe.resize_size[0]


def test_a_run_keeps_what_its_weights_want(tiny_config: Config, creatures: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "weights.pth")
    backbone = BackboneSettings("timm/test_resnet", str(tmp_path / "weights.pth"))
    model = replace(tiny_config.model, backbone=backbone, sigma=1.0, delta=0.5)
    data = replace(tiny_config.data, crop_share=None)
    train_run(replace(tiny_config, variant="globalnet", model=model, data=data), creatures, tmp_path / "run")
    (tmp_path / "weights.pth").unlink()
    loaded = erpcnet.load(tmp_path / "run")
    assert loaded.preprocessing == Preprocessing(HALF, HALF, "bilinear", 0.95)
    picture = Image.effect_noise((100, 80), 60).convert("RGB")
    shown = loaded._crop([picture]).images[0]
    pixels = torch.from_numpy(squeeze(picture, loaded.data.stored_size).copy())[None]
    plain = resample(pixels, centre_boxes(torch.tensor([[80.0, 100.0]]), 0.95), 64)
    mean, std = (torch.tensor(values)[:, None, None] for values in (Preprocessing().mean, Preprocessing().std))
    torch.testing.assert_close(shown, (plain * std + mean - 0.5) / 0.5, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm/resnet50.nobody", "timm has no weights 'resnet50.nobody'"),
        ("timm/hf-hub:timm/vit_base_patch16_clip_224.openai", "how .* wants pictures is not known"),
    ],
)
def test_weights_of_unknown_record_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        preprocessing_of(name, "default")
