"""How pictures are prepared for a backbone: a property of its weights, read from their record and kept with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from erpcnet.config.model import BackboneSettings
from erpcnet.errors import InputError

TIMM = "timm/"
Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """What a backbone's weights were trained with; by default what is usual on ImageNet.

    Attributes:
        mean: Of each channel, subtracted from values of 0 to 1.
        std: Of each channel, by which the rest is divided.
        interpolation: How crops are resized.
        crop_share: The share of the short side that the crop at test covers.
    """

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"
    crop_share: float = 0.875

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3 or not all(-100 <= one <= 100 for one in self.mean):
            raise InputError("preprocessing has a mean and a standard deviation of each of three channels.")
        if not all(1e-6 <= one <= 1e6 for one in self.std) or not 0 < self.crop_share <= 1:
            raise InputError("preprocessing has standard deviations above 0, and a crop share from 0 to 1.")


def preprocessing_of(name: str, weights: str) -> Preprocessing:
    """The record of some weights: torchvision's or timm's own, or what is usual on ImageNet where there is none.

    Args:
        name: The backbone, as `create_backbone` takes it.
        weights: `none`, `default`, a torchvision weight name, or a file, which is known by the name that torchvision
            publishes it under.

    Examples:
        >>> preprocessing_of("timm/resnetv2_50x1_bit", "default").mean
        (0.5, 0.5, 0.5)
    """
    if weights == "none":
        return Preprocessing()
    if name.startswith(TIMM):
        return _timms(name.removeprefix(TIMM))
    from torchvision import models

    if name not in models.list_models(module=models):
        return Preprocessing()
    known = models.get_model_weights(name)
    if weights == "default":
        return _torchvisions(known.DEFAULT)
    for member in known:
        if weights == member.name or Path(weights).name == member.url.rpartition("/")[2]:
            return _torchvisions(member)
    return Preprocessing()


def preprocessing_for(backbone: BackboneSettings, crop_share: float | None = None) -> Preprocessing:
    """The record of a backbone's weights, with the crop share that is asked for, if one is."""
    record = preprocessing_of(backbone.name, backbone.weights)
    return record if crop_share is None else replace(record, crop_share=crop_share)


def _torchvisions(weights: Any) -> Preprocessing:
    recipe = weights.transforms()
    share = recipe.crop_size[0] / recipe.resize_size[0]
    return Preprocessing(_three(recipe.mean), _three(recipe.std), _interpolation(recipe.interpolation.value), share)


def _timms(name: str) -> Preprocessing:
    from timm.models import get_pretrained_cfg

    if ":" in name:  # of a hub, whose record is not timm's own
        raise InputError(f"how 'timm/{name}' wants pictures is not known; give a name of timm.list_models().")
    try:
        recipe = get_pretrained_cfg(name)
    except RuntimeError as error:
        raise InputError(f"timm has no weights '{name}' ({error}).") from None
    if recipe is None:
        return Preprocessing()
    return Preprocessing(
        _three(recipe.mean), _three(recipe.std), _interpolation(recipe.interpolation), float(recipe.crop_pct)
    )


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _interpolation(name: str) -> Interpolation:
    """Of those that there are, the nearest one."""
    return "bilinear" if name in ("bilinear", "nearest", "box") else "bicubic"
